"""sync, step, and the boundaries that nobody wrote."""

import pytest
import torch
from torch import nn

import surestep
from both import compare
from surestep.loop import boundaries
from surestep.observe.events import Cause


def report(device, steps, between=lambda: None, after=lambda: None, read=False):
    """The loop of the report that started this: a missing sync() must not cost a weight update."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    x, target = torch.randn(16, 32), torch.ones(16, 1)
    model, x, target = model.to(device), x.to(device), target.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        loss = nn.functional.mse_loss(model(x), target)
        loss.backward()
        between()
        optimizer.step()
        optimizer.zero_grad()
        after()
        if read:
            loss.item()
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("read", [False, True])
def test_the_reported_loop_trains_broken_and_fixed(read, metrics):
    truth = report("cpu", 10)
    compare(truth, report("xla", 10, read=read), rtol=1e-4, atol=1e-6)
    assert metrics().compile.count <= 3
    compare(truth, report("xla", 10, surestep.sync, surestep.sync, read), rtol=1e-4, atol=1e-6)
    compare(truth, report("xla", 10, lambda: surestep.sync(wait=True)), rtol=1e-4, atol=1e-6)


def test_the_broken_loop_run_long_compiles_no_more():
    report("xla", 3)
    surestep.clear_metrics()
    report("xla", 300)
    assert surestep.metrics().compile.count == 0 and surestep.metrics().boundaries[Cause.OPTIMIZER_STEP] == 300


def test_a_step_is_one_program(metrics):
    torch.manual_seed(0)
    model = nn.Linear(4, 2).to("xla")
    optimizer, other = torch.optim.SGD(model.parameters(), 0.1), torch.optim.SGD(model.parameters(), 0.1)
    x = torch.ones(3, 4).to("xla")
    for _ in range(3):
        with surestep.step():
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
            other.step()
            surestep.optimizer_step(optimizer)
    assert metrics().compile.count == 1 and metrics().run.count == 3 and metrics().implicit.total() == 0 and metrics().bytes_out.count == 0


def test_two_optimizers_outside_a_step_are_two_programs_an_iteration(metrics):
    model = nn.Linear(4, 2).to("xla")
    optimizers = [torch.optim.SGD([model.weight], 0.1), torch.optim.SGD([model.bias], 0.1)]
    for _ in range(3):
        model.zero_grad()
        model(torch.ones(3, 4).to("xla")).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    assert metrics().run.count == 6 and metrics().boundaries == {Cause.OPTIMIZER_STEP: 6}


def test_nested_steps_are_part_of_the_outer_one(metrics):
    x = torch.zeros(2).to("xla")
    with surestep.step():
        x.add_(1)
        with surestep.step():
            x.add_(2)
        x.add_(3)
    assert metrics().run.count == 1 and x.tolist() == [6, 6]


def test_an_exception_in_a_step_ends_it(metrics):
    x = torch.zeros(2).to("xla")
    with pytest.raises(ZeroDivisionError), surestep.step():
        x.add_(1)
        1 / 0
    assert metrics().boundaries == {Cause.STEP: 1}
    torch.optim.SGD([torch.nn.Parameter(x)], 0.1).step()
    with surestep.step():
        x.add_(1)
    assert x.tolist() == [2, 2]


def test_sync_inside_a_step_cuts_it(metrics):
    x = torch.zeros(2).to("xla")
    with surestep.step():
        x.add_(1)
        surestep.sync()
        x.add_(1)
    assert metrics().run.count == 2 and x.tolist() == [2, 2]


def test_optimizers_of_cpu_parameters_are_left_alone(metrics):
    x = torch.zeros(2).to("xla").add_(1)
    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    torch.optim.SGD([parameter], 0.1).step()
    assert metrics().boundaries.total() == 0 and x.tolist() == [1, 1]


def test_step_closures_get_values_after_the_step(metrics):
    seen = []
    x = torch.zeros(2).to("xla")
    for i in range(3):
        with surestep.step():
            x.add_(1)
            surestep.add_step_closure(lambda value, i: seen.append((i, value.tolist())), args=(x.clone(), i))
        assert len(seen) == i + 1
    assert seen == [(0, [1, 1]), (1, [2, 2]), (2, [3, 3])] and metrics().implicit.total() == 0


def test_a_closure_that_raises_is_not_lost_and_not_called_twice():
    calls = []

    def bad():
        calls.append(1)
        raise ValueError("from the closure")

    surestep.add_step_closure(bad)
    with pytest.raises(ValueError, match="from the closure"):
        surestep.sync()
    surestep.sync()
    assert calls == [1]


def test_no_closure_is_said():
    with pytest.raises(TypeError, match=r"a function to be called later, and its arguments in args=; this is 3"):
        surestep.add_step_closure(3)


def test_closures_on_another_thread_run_in_order():
    import threading

    done, seen = threading.Event(), []
    for i in range(3):
        surestep.add_step_closure(seen.append, args=(i,), run_async=True)
        surestep.sync()
    surestep.add_step_closure(done.set, run_async=True)
    surestep.sync()
    assert done.wait(10) and seen == [0, 1, 2]


def failed_on_another_thread():
    import threading

    reached = threading.Event()

    def bad():
        reached.set()
        raise ValueError("from the closure")

    surestep.add_step_closure(bad, run_async=True)
    surestep.sync()
    assert reached.wait(10)
    boundaries._worker().submit(int).result(10)  # what comes after it has run


@pytest.mark.parametrize("run_async", [False, True])
def test_what_fails_on_another_thread_is_raised_by_the_next_boundary(run_async):
    failed_on_another_thread()
    calls = []
    surestep.add_step_closure(calls.append, args=(1,), run_async=run_async)
    with pytest.raises(RuntimeError, match="a step closure that ran on another thread has failed: ValueError: from the closure") as raised:
        surestep.sync()
    assert isinstance(raised.value.__cause__, ValueError)
    surestep.sync()
    assert calls == []


def test_what_fails_after_the_last_boundary_is_told_at_the_end(capsys):
    failed_on_another_thread()
    boundaries._tell_failed()
    assert "in bad\n" in (said := capsys.readouterr().err) and said.endswith("ValueError: from the closure\n")
    boundaries._failed.clear()
