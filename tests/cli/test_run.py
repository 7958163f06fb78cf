"""`surestep run`: a script runs as `python` would run it, with torch_xla answered."""

import json
import os
import py_compile
import signal
import subprocess
import sys
import time
import zipfile

import pytest


def surestep(*arguments, cwd=None, **options):
    return subprocess.run([sys.executable, "-m", "surestep", *arguments], capture_output=True, text=True, cwd=cwd, **options)


def written(folder, text, name="script.py"):
    path = folder / name
    path.write_text(text)
    return str(path)


def test_a_script_is_main(tmp_path):
    script = written(
        tmp_path,
        """
import json, sys, pickle
import helper
class Here: pass
pickle.dumps(Here())
print(json.dumps([__name__, sys.argv, sys.path[0], __file__, helper.ANSWER]))
""",
    )
    written(tmp_path, "ANSWER = 42", "helper.py")
    done = surestep("run", script, "--epochs", "3", "-h", "--", "x")
    assert json.loads(done.stdout) == ["__main__", [script, "--epochs", "3", "-h", "--", "x"], str(tmp_path), script, 42]
    assert (done.returncode, done.stderr) == (0, "")


def test_torch_xla_is_answered(tmp_path):
    script = written(
        tmp_path,
        """
import importlib.metadata, importlib.util, json, sys
import torch
import torch_xla
import torch_xla.core.xla_model as xm
from torch_xla.distributed.parallel_loader import MpDeviceLoader
import surestep.torch_xla.core.xla_model as ours
from packaging.version import parse
version = importlib.metadata.version("torch_xla")
print(json.dumps({
    "versions": [version, torch_xla.__version__],
    "new enough": parse(version) >= parse("2.9"),
    "spec": importlib.util.find_spec("torch_xla.core.xla_model") is not None,
    "same": xm is ours is torch_xla.core.xla_model and torch_xla.step is sys.modules["surestep"].step,
    "value": (torch.ones(2, device=xm.xla_device()) + 1).tolist(),
}))
""",
    )
    found = json.loads(surestep("run", script).stdout)
    assert found == {"versions": ["2.9.0+surestep"] * 2, "new enough": True, "spec": True, "same": True, "value": [2.0, 2.0]}


def test_torch_compile_has_torch_xlas_backends(tmp_path):
    script = written(
        tmp_path,
        """
import torch
import torch_xla
model = torch.nn.Linear(3, 1).to("xla")
loss = torch.compile(model, backend="openxla")(torch.ones(1, 3, device="xla")).sum()
loss.backward()
assert model.weight.grad.tolist() == [[1, 1, 1]]
with torch.no_grad():
    again = torch.compile(model, backend="openxla_eval", fullgraph=True)(torch.ones(1, 3, device="xla"))
assert torch.equal(again.sum(), loss.detach())
assert {"openxla", "openxla_eval"} <= set(torch.compiler.list_backends(exclude_tags=()))
""",
    )
    done = surestep("run", script)
    assert done.returncode == 0, done.stderr


def test_what_is_not_there_yet_is_named(tmp_path):
    done = surestep("run", written(tmp_path, "from torch_xla.experimental.gru import GRU\n"))
    assert done.returncode == 1
    assert "ImportError: torch_xla.experimental.gru isn't in surestep yet" in done.stderr


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("raise SystemExit", 0, ""),
        ("raise SystemExit('stopped')", 1, "stopped\n"),
        ("raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt"),
        ("def f():\n    raise ValueError('wrong')\nf()", 1, "ValueError: wrong"),
        ("1 +", 1, "SyntaxError"),
        (
            "import sys\nsys.excepthook = lambda kind, error, tb: sys.stderr.write('hooked ' + str(error))\nraise ValueError('x')",
            1,
            "hooked x",
        ),
    ],
)
def test_exit_codes(tmp_path, text, code, said):
    done = surestep("run", written(tmp_path, text))
    assert done.returncode == code
    assert said in done.stderr


def test_a_traceback_begins_in_the_script(tmp_path):
    script = written(tmp_path, "def f():\n    raise ValueError('wrong')\n\nf()\n")
    done = surestep("run", script)
    assert done.stderr.splitlines() == [
        "Traceback (most recent call last):",
        f'  File "{script}", line 4, in <module>',
        "    f()",
        f'  File "{script}", line 2, in f',
        "    raise ValueError('wrong')",
        "ValueError: wrong",
    ]


def test_ctrl_c(tmp_path):
    script = written(tmp_path, "import time\nprint('ready', flush=True)\ntime.sleep(60)\n")
    running = subprocess.Popen(
        [sys.executable, "-m", "surestep", "run", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # what a shell runs in the background ignores Ctrl-C, these tests for one, and what they start
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert running.stdout.readline() == "ready\n"
    time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=30)
    assert running.returncode == -signal.SIGINT  # as for python: a shell says 130, and ends its loop
    assert errors.strip().endswith("KeyboardInterrupt")


def test_a_module(tmp_path):
    (tmp_path / "package").mkdir()
    written(tmp_path, "", "package/__init__.py")
    written(tmp_path, "import sys, torch_xla\nprint(__name__, __package__, sys.argv[1:], torch_xla.__version__)\n", "package/train.py")
    done = surestep("run", "-m", "package.train", "-q", "--epochs", "3", "--", "-h", cwd=tmp_path)
    assert done.stdout == "__main__ package ['-q', '--epochs', '3', '--', '-h'] 2.9.0+surestep\n", done.stderr


SHOW = """
import json, sys
spec = __spec__ and __spec__.name
file, cached, loader = globals().get("__file__"), __cached__ and "cached", type(__loader__).__name__
print(json.dumps([__name__, __package__, spec, sys.argv, sys.path[0], file, cached, loader]))
"""


def place(folder, kind):
    """A program of each kind that python runs: what follows `python`."""
    written(folder, SHOW)
    (folder / "package").mkdir()
    written(folder, "", "package/__init__.py")
    written(folder, SHOW, "package/__main__.py")
    (folder / "link.py").symlink_to(folder / "package" / "__main__.py")
    with zipfile.ZipFile(folder / "program.zip", "w") as archive:
        archive.writestr("__main__.py", SHOW)
    compiled = py_compile.compile(str(folder / "script.py"), cfile=str(folder / "compiled.pyc"))
    return {
        "script": ["script.py"],
        "absolute": [str(folder / "script.py")],
        "link": ["link.py"],
        "compiled": [compiled],
        "directory": ["package"],
        "zip": ["program.zip"],
        "module": ["-m", "package"],
        "module in one word": ["-mpackage"],
    }[kind]


@pytest.mark.parametrize("kind", ["script", "absolute", "link", "directory", "zip", "module", "module in one word"])
def test_what_a_program_sees_is_what_python_gives_it(tmp_path, kind):
    arguments = [*place(tmp_path, kind), "--help", "-q", "-m", "--", "x"]
    by_python = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=tmp_path)
    done = surestep("run", *arguments, cwd=tmp_path)
    assert json.loads(done.stdout) == json.loads(by_python.stdout)
    assert (done.returncode, done.stderr) == (0, "")


def test_compiled_code_is_run(tmp_path):
    done = surestep("run", *place(tmp_path, "compiled"), cwd=tmp_path)
    assert json.loads(done.stdout)[0] == "__main__", done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nosuch.py"], "can't open file"),
        (["empty"], "can't find '__main__' module in"),
        (["-m", "nosuch"], "No module named nosuch"),
        (["-m", "package.nosuch"], "No module named package.nosuch"),
        (["-m", "empty"], "'empty' is a package and cannot be directly executed"),
        (["-m"], None),
    ],
)
def test_a_program_that_is_not_there(tmp_path, arguments, said):
    place(tmp_path, "script")
    (tmp_path / "empty").mkdir()
    by_python = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=tmp_path)
    done = surestep("run", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (by_python.returncode, "")
    assert said is None or (said in done.stderr and said in by_python.stderr)
    assert len(done.stderr.splitlines()) == 1 and "Traceback" not in done.stderr


def test_threads_and_exit_functions_still_find_the_module(tmp_path):
    program = "import atexit, sys\nclass Here: pass\natexit.register(lambda: print(sys.modules['__main__'].Here.__name__))\n"
    written(tmp_path, program)
    for arguments in (["script.py"], ["-m", "script"]):
        assert surestep("run", *arguments, cwd=tmp_path).stdout == "Here\n"


def test_a_hook_that_raises_is_shown_with_what_it_was_to_show(tmp_path):
    script = written(tmp_path, "import sys\ndef hook(*_): raise KeyError('hook')\nsys.excepthook = hook\nraise ValueError('x')")
    by_python = subprocess.run([sys.executable, script], capture_output=True, text=True)
    done = surestep("run", script)
    assert (done.returncode, done.stderr) == (by_python.returncode, by_python.stderr)


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_child_processes_have_it_too(tmp_path, method):
    script = written(
        tmp_path,
        f"""
import multiprocessing
import torch_xla
import torch_xla.core.xla_model as xm
def child(queue):
    queue.put((xm.__name__, torch_xla.__version__))
if __name__ == "__main__":
    context = multiprocessing.get_context("{method}")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    print(queue.get(timeout=60))
    process.join()
""",
    )
    done = surestep("run", script)
    assert done.stdout == "('surestep.torch_xla.core.xla_model', '2.9.0+surestep')\n", done.stderr


LOOP = """
import torch, torch_xla
x = torch.ones(2, device="xla")
for _ in range(3):
    with torch_xla.step():
        x = x * 2
print(x.tolist())
print((x + 1).sum().item())
"""


def test_the_summary(tmp_path):
    script = written(tmp_path, LOOP)
    done = surestep("run", script, cwd=tmp_path)
    first, *rest = done.stderr.splitlines()
    assert first.startswith("surestep: 3 steps, 5 runs in ") and " s, 3 programs compiled in " in first
    assert [line.strip() for line in rest] == ["1 implicit boundary:", "1 x a value was read, at script.py:8", "0 host fallbacks"]
    assert done.stdout == "[8.0, 8.0]\n18.0\n"


@pytest.mark.parametrize("option", ["--no-summary", "--quiet", "-q"])
def test_no_summary(tmp_path, option):
    done = surestep("run", option, written(tmp_path, LOOP))
    assert (done.returncode, done.stderr) == (0, "")


def test_mistakes_on_the_command_line(tmp_path):
    assert surestep("run").returncode == 2
    missing = surestep("run", str(tmp_path / "none.py"))
    assert missing.returncode == 2
    assert "can't open" in missing.stderr and "none.py" in missing.stderr
    assert surestep("run", "--no-such-option", "x.py").returncode == 2


def test_it_leaves_the_environment_alone(tmp_path):
    script = written(tmp_path, "import json, os, torch_xla\nprint(json.dumps(dict(os.environ)))")
    jaxs = {"TF_CPP_MIN_LOG_LEVEL": "1", "TPU_SKIP_MDS_QUERY": "1"}  # it sets them where they aren't
    environment = {**jaxs, **os.environ, "MARK": "here"}
    assert json.loads(surestep("run", script, env=environment).stdout) == environment


def test_a_script_is_compiled_as_python_does(tmp_path):
    """Nothing of what our own modules import from ``__future__`` is theirs: annotations are values, and the code is the same."""
    script = tmp_path / "script.py"
    script.write_text("def f(x: int): pass\nprint(f.__annotations__, f.__code__.co_flags)\n")
    expected = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout
    found = subprocess.run([sys.executable, "-m", "surestep", "run", script], capture_output=True, text=True, check=True).stdout
    assert found == expected
    piped = subprocess.run(
        [sys.executable, "-m", "surestep", "run", "-"], input=script.read_text(), capture_output=True, text=True, check=True
    )
    assert piped.stdout == expected
