"""What `compile` does around a step: boundaries, options, errors, threads, and what it tells."""

from __future__ import annotations

import copy
import logging
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import surestep
import surestep.torch_xla.core.xla_model as xm

SCALE = 1.0


@pytest.fixture
def net():
    torch.manual_seed(0)
    return nn.Linear(3, 2).to("xla")


def x(rows=2):
    return torch.ones(rows, 3, device="xla")


def runs(function):
    return sum(plan.runs for plans in function.plans.values() for plan in plans)


def counted(function, *args, calls=1):
    surestep.sync()
    surestep.clear_metrics()
    for _ in range(calls):
        function(*args)
    return surestep.metrics()


def test_a_replay_is_one_run_and_no_recording(net):
    @surestep.compile
    def step(value):
        return net(value).detach()

    value = x()
    for _ in range(3):
        step(value)
    found = counted(step, value, calls=5)
    assert (found.run.count, found.replays, found.steps, found.compile.count) == (5, 5, 5, 0)
    assert not found.boundaries and not found.implicit


@pytest.mark.parametrize("call", [xm.optimizer_step, lambda optimizer: xm.optimizer_step(optimizer=optimizer, barrier=True)])
def test_the_step_of_torch_xla(call, net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    @surestep.compile
    def step(value):
        optimizer.zero_grad()
        net(value).square().sum().backward()
        call(optimizer)

    value = x()
    for _ in range(3):
        step(value)
    assert counted(step, value, calls=5).replays == 5


@pytest.mark.parametrize(
    "make",
    [
        lambda f: surestep.compile(f),
        lambda f: surestep.compile()(f),
        lambda f: surestep.compile(full_graph=True)(f),
        lambda f: surestep.compile(f, name="named"),
        lambda f: surestep.compile(f, num_different_graphs_allowed=3),
        lambda f: surestep.compile(surestep.compile(f)),
    ],
    ids=["function", "call", "options", "name", "old name", "twice"],
)
def test_forms(make, net):
    def step(value):
        """Its words."""
        return net(value).detach()

    compiled = make(step)
    assert compiled.__doc__ == "Its words." and compiled.__wrapped__ is step
    for rows in (2, 2, 2, 2, 4):
        torch.testing.assert_close(compiled(x(rows)).cpu(), step(x(rows)).cpu())
    assert runs(compiled) == 2 or runs(compiled) == 1


def test_a_module(net):
    compiled = surestep.compile(net)
    with torch.no_grad():
        for _ in range(4):
            torch.testing.assert_close(compiled(x()).cpu(), net(x()).cpu())
    assert runs(compiled) > 0, surestep.explain(compiled)


def test_methods_know_their_object():
    class Scaled:
        def __init__(self, factor):
            self.factor = factor

        @surestep.compile
        def times(self, value):
            return value * self.factor

    one, two = Scaled(2.0), Scaled(3.0)
    for _ in range(4):
        assert one.times(x(1)).tolist() == [[2.0] * 3]
        assert two.times(x(1)).tolist() == [[3.0] * 3]
    one.factor = 5.0
    assert one.times(x(1)).tolist() == [[5.0] * 3]


def test_as_a_context_manager(net):
    surestep.sync()
    surestep.clear_metrics()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with surestep.compile(full_graph=True, name="block"):
        net(x()).sum().backward()
        optimizer.step()
    assert surestep.metrics().run.count == 1
    with (
        pytest.raises(surestep.GraphBreak, match="block was compiled with full_graph=True, but a value is read"),
        surestep.compile(full_graph=True, name="block"),
    ):
        float(net(x()).sum())


BREAKS = {
    "a value is read": lambda t: t.sum().item(),
    "a tensor is printed": lambda t: repr(t * 2),
    "there is a sync": lambda t: surestep.sync(),
    "there is a step": lambda t: surestep.step().__enter__(),
    "a shape depends on values": lambda t: t[t > 0],
    "an operation runs on the host": lambda t: torch.linalg.eig(t[:, :2]),
    "a value is read ": lambda t: bool((t > 0).all()),
}


@pytest.mark.parametrize("what", BREAKS)
def test_full_graph_names_the_line(what):
    @surestep.compile(full_graph=True)
    def step(value):
        kept = value + 1
        BREAKS[what](kept)
        return kept

    with pytest.raises(surestep.GraphBreak, match=what.strip()) as error:
        step(x())
    assert f"{__file__}:" in str(error.value)
    assert (x() + 1).tolist() == [[2.0] * 3] * 2  # the device goes on
    assert not surestep.tensor.devices.recorders()[0].in_step


def test_full_graph_allows_what_is_one_program(net):
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.001)

    @surestep.compile(full_graph=True)
    def step(value):
        optimizer.zero_grad()
        loss = net(value).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    losses = [step(x()).item() for _ in range(6)]
    assert losses == sorted(losses, reverse=True) and runs(step) > 0


def test_max_different_graphs():
    @surestep.compile(max_different_graphs=2, name="mine")
    def step(value, factor=1.0):
        return value * factor

    step(x(1)), step(x(2)), step(x(2))
    with pytest.raises(
        RuntimeError,
        match=r"mine would need more than max_different_graphs=2 programs: an argument was float32\[2, 3\], and is float32\[5, 3\]",
    ):
        step(x(5))
    assert step(x(1)).tolist() == [[1.0] * 3]
    with pytest.raises(ValueError, match="at least 1"):
        surestep.compile(step, max_different_graphs=0)


def test_max_different_graphs_names_what_was_recorded():
    config = {"square": False}

    @surestep.compile(max_different_graphs=1, name="mine")
    def step(value):
        return value.square() if config["square"] else value.exp()

    step(x())
    config["square"] = True
    with pytest.raises(RuntimeError, match=r"aten\.(pow|square).* where there was aten\.exp"):
        step(x())


def test_xla_options_reach_the_compiler():
    step = surestep.compile(lambda value: value * 3, custom_compile_options={"xla_no_such_option": True})
    with pytest.raises(Exception, match="xla_no_such_option"):
        step(x())
    step = surestep.compile(lambda value: value * 4, custom_compile_options={"xla_cpu_enable_fast_math": True})
    assert step(x(1)).tolist() == [[4.0] * 3]


def test_nested(net):
    inner = surestep.compile(lambda value: net(value).detach())

    @surestep.compile
    def outer(value):
        return inner(value) + inner(value)

    value = x()
    for _ in range(4):
        torch.testing.assert_close(outer(value).cpu(), 2 * net(value).detach().cpu())
    assert counted(outer, value).run.count == 1
    assert runs(outer) > 0, surestep.explain(outer)


def test_an_exception_leaves_all_readable(net):
    fail = {"now": False}
    state = torch.zeros(3, device="xla")

    @surestep.compile
    def step(value):
        state.add_(1)
        if fail["now"]:
            raise ValueError("mine")
        state.mul_(2)
        return net(value).detach()

    expected = torch.zeros(3)
    for call in range(8):
        fail["now"] = call in (1, 5)
        expected += 1
        try:
            step(x())
            expected *= 2
        except ValueError as error:
            assert str(error) == "mine"
        assert state.tolist() == expected.tolist()


def test_a_shape_error_is_pytorchs(net):
    step = surestep.compile(lambda value: net(value).detach())
    for _ in range(4):
        step(x())
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        step(torch.ones(2, 4, device="xla"))
    assert step(x()).shape == (2, 2)


def test_what_is_pending_outside_is_run_first(net):
    state = torch.zeros(3, device="xla")
    step = surestep.compile(lambda value: state.add_(value.sum(0)) * 1)
    for call in range(6):
        state.mul_(2)  # pending when the step is called
        expected = state.cpu() + 2
        assert step(x()).tolist() == expected.tolist(), call


def test_arguments_that_alias():
    step = surestep.compile(lambda a, b: (a.add_(1), b * 2)[1])
    for _ in range(4):
        assert step(torch.zeros(2, device="xla"), torch.ones(2, device="xla")).tolist() == [2.0, 2.0]
    one = torch.zeros(2, device="xla")
    assert step(one, one).tolist() == [2.0, 2.0]
    whole = torch.zeros(4, device="xla")
    assert step(whole[:2], whole[1:3]).tolist() == [2.0, 0.0]


def test_an_argument_is_written(net):
    step = surestep.compile(lambda total, value: total.add_(net(value).detach().sum()))
    total, expected = torch.zeros((), device="xla"), 0.0
    for _ in range(6):
        assert step(total, x()) is total
        expected += net(x()).detach().sum().item()
    assert total.item() == pytest.approx(expected, rel=1e-6)
    assert runs(step) > 0, surestep.explain(step)


def test_views_as_arguments(net):
    step = surestep.compile(lambda value: net(value).detach())
    data = torch.arange(24.0, device="xla").reshape(8, 3)
    for row in range(0, 8, 2):
        torch.testing.assert_close(step(data[row : row + 2]).cpu(), net(data[row : row + 2]).detach().cpu())
    for _ in range(5):
        torch.testing.assert_close(step(data[2:4]).cpu(), net(data[2:4]).detach().cpu())


def test_host_batches_are_sent_each_time(net):
    @surestep.compile
    def step(value):
        return net(value.to("xla")).detach()

    for call in range(6):
        value = torch.full((2, 3), float(call))
        torch.testing.assert_close(step(value).cpu(), net(value.to("xla")).detach().cpu())
    assert runs(step) > 0, surestep.explain(step)


def test_results_are_tensors_of_their_own(net):
    step = surestep.compile(lambda value: (net(value).detach(), value, {"n": 3, "view": net(value).detach()[0]}))
    value = x()
    results = [step(value) for _ in range(5)]
    assert all(result[1] is value and result[2]["n"] == 3 for result in results)
    results[3][0].zero_()
    torch.testing.assert_close(results[4][0].cpu(), net(value).detach().cpu())
    torch.testing.assert_close(results[4][2]["view"].cpu(), net(value).detach()[0].cpu())


def test_random_numbers_are_those_of_plain_steps():
    def step(value):
        return F.dropout(value, 0.5) + torch.rand_like(value)

    compiled = surestep.compile(step)
    value = torch.ones(50, device="xla")
    torch.manual_seed(3)
    expected = [step(value).tolist() for _ in range(8)]
    torch.manual_seed(3)
    assert [compiled(value).tolist() for _ in range(8)] == expected
    assert runs(compiled) > 0, surestep.explain(compiled)
    torch.manual_seed(3)
    assert [compiled(value).tolist() for _ in range(8)] == expected


def test_autocast_inside_and_outside(net):
    @surestep.compile
    def step(value):
        with torch.autocast("xla", dtype=torch.bfloat16):
            return net(value).detach()

    plain = surestep.compile(lambda value: net(value).detach())
    for _ in range(4):
        assert step(x()).dtype is torch.bfloat16
        assert plain(x()).dtype is torch.float32
    with torch.autocast("xla", dtype=torch.bfloat16):
        assert plain(x()).dtype is torch.bfloat16
    assert runs(step) > 0 and runs(plain) > 0


def test_modes_around(net):
    def step(value):
        return net(value)

    compiled = surestep.compile(step)
    with torch.no_grad():
        for _ in range(4):
            assert not compiled(x()).requires_grad
    result = compiled(x())
    assert result.requires_grad
    result.sum().backward()
    assert net.weight.grad is not None


def test_what_saved_a_parameter_hears_of_the_step(net):
    """PyTorch's own error where a graph needs a value that a step has overwritten."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    @surestep.compile
    def step(value):
        optimizer.zero_grad()
        loss = net(value).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for _ in range(4):
        step(x())
    outside = net(x().requires_grad_()).sum()
    step(x())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outside.backward()


def accumulating(net, **options):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(value, last):
        loss = net(value).square().mean()
        loss.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad(**options)
        return loss.detach()

    return step


@pytest.mark.parametrize("options", [{}, {"set_to_none": False}], ids=["to none", "to zero"])
def test_micro_batches_that_end_with_zero_grad(net, options):
    """Each kind of micro-batch is replayed: also the one that uses up the gradients that a replay of another made."""
    expected = accumulating(copy.deepcopy(net).cpu(), **options)
    compiled = surestep.compile(accumulating(net, **options))
    for number in range(18):
        value, last = torch.full((2, 3), 0.1 * number), number % 3 == 2
        torch.testing.assert_close(compiled(value.to("xla"), last).cpu(), expected(value, last))
    kinds = [plan.runs for plans in compiled.plans.values() for plan in plans]
    assert len(kinds) >= 2 and all(kinds) and sum(kinds) == 18 - compiled.recorded
    assert counted(compiled, x(), False).replays == counted(compiled, x(), True).replays == 1


HOLDS = {
    "itself": lambda grad: grad,
    "alias": lambda grad: grad.detach(),
    "view": lambda grad: grad[0],
    "graph": lambda grad: (grad * torch.ones(3, device=grad.device, requires_grad=True)).sum(),
}


@pytest.mark.parametrize("hold", HOLDS.values(), ids=HOLDS)
@pytest.mark.parametrize("used_up", [True, False], ids=["used up", "made anew"])
def test_a_gradient_that_somebody_holds(net, hold, used_up):
    """It is what it is in PyTorch, though later replays use up gradients or make new ones."""

    def run(net, compile):
        def step(value):
            if not used_up:
                net.zero_grad()
            loss = net(value).square().mean()
            loss.backward()
            if used_up:
                net.zero_grad()
            return loss.detach()

        def call(number):
            if used_up:
                net(torch.ones(2, 3, device=device)).sum().backward()
                surestep.sync()
            held = hold(net.weight.grad) if number == 6 else None
            surestep.sync()
            step(torch.full((2, 3), 0.1 * number, device=device))
            return held

        device, step = net.weight.device, compile(step)
        held = [call(number) for number in range(9)][6]
        if held.grad_fn is not None and not used_up:  # else PyTorch refuses: what it needs was added to
            held.backward()
        return held.detach().cpu(), step

    expected, _ = run(copy.deepcopy(net).cpu(), lambda step: step)
    found, step = run(net, surestep.compile)
    torch.testing.assert_close(found, expected)
    assert runs(step) >= 4


def test_threads(net):
    step = surestep.compile(lambda value: net(value).detach().sum())
    value = x()
    for _ in range(3):
        step(value)
    expected = step(value).item()
    found, errors = [], []

    def work():
        try:
            for _ in range(30):
                found.append(step(value).item())
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and found == [expected] * 120


def test_threads_that_record_meanwhile(net):
    """Another thread's operations never become part of a plan."""
    other, stop = torch.zeros(3, device="xla"), threading.Event()

    def work():
        while not stop.is_set():
            other.add_(1)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        step = surestep.compile(lambda value: net(value).detach())
        value = x()
        expected = net(value).detach().cpu()
        for _ in range(20):
            torch.testing.assert_close(step(value).cpu(), expected)
    finally:
        stop.set()
        thread.join()
    before = other.tolist()
    step(value)
    assert other.tolist() == before


def test_it_is_told_once(net, caplog):
    calls = []

    @surestep.compile
    def step(value):
        calls.append(1)
        return net(value).detach()

    with caplog.at_level(logging.WARNING, "surestep"):
        for _ in range(20):
            step(x())
    told = [record.getMessage() for record in caplog.records if "recorded again at each call" in record.getMessage()]
    assert len(told) == 1
    assert f"{__file__}:" in told[0] and "step is recorded again" in told[0]
    assert "not replayed" in surestep.explain(step)


def test_what_changes_at_each_call_is_told(net, caplog):
    def step(value):
        return net(value).detach() * SCALE

    compiled = surestep.compile(step)
    global SCALE
    with caplog.at_level(logging.WARNING, "surestep"):
        for call in range(30):
            SCALE = float(call)
            torch.testing.assert_close(compiled(x()).cpu(), step(x()).cpu())
    assert "SCALE was" in caplog.text
    SCALE = 1.0
    for _ in range(60):
        compiled(x())
    assert runs(compiled) > 0  # it came to rest, and is replayed after all


def test_explain(net):
    step = surestep.compile(lambda value: net(value).detach(), name="forward")
    assert "0 program(s)" in surestep.explain(step)
    for _ in range(5):
        step(x())
    text = surestep.explain(step)
    assert "forward: 1 program(s)" in text and "replayed 3 time(s)" in text and "holds" in text
    net.weight.requires_grad_(False)
    assert "requires_grad is False" in surestep.explain(step)
    with pytest.raises(TypeError, match="what compile\\(\\) returned"):
        surestep.explain(print)


def test_the_drop_in_has_it():
    import surestep.torch_xla as torch_xla

    assert torch_xla.compile is surestep.compile
