"""The `surestep` command. It is outside the package because the package's import registers the device, which needs PyTorch, and `surestep
--help` shouldn't wait for that.

The package object is made without running its ``__init__``, so that its command-line modules can be imported; a command that needs the
device runs it.
"""

from __future__ import annotations

import importlib.util
import sys


def main() -> None:
    """Runs the command line."""
    if "surestep" not in sys.modules:
        spec = importlib.util.find_spec("surestep")
        if spec is None:
            raise SystemExit("surestep: the package isn't installed beside its command")
        sys.modules["surestep"] = importlib.util.module_from_spec(spec)
    from surestep.cli.main import main as command

    command(prog_name="surestep")
