"""Rules on starting several processes."""

from __future__ import annotations

import ast

from surestep.lint import vocabulary as names
from surestep.lint.findings import Severity
from surestep.lint.program import Call, Function, Program
from surestep.lint.rules.rule import Found, Rule
from surestep.lint.values import XLA_DEVICE, merged

_ONE = "one process runs the function in place, so that nothing is started twice."


class DeviceBeforeLaunch(Rule):
    """`torch_xla.launch` and `xmp.spawn` start a process for each device, and each of them claims its own. A parent that has made an XLA
    device holds all of them: the children fail ("runtime is already initialized") or hang. Make devices in the launched function, and
    put models and tensors on them there.
    """

    code = "XLA301"
    name = "device-before-launch"
    severity = Severity.ERROR
    surestep = _ONE
    invalid = (
        """
import torch_xla
device = torch_xla.device()

def _mp_fn(index):
    train(device)

if __name__ == "__main__":
    torch_xla.launch(_mp_fn, args=())
""",
        """
import torch
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp

def _mp_fn(index):
    pass

def main():
    model = torch.nn.Linear(8, 1).to(xm.xla_device())
    xmp.spawn(_mp_fn, args=(model,))
""",
    )
    valid = (
        """
import torch_xla

def _mp_fn(index):
    device = torch_xla.device()

if __name__ == "__main__":
    torch_xla.launch(_mp_fn, args=())
""",
    )

    def check(self, program: Program) -> Found:
        """Device uses at module level and in the functions that launch, before the launch."""
        for call, after in _in_the_parent(program):
            if not after:
                yield self.found(
                    program,
                    call.node,
                    f"`{ast.unparse(call.node)}` runs in the parent, before its processes are started: it claims the devices that they "
                    f"need, and they "
                    "fail or hang. Move it into the launched function.",
                )


class DeviceAfterLaunch(Rule):
    """What is on an XLA device belongs to the process that put it there. In a multi-process script, the parent has no device of its own:
    using one outside of the launched function, after it too, starts a runtime that competes with the children's, and sees none of
    their tensors.
    """

    code = "XLA304"
    name = "device-outside-launch"
    surestep = _ONE
    invalid = (
        """
import torch, torch_xla

def _mp_fn(index):
    pass

if __name__ == "__main__":
    torch_xla.launch(_mp_fn, args=())
    print(torch.ones(2, device=torch_xla.device()))
""",
    )
    valid = DeviceBeforeLaunch.valid

    def check(self, program: Program) -> Found:
        """Device uses in the functions that launch, after the launch."""
        for call, after in _in_the_parent(program):
            if after:
                yield self.found(
                    program,
                    call.node,
                    f"`{ast.unparse(call.node)}` runs in the parent, which has no part in what the launched processes hold. Do it in "
                    f"the launched function, "
                    "and hand results back as files or CPU tensors.",
                )


def _in_the_parent(program: Program) -> list[tuple[Call, bool]]:
    """The first device uses in functions that the parent runs, and whether they come after the launch."""
    found: list[tuple[Call, bool]] = []
    for launch in program.launches:
        for function in {launch.function, program.module} - program.launched:
            calls = list(function.calls)
            at = calls.index(launch) if launch in calls else None
            uses = [(index, call) for index, call in enumerate(calls) if _uses_device(call) and not _handed_over(call, launch)]
            for index, call in uses:
                after = at is not None and index > at
                if not any(other.node is call.node or (was == after and other.function is function) for other, was in found):
                    found.append((call, after))
    return found


def _uses_device(call: Call) -> bool:
    if call.name in names.XLA_DEVICE:
        return True
    if call.method == "to":
        return XLA_DEVICE in merged([*call.arguments[:1], *call.keywords.values()]).device_tags
    return (
        XLA_DEVICE in call.keywords.get("device", merged([])).device_tags
        and (call.name or "").startswith("torch.")
        and call.name != "torch.device"
    )


def _handed_over(call: Call, launch: Call) -> bool:
    return any(call.node is part for argument in launch.node.args for part in ast.walk(argument)) and call.name not in names.XLA_DEVICE


class LaunchOutsideMain(Rule):
    """Started processes import the script again. A launch at module level that isn't under `if __name__ == "__main__":` would start
    processes in each of them: Python stops it with a RuntimeError about bootstrapping, or the import runs the launch anew.
    """

    code = "XLA302"
    name = "launch-outside-main"
    severity = Severity.ERROR
    surestep = _ONE
    invalid = (
        """
import torch_xla

def _mp_fn(index):
    pass

torch_xla.launch(_mp_fn, args=())
""",
    )
    valid = DeviceBeforeLaunch.valid

    def check(self, program: Program) -> Found:
        """Launches at module level without the condition."""
        for call in program.launches:
            if program.source.notebook is not None or call.function is not program.module:
                continue
            start_method = call.keyword("start_method")
            forks = call.has_stars or (isinstance(start_method, ast.Constant) and start_method.value == "fork")
            guarded = any(isinstance(frame.node, ast.If) and "__name__" in ast.unparse(frame.node.test) for frame in call.frames)
            if not forks and not guarded:
                yield self.found(
                    program,
                    call.node,
                    "Each started process imports this script, and would launch again. Write: `if __name__ == '__main__':` around it.",
                )


class LaunchOfClosure(Rule):
    """The launched function is pickled by its name for the new processes. A lambda, or a function defined inside of another, has no name
    that can be imported: the launch fails with `Can't pickle local object`. Define it at module level, and pass what it needs in
    `args`.
    """

    code = "XLA303"
    name = "launch-of-closure"
    severity = Severity.ERROR
    surestep = _ONE
    invalid = (
        """
import torch_xla
if __name__ == "__main__":
    torch_xla.launch(lambda index: print(index), args=())
""",
        """
import torch_xla
def main(config):
    def train(index):
        print(config)
    torch_xla.launch(train, args=())
""",
    )
    valid = DeviceBeforeLaunch.valid

    def check(self, program: Program) -> Found:
        """Lambdas and inner functions that are launched by pickling."""
        for call in program.launches:
            start_method = call.keyword("start_method")
            forks = call.has_stars or (isinstance(start_method, ast.Constant) and start_method.value == "fork")
            if program.source.notebook is not None or forks:
                continue
            for function in call.arguments[0].functions if call.arguments else ():
                if _is_local(function, program):
                    what = (
                        "A lambda"
                        if isinstance(function.node, ast.Lambda)
                        else f"`{function.name}`, which is defined inside of a function,"
                    )
                    yield self.found(
                        program,
                        call.node,
                        f"{what} can't be pickled for the new processes. Define it with `def` at module level, and pass what it needs "
                        f"in `args`.",
                    )


def _is_local(function: Function, program: Program) -> bool:
    if isinstance(function.node, ast.Lambda):
        return True
    return function.parent is not program.module and function.owner is None
