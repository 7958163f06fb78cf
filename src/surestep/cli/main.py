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


@main.command(context_settings=_CONTEXT)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--select", metavar="CODES", help="Only these rules, by code or its beginning: XLA1,XLA601.")
@click.option("--ignore", metavar="CODES", help="Not these rules.")
@click.option("--target", type=click.Choice(["torch_xla", "surestep"]), help="Where the script runs. Default: what it imports.")
@click.option("--fix", is_flag=True, help="Mend what can be mended without changing what the program means.")
@click.option("--unsafe-fixes", is_flag=True, help="With --fix or --diff: mend what may change what the program does, too.")
@click.option("--diff", is_flag=True, help="Show what --fix would change, and change nothing.")
@click.option("--output-format", type=click.Choice(["text", "json", "github", "sarif"]), default="text", show_default=True)
@click.option("--statistics", is_flag=True, help="How often each rule was broken, instead of the findings.")
@click.option("--exit-zero", is_flag=True, help="Exit code 0 for findings too.")
def check(
    paths: tuple[str, ...],
    select: str | None,
    ignore: str | None,
    target: str | None,
    fix: bool,
    unsafe_fixes: bool,
    diff: bool,
    output_format: str,
    statistics: bool,
    exit_zero: bool,
) -> None:
    """Finds what goes wrong in XLA training scripts, from their source: files, notebooks, directories, or - for the standard input.

    Exit code 0: clean (notes don't count); 1: findings; 2: a file couldn't be checked.
    """
    from surestep.cli.check import check as run_check

    sys.exit(run_check(list(paths), _codes(select), _codes(ignore), target, fix, unsafe_fixes, diff, output_format, statistics, exit_zero))


@main.command(context_settings=_CONTEXT)
@click.argument("code")
def rule(code: str) -> None:
    """Explains a rule of `surestep check`, with examples."""
    from surestep.lint.explain import documentation
    from surestep.lint.rules import RULES

    if code.upper() not in RULES:
        raise click.BadParameter(f"there is no rule {code!r}: {', '.join(RULES)}")
    click.echo(documentation(RULES[code.upper()]), nl=False)


@main.command(context_settings=_CONTEXT)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--to", "target", type=click.Choice(["torch_xla", "surestep"]), default="torch_xla", show_default=True, help="Whose names to write."
)
@click.option("--write", is_flag=True, help="Write the files. Without it, a diff is shown.")
def migrate(paths: tuple[str, ...], target: str, write: bool) -> None:
    """Rewrites torch_xla's old names to its modern ones (2.9), or to surestep's own.

    What can't be proved to be the same is left, with a comment. Exit code 0: nothing to do, or written; 1: a diff was shown; 2: a file
    couldn't be read.
    """
    from surestep.cli.migrate import migrate as run_migrate

    sys.exit(run_migrate(list(paths), target, write))


def _codes(given: str | None) -> tuple[str, ...]:
    return tuple(code.strip().upper() for code in given.split(",") if code.strip()) if given else ()
