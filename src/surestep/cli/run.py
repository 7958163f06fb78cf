"""`surestep run`: an unmodified script as the process's main module, with torch_xla answered by the drop-in."""

from __future__ import annotations

import atexit
import contextlib
import os
import pkgutil
import runpy
import signal
import sys
import traceback
from importlib.machinery import SourceFileLoader
from types import CodeType, ModuleType, TracebackType

from surestep.cli.finder import PATH
from surestep.cli.package import load

# What `python -m` calls. (runpy.run_module would put our own __main__ back before the module's threads and exit functions are through.)
_run_as_main = runpy._run_module_as_main  # type: ignore[missing-attribute]

_INTERRUPTED = 130  # what a shell reports for a process that Ctrl-C ended


def run_program(arguments: tuple[str, ...], module: str | None, summary: bool) -> int:
    """Runs a script or a module to its end; returns the exit code."""
    load()
    from surestep.cli import generators

    generators.install()
    end = None
    try:
        if module is None:
            _run_script(arguments)
        else:
            _run_module(module, arguments)
    except BaseException as error:  # whatever ends the script is shown as Python would show it
        end = error
    code = _ended(end)
    if summary:
        from surestep.observe import summary as text
        from surestep.observe.metrics import metrics

        text.show(metrics())
    return code


def _run_script(arguments: tuple[str, ...]) -> None:
    path = arguments[0]
    sys.argv[:] = arguments
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__.update(__builtins__=__builtins__, __cached__=None)
    if path == "-":
        _begin_path("")
        exec(compile(sys.stdin.buffer.read(), "<stdin>", "exec", dont_inherit=True), main.__dict__)
    elif pkgutil.get_importer(path) is not None:  # a directory or a zip file, whose __main__.py is run
        sys.path[:0] = [os.path.abspath(path), PATH]
        _run_as_main("__main__", alter_argv=False)
    else:
        main.__file__ = os.path.abspath(path)
        main.__loader__ = SourceFileLoader("__main__", main.__file__)
        code = _compiled(main.__file__)
        _begin_path(os.path.dirname(os.path.realpath(path)))
        exec(code, main.__dict__)


def _compiled(path: str) -> CodeType:
    try:
        with open(path, "rb") as file:
            compiled = pkgutil.read_code(file)  # None where it is no .pyc
            file.seek(0)
            return compiled or compile(file.read(), path, "exec", dont_inherit=True)  # our own `from __future__` is not theirs
    except OSError as error:
        sys.stderr.write(f"surestep: can't open file {path!r}: [Errno {error.errno}] {error.strerror}\n")
        raise SystemExit(2) from None


def _run_module(module: str, arguments: tuple[str, ...]) -> None:
    sys.argv[:] = ["-m", *arguments]
    sys.modules["__main__"] = ModuleType("__main__")
    _begin_path(os.getcwd())
    _run_as_main(module)


def _begin_path(directory: str) -> None:
    """As Python begins it for a script (not under ``-P``), with the drop-in right after."""
    if sys.flags.safe_path:
        sys.path.insert(0, PATH)
    else:
        sys.path[0:1] = [directory, PATH]


def _ended(error: BaseException | None) -> int:
    """The exit code, as Python does: of SystemExit, None is 0, a number is itself, anything else is printed and is 1."""
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        sys.stderr.write(f"{error.code}\n")
        return 1
    _show(error)
    if isinstance(error, KeyboardInterrupt):
        atexit.register(_die_interrupted)
        return _INTERRUPTED
    return 1


def _die_interrupted() -> None:
    """Ctrl-C ends the process as a signal does, so that a shell's loop over several runs ends too."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)


def _show(error: BaseException) -> None:
    """Prints a traceback as Python would have without us: by the script's own hook, and from the script's first frame on."""
    error.__traceback__ = _from_the_script(error.__traceback__)
    with contextlib.suppress(OSError, ValueError):  # a pipe that nobody reads any more, or a closed file
        sys.stdout.flush()
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException as second:  # of a hook of the script's
        second.__traceback__ = _from_the_script(second.__traceback__)
        sys.stderr.write("Error in sys.excepthook:\n")
        traceback.print_exception(second)
        sys.stderr.write("\nOriginal exception was:\n")
        traceback.print_exception(error)


def _from_the_script(tb: TracebackType | None) -> TracebackType | None:
    ours = {__file__, runpy.__file__, "<frozen runpy>"}
    while tb is not None and tb.tb_frame.f_code.co_filename in ours:
        tb = tb.tb_next
    return tb
