"""Runs the package's own ``__init__``, which the command line has left out until a command needs the device."""

from __future__ import annotations

import sys


def load() -> None:
    """Registers the device, as `import surestep` does."""
    package = sys.modules["surestep"]
    if not hasattr(package, "__all__"):
        assert package.__spec__ is not None and package.__spec__.loader is not None
        package.__spec__.loader.exec_module(package)
