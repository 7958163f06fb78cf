# Every target makes the virtual environment first; `make demo` and `make test` are all the set-up there is.

PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.made
N ?= 1000
SHARD ?= 0/1
BENCHMARKS ?= recording scan loader processes

.PHONY: venv demo test test-all test-matrix lint format docs bench bench-peer fuzz conformance clean

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable . --group dev
	touch $@

demo: venv
	$(BIN)/surestep run examples/digits.py

test: venv
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --slice

test-all: venv
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

test-matrix: venv
	$(BIN)/python scripts/matrix.py

lint: venv
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyrefly check
	$(BIN)/lint-imports

format: venv
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group docs
	$(BIN)/mkdocs build --quiet --strict

bench: venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group bench
	mkdir -p build
	$(BIN)/python benchmarks/steps.py --json build/steps.jsonl $(if $(TORCH_XLA),--torch-xla "$(TORCH_XLA)")
	$(BIN)/python benchmarks/plot.py build/steps.jsonl build/steps.svg
	for name in $(BENCHMARKS); do $(BIN)/python benchmarks/$$name.py || exit 1; done

# the same beside torch_xla 2.9: make bench-peer TORCH_XLA=/path/to/its/venv/bin/python
bench-peer:
	@test -n "$(TORCH_XLA)" || { echo "TORCH_XLA is to name the Python of a virtual environment with torch_xla"; exit 2; }
	$(MAKE) bench BENCHMARKS= TORCH_XLA="$(TORCH_XLA)"

fuzz: venv
	$(BIN)/python tests/fuzz/run.py -n $(N)
	$(BIN)/python tests/fuzz/run.py --steps -n $$(($(N) / 10))

conformance: venv
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m conformance --shard $(SHARD) $(CONFORMANCE)

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis build dist site
