"""torch_xla.debug.model_comparator: a model's intermediate tensors, saved in two runs (on the CPU and on the device, say) and compared."""

from __future__ import annotations

import os
import re
from collections import Counter

import torch

from surestep.execute.world import replica
from surestep.observe import frames
from surestep.torch_xla import _later

__all__ = ["compare", "compare_tensors", "configure", "save", "tensor_file_compare"]

_directory: str | None = None
_step: int | None = None
_saved: Counter[str] = Counter()


def configure(save_dir: str | None) -> None:
    """Where ``save`` saves from now on; None: where the environment variable MODELCMP_SAVEDIR says, or nowhere."""
    global _directory, _step
    _directory, _step = save_dir, None
    _saved.clear()


def save(name: str | None, tensor: torch.Tensor, step: int | None = None) -> torch.Tensor:
    """Saves the tensor, by its name and a number that counts up, in the first process only; gives it back.

    Args:
        name: Without one, it is named by file and line.
        tensor: A tensor on any device.
        step: Tensors of different steps are saved apart, and counted anew.
    """
    global _step
    directory = os.environ.get("MODELCMP_SAVEDIR") if _directory is None else _directory
    if directory is None:
        return tensor
    value = tensor.cpu()
    if replica().rank == 0:
        if step is not None:
            directory = os.path.join(directory, f"step-{step}")
            os.makedirs(directory, exist_ok=True)
            if step != _step:
                _step = step
                _saved.clear()
        if name is None:
            line = frames.user_line()
            name = "noname" if line is None else f"{os.path.basename(line.file)}.l{line.line}"
        torch.save(value, os.path.join(directory, f"{name}.{_saved[name]}"))
        _saved[name] += 1
    return tensor


def compare_tensors(tensor1: torch.Tensor, tensor2: torch.Tensor, rtol: float = 1e-05, atol: float = 1e-08, max_diffs: int = 25) -> str:
    """A line for each place where two tensors differ by more than ``atol + rtol * abs(tensor2)``, or where one only is nan."""
    if tensor1.shape != tensor2.shape:
        return f"shapes {list(tensor1.shape)} and {list(tensor2.shape)}\n"
    differ = ~torch.isclose(tensor1, tensor2.to(tensor1.dtype), rtol=rtol, atol=atol, equal_nan=True)
    places = differ.nonzero().tolist()
    lines = [f"at {place}: {tensor1[tuple(place)].item()} and {tensor2[tuple(place)].item()}\n" for place in places[:max_diffs]]
    if len(places) > max_diffs:
        lines.append(f"and at {len(places) - max_diffs} more of {differ.numel()}\n")
    return "".join(lines)


def tensor_file_compare(path1: str, path2: str, rtol: float = 1e-05, atol: float = 1e-08, max_diffs: int = 25) -> str:
    """``compare_tensors`` of two that were saved, headed by the first one's name; nothing if they are alike."""
    report = compare_tensors(torch.load(path1), torch.load(path2), rtol, atol, max_diffs)
    if not report:
        return ""
    name, number = os.path.basename(path1).rsplit(".", 1)
    step = re.fullmatch(r"step-(\d+)", os.path.basename(os.path.dirname(path1)))
    head = f"{name}, number {number}{f' of step {step[1]}' if step else ''}, differs:\n"
    return head + "".join(f"  {line}\n" for line in report.splitlines())


def compare(save_dir1: str, save_dir2: str, rtol: float = 1e-05, atol: float = 1e-08, max_diffs: int = 25) -> str:
    """What differs between two directories of saved tensors; nothing if they are alike."""
    there, here = _tensors(save_dir1), _tensors(save_dir2)
    report = []
    for path in sorted(there | here):
        if path not in here:
            report.append(f"{path} is in {save_dir1} only\n")
        elif path not in there:
            report.append(f"{path} is in {save_dir2} only\n")
        else:
            report.append(tensor_file_compare(os.path.join(save_dir1, path), os.path.join(save_dir2, path), rtol, atol, max_diffs))
    return "".join(report)


def _tensors(directory: str) -> set[str]:
    paths = (os.path.join(root, name) for root, _, names in os.walk(directory) for name in names if re.search(r"\.\d+$", name))
    return {os.path.relpath(path, directory) for path in paths}


__getattr__ = _later.getter("torch_xla.debug.model_comparator")
