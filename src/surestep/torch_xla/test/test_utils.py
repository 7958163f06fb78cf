"""torch_xla.test.test_utils: the printing and logging helpers that torch_xla's example scripts share."""

from __future__ import annotations

import functools
import multiprocessing
import unittest
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from surestep.observe.metrics import metrics
from surestep.torch_xla import _later

__all__ = ["close_summary_writer", "get_summary_writer", "mp_test", "now", "print_test_update", "print_training_update", "write_to_summary"]


def mp_test(func: Callable[..., Any]) -> Callable[..., int | None]:
    """A test that is run in a process of its own, which must end well. The device must not be in use here yet: the process is forked."""

    @functools.wraps(func)
    def in_a_process(*args: Any, **kwargs: Any) -> int | None:
        process = multiprocessing.get_context("fork").Process(target=func, args=args, kwargs=kwargs)
        process.start()
        process.join()
        if isinstance(args[0], unittest.TestCase):
            args[0].assertEqual(process.exitcode, 0)
        return process.exitcode

    return in_a_process


def get_summary_writer(logdir: str | None) -> Any:
    """TensorBoard's writer for a directory; None without one."""
    if not logdir:
        return None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(
            f"get_summary_writer({logdir!r}) writes for TensorBoard, which isn't installed: pip install tensorboard"
        ) from error
    return SummaryWriter(log_dir=logdir)


def write_to_summary(
    writer: Any, global_step: int | None = None, dict_to_write: Mapping[str, float] | None = None, write_xla_metrics: bool = False
) -> None:
    """Writes numbers, and surestep's own metrics if asked; does nothing without a writer."""
    if writer is None:
        return
    for name, value in {**(dict_to_write or {}), **(metrics().flat() if write_xla_metrics else {})}.items():
        writer.add_scalar(name, value, global_step)


def close_summary_writer(writer: Any) -> None:
    """Closes a writer, if there is one."""
    if writer is not None:
        writer.flush()
        writer.close()


def now(format: str = "%H:%M:%S") -> str:
    """The time of day."""
    return datetime.now().strftime(format)


def print_training_update(
    device: Any, step: int, loss: float, rate: float, global_rate: float, epoch: int | None = None, summary_writer: Any = None
) -> None:
    """One line on how the training stands."""
    _say(
        "Training",
        Device=device,
        Epoch=epoch,
        Step=step,
        Loss=f"{loss:.5f}",
        Rate=f"{rate:.2f}",
        GlobalRate=f"{global_rate:.2f}",
        Time=now(),
    )
    write_to_summary(summary_writer, dict_to_write={"examples/sec": rate, "average_examples/sec": global_rate})


def print_test_update(device: Any, accuracy: float | None, epoch: int | None = None, step: int | None = None) -> None:
    """One line on how a test came out."""
    _say("Test", Device=device, Step=step, Epoch=epoch, Accuracy=None if accuracy is None else f"{accuracy:.2f}", Time=now())


def _say(what: str, **fields: Any) -> None:
    print("|", what, *(f"{name}={value}" for name, value in fields.items() if value is not None), flush=True)  # noqa: T201 (it is what the functions are for)


__getattr__ = _later.getter("torch_xla.test.test_utils")
