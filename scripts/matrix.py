"""`make test-matrix`: the quick tests on the ends of the supported range. What can't be had here (an interpreter, a wheel) is said, and
skipped.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
QUICK = ["tests/test_tiny.py", "tests/test_import.py"]
TOOLS = ["numpy", "click", "rich", "pytest", "pytest-timeout", "hatchling"]


class Corner(NamedTuple):
    python: str
    torch: tuple[str, ...]  # the first of these that can be had
    jax: str


CORNERS = [
    Corner("3.11", ("2.13.*",), "0.10.*"),
    Corner("3.12", ("2.15.*", "2.14.*", "2.13.*"), "0.12.*"),
    Corner("3.13", ("2.15.*", "2.14.*", "2.13.*"), "0.12.*"),
]


def interpreter(version):
    """A Python of this version that works: on the path (a shim may have none behind it), or among pyenv's."""
    pyenv = pathlib.Path(os.environ.get("PYENV_ROOT") or pathlib.Path.home() / ".pyenv")
    for path in (shutil.which(f"python{version}"), *sorted(pyenv.glob(f"versions/{version}.*/bin/python"))):
        if path and subprocess.run([path, "--version"], capture_output=True).returncode == 0:
            return path
    return None


def cpu_build(python, requirement):
    """The exact version of torch that pip would install, if it is one without CUDA, whose packages are gigabytes; else None, and why.

    A dry run asks for the wheel's metadata only. It is this environment's pip that asks, for the other interpreter.
    """
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--dry-run",
        "--no-deps",
        "--report",
        "-",
        requirement,
    ]
    asked = subprocess.run(command, capture_output=True, text=True)
    if asked.returncode != 0:
        return None, "no wheel"
    metadata = json.loads(asked.stdout)["install"][0]["metadata"]
    if any(need.startswith(("nvidia-", "cuda-")) for need in metadata["requires_dist"]):
        return None, "only a CUDA build"
    return metadata["version"], ""


def run(corner):
    """True: passed. False: failed. A string: why it was skipped."""
    base = interpreter(corner.python)
    if base is None:
        return f"no Python {corner.python}"
    with tempfile.TemporaryDirectory() as folder:
        python = f"{folder}/venv/bin/python"
        subprocess.run([base, "-m", "venv", f"{folder}/venv"], check=True)
        for wanted in corner.torch:
            version, why = cpu_build(python, f"torch=={wanted}")
            print(f"torch {wanted}: {version or why}", flush=True)
            if version is not None:
                break
        else:
            return "no torch without CUDA"
        command = [python, "-m", "pip", "install", "--quiet", f"torch=={version}", f"jax=={corner.jax}", *TOOLS]
        installed = subprocess.run(command, capture_output=True, text=True)
        if installed.returncode != 0:
            return f"can't be installed: {installed.stderr.strip().splitlines()[-1]}"
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", str(ROOT)], check=True)
        return subprocess.run([python, "-m", "pytest", "-q", *QUICK], cwd=ROOT).returncode == 0


def main():
    failed = False
    for corner in CORNERS:
        name = f"Python {corner.python}, torch {' or '.join(corner.torch)}, jax {corner.jax}"
        print(f"== {name}", flush=True)
        result = run(corner)
        failed |= result is False
        print(f"== {name}: {'passed' if result is True else 'FAILED' if result is False else 'skipped, ' + result}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
