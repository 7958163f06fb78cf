"""Importing surestep registers the device and changes nothing else; the command line starts without torch and jax."""

import json
import subprocess
import sys

import surestep


def fresh(code):
    """What a program prints, as JSON, in a process of its own."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


STATE = """
import json, os, sys, threading, torch
from torch.optim.optimizer import _global_optimizer_post_hooks
def state():
    return {
        "environment": dict(os.environ),
        "threads": threading.active_count(),
        "dtype": str(torch.get_default_dtype()),
        "device": str(torch.get_default_device()),
        "torch threads": torch.get_num_threads(),
        "grad": torch.is_grad_enabled(),
        "backward threads": torch.autograd.is_multithreading_enabled() if hasattr(torch.autograd, "is_multithreading_enabled") else None,
        "swap": torch.__future__.get_swap_module_params_on_conversion(),
        "overwrite": torch.__future__.get_overwrite_module_params_on_conversion(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "hooks": len(_global_optimizer_post_hooks),
        "seed": torch.initial_seed() if torch.manual_seed(3) else None,
        "random": torch.rand(2).tolist(),
        "path": list(sys.path),
        "finders": [str(type(finder)) for finder in sys.meta_path],
        "excepthook": str(sys.excepthook),
    }
"""


def test_import_changes_nothing_but_the_device():
    found = fresh(
        STATE
        + """
before = state()
import surestep
after = state()
import importlib.util
print(json.dumps({
    "changed": [name for name in before if before[name] != after[name]],
    "jax": "jax" in sys.modules,
    "device": str(torch.device("xla")),
    "module": torch.xla.is_available(),
    "initialized": torch.xla.is_initialized(),
    "torch_xla": importlib.util.find_spec("torch_xla") is not None,
}))
"""
    )
    assert found == {"changed": [], "jax": False, "device": "xla", "module": True, "initialized": False, "torch_xla": False}


def test_first_use_starts_the_device():
    found = fresh(
        """
import json, sys, torch, surestep
x = torch.ones(2, device="xla")
print(json.dumps({"jax": "jax" in sys.modules, "value": (x + 1).tolist(), "initialized": torch.xla.is_initialized()}))
"""
    )
    assert found == {"jax": True, "value": [2.0, 2.0], "initialized": True}


def test_optimizers_are_watched_whatever_was_imported():
    """A loop that never names surestep's functions has a boundary at the end of optimizer.step()."""
    found = fresh(
        """
import json, torch, surestep
p = torch.nn.Parameter(torch.ones(2, device="xla"))
optimizer = torch.optim.SGD([p], lr=0.5)
for _ in range(3):
    (p * 2).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print(json.dumps({"boundaries": surestep.metrics().to_dict()["boundaries"], "value": p.tolist()}))
"""
    )
    assert found == {"boundaries": {"end of optimizer.step()": 3}, "value": [-2.0, -2.0]}


def test_help_loads_neither_torch_nor_jax():
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.argv = ['surestep', '--help']\n"
            "from _surestep_launcher import main\n"
            "try:\n    main()\nexcept SystemExit as stop:\n    assert stop.code == 0\n"
            "print(sorted({'torch', 'jax', 'numpy', 'rich'} & set(sys.modules)))",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("Usage: surestep")
    assert done.stdout.endswith("[]\n")


def test_public_names_are_there_and_documented():
    for name in surestep.__all__:
        assert getattr(surestep, name).__doc__, name
    assert set(surestep.__all__) <= set(dir(surestep))
    assert sorted(surestep.__all__, key=lambda name: (not name[0].isupper(), name)) == surestep.__all__


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(surestep, "no_such_name")
