"""`surestep run`: an unmodified script as the process's main module, with torch_xla answered by the drop-in."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from types import CodeType, ModuleType, TracebackType

from surestep.cli.finder import PATH
from surestep.cli.package import load

_INTERRUPTED = 130  # what a shell reports for a process that Ctrl-C ended


def run_program(arguments: tuple[str, ...], module: str | None, summary: bool) -> int:
    """Runs a script or a module to its end; returns the exit code."""
    load()
    from surestep.cli import generators

    generators.install()
    try:
        if module is None:
            _run_script(arguments)
        else:
            _run_module(module, arguments)
        code = 0
    except SystemExit as stop:
        code = _exit_code(stop)
    except KeyboardInterrupt as error:
        _show(error)
        code = _INTERRUPTED
    except BaseException as error:  # whatever ends the script is shown as Python would show it
        _show(error)
        code = 1
    if summary:
        from surestep.observe import summary as text
        from surestep.observe.metrics import metrics

        text.show(metrics())
    return code


def _run_script(arguments: tuple[str, ...]) -> None:
    path = arguments[0]
    main = ModuleType("__main__")
    if path == "-":
        code = compile(sys.stdin.buffer.read(), "<stdin>", "exec")
        directory = ""
    else:
        code = _compiled(path)
        directory = os.path.dirname(os.path.abspath(path))
        main.__file__ = path
    main.__dict__["__builtins__"] = __builtins__
    sys.argv[:] = arguments
    _begin_path(directory)
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


def _compiled(path: str) -> CodeType:
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        sys.stderr.write(f"surestep: can't open {path!r}: {error.strerror}\n")
        raise SystemExit(2) from None
    return compile(source, path, "exec")


def _run_module(module: str, arguments: tuple[str, ...]) -> None:
    sys.argv[:] = [module, *arguments]
    _begin_path(os.getcwd())
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _begin_path(directory: str) -> None:
    """As Python begins it for a script (not under ``-P``), with the drop-in right after."""
    if sys.flags.safe_path:
        sys.path.insert(0, PATH)
    else:
        sys.path[0:1] = [directory, PATH]


def _exit_code(stop: SystemExit) -> int:
    """As Python does: None is 0, a number is itself, anything else is printed and is 1."""
    if stop.code is None or isinstance(stop.code, int):
        return int(stop.code or 0)
    sys.stderr.write(f"{stop.code}\n")
    return 1


def _show(error: BaseException) -> None:
    """Prints a traceback as Python would have without us: by the script's own hook, and from the script's first frame on."""
    kept = _from_the_script(error.__traceback__)
    error.__traceback__ = kept
    sys.stdout.flush()
    if sys.excepthook is sys.__excepthook__:
        traceback.print_exception(type(error), error, kept)
    else:
        sys.excepthook(type(error), error, kept)


def _from_the_script(tb: TracebackType | None) -> TracebackType | None:
    ours = {__file__, runpy.__file__, "<frozen runpy>"}
    while tb is not None and tb.tb_frame.f_code.co_filename in ours:
        tb = tb.tb_next
    return tb
