"""`surestep doctor`: what is installed, against what is supported; what devices there are; and whether a small product comes out right."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import tempfile
from typing import NamedTuple

from rich.console import Console
from rich.table import Table


class Range(NamedTuple):
    """The first and the last supported version, by their first two numbers."""

    first: tuple[int, int]
    last: tuple[int, int]

    def holds(self, version: str) -> bool:
        """Whether a version such as ``2.13.0+cpu`` is in the range."""
        numbers = version.split("+")[0].split(".")
        return self.first <= (int(numbers[0]), int(numbers[1])) <= self.last

    def __str__(self) -> str:
        return f"{self.first[0]}.{self.first[1]} to {self.last[0]}.{self.last[1]}"


SUPPORTED = {
    "Python": Range((3, 11), (3, 13)),
    "torch": Range((2, 13), (2, 15)),
    "jax": Range((0, 10), (0, 12)),
}


def examine() -> bool:
    """Prints the report; returns whether all is well."""
    console = Console(highlight=False, soft_wrap=True)
    fine = _versions(console)
    if not fine:
        console.print("[red]the device isn't tried with versions that aren't supported[/red]")
        return False
    from surestep.cli.package import load

    load()
    if not _devices(console):
        return False
    return _cache(console) & _product(console)


def _versions(console: Console) -> bool:
    fine = True
    table = Table("", "version", "supported", "", box=None)
    found = {"surestep": _version("surestep"), "Python": platform.python_version()}
    found |= {name: _version(name) for name in ("torch", "jax", "jaxlib", "numpy")}
    for name, version in found.items():
        supported = SUPPORTED.get(name)
        ok = version is not None and (supported is None or supported.holds(version))
        fine &= ok
        table.add_row(name, version or "not installed", str(supported or ""), "[green]ok[/green]" if ok else "[red]not supported[/red]")
    console.print(table)
    return fine


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _devices(console: Console) -> bool:
    from surestep.execute.devices import jax_devices

    try:
        devices = jax_devices()
    except RuntimeError as error:
        console.print(f"devices  [red]{error}[/red]", markup=True)
        return False
    for index, device in enumerate(devices):
        console.print(f"xla:{index}    {device.platform}, {device.device_kind}")
    return True


def _cache(console: Console) -> bool:
    """JAX's own setting decides where compiled programs are kept; without it, each process compiles its own."""
    import jax

    directory = getattr(jax.config, "jax_compilation_cache_dir")  # noqa: B009 (its attributes are made at run time)
    if not directory:
        console.print("cache    none: each process compiles anew (JAX_COMPILATION_CACHE_DIR=DIRECTORY keeps what took more than a second)")
        return True
    try:
        os.makedirs(directory, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        console.print(f"cache    {directory} [red]can't be written: {error.strerror}[/red]")
        return False
    console.print(f"cache    {directory}")
    return True


def _product(console: Console) -> bool:
    """A small product on each device, against the CPU's."""
    import torch

    from surestep import devices

    fine = True
    a, b = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)), torch.eye(64).roll(1, 0) * 2
    for device in devices():
        found = (a.to(device) @ b.to(device)).cpu()
        right = torch.allclose(found, a @ b, rtol=1e-2, atol=1e-2)  # an accelerator may multiply float32 in fewer bits
        console.print(f"product  {device}: " + ("[green]as on the CPU[/green]" if right else "[red]not as on the CPU[/red]"))
        fine &= right
    return fine
