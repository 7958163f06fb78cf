"""Answers `import torch_xla` and its submodules with surestep.torch_xla, in one process and in the children that it spawns.

Two parts. A directory on ``sys.path`` holds a package ``torch_xla`` and its distribution metadata: version checks find it, and so do
child processes, to which multiprocessing hands the path. That package, once imported, installs the finder here, by which every
``torch_xla.x`` is the one module ``surestep.torch_xla.x``.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "path")


class _Same(Loader):
    """Loads a module that is loaded already, under another name."""

    def __init__(self, module: ModuleType):
        self.module = module
        self.spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module

    def get_code(self, fullname: str) -> CodeType | None:
        """For ``python -m``."""
        assert self.spec is not None
        return self.spec.loader.get_code(self.spec.name)  # type: ignore[missing-attribute] (of a module in a file)

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec  # the import system has just set the alias's


_OF_TORCH = {"torch._dynamo.backends.torchxla": "surestep.torch_xla._backends"}


class Finder(MetaPathFinder):
    """``torch_xla.x`` is ``surestep.torch_xla.x``; and what PyTorch has for torch_xla is surestep's."""

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The alias; ImportError for a module that torch_xla has and surestep hasn't yet."""
        if fullname in _OF_TORCH:
            return _alias(fullname, _OF_TORCH[fullname])
        if not fullname.startswith("torch_xla."):
            return None
        from surestep.torch_xla._later import check_module

        check_module(fullname)
        if importlib.util.find_spec(f"surestep.{fullname}") is None:
            return None
        return _alias(fullname, f"surestep.{fullname}")


def _alias(fullname: str, name: str) -> ModuleSpec | None:
    module = importlib.import_module(name)
    return importlib.util.spec_from_loader(fullname, _Same(module), origin=module.__file__)


def install() -> None:
    """From now on, `torch_xla` is surestep's in this process."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())
    sys.modules["torch_xla"] = importlib.import_module("surestep.torch_xla")
