"""The commands and their options. Imports neither torch nor jax: help and completion are instant."""

from __future__ import annotations

import importlib.metadata
import re
import sys

import click

_CONTEXT = {"help_option_names": ["-h", "--help"]}


class _Run(click.Command):
    """Everything after ``-m MODULE`` is the module's, as with Python itself."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        for index, argument in enumerate(args):
            if short := re.fullmatch("-q*m(.*)", argument):
                end = index + (1 if short[1] else 2)  # -mMODULE or -m MODULE
                if end <= len(args):
                    args = [*args[:end], "--", *args[end:]]
                break
            if argument == "--" or not argument.startswith("-"):
                break
        return super().parse_args(ctx, args)


@click.group(context_settings=_CONTEXT)
@click.version_option(importlib.metadata.version("surestep"), prog_name="surestep")
def main() -> None:
    """Trains PyTorch models on XLA, from plain loops."""


@main.command(cls=_Run, context_settings={**_CONTEXT, "ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-m", "module", metavar="MODULE", help="Run a module as `python -m MODULE` does.")
@click.option("--summary/--no-summary", default=True, help="Print what the device did at the end (on stderr).")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing of our own: the same as --no-summary.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[SCRIPT] [ARGS]...")
def run(module: str | None, summary: bool, quiet: bool, arguments: tuple[str, ...]) -> None:
    """Runs a script, unmodified, with `import torch_xla` answered by surestep.

    Options for surestep come before SCRIPT; all that follows it is the script's. The exit code is the script's own.
    """
    if module is None and not arguments:
        raise click.UsageError("Missing SCRIPT (or -m MODULE).")
    if module is None and arguments[0].startswith("-") and len(arguments[0]) > 1:
        raise click.NoSuchOption(arguments[0])
    from surestep.cli.run import run_program

    sys.exit(run_program(arguments, module, summary and not quiet))


@main.command(context_settings=_CONTEXT)
def doctor() -> None:
    """Prints versions, devices and the cache, and checks a small product against the CPU. Exit code 1 if something is wrong."""
    from surestep.cli.doctor import examine

    sys.exit(0 if examine() else 1)
