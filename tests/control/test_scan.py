"""``scan`` is the loop in Python: values, gradients of all that it touches, random numbers; and says so where it can't be."""

import gc
import weakref

import pytest
import torch
from functorch.compile import default_partition, min_cut_rematerialization_partition
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

import surestep
from both import compare
from surestep.control.scan import scan
from unrolled import scanned, total

D = torch.float64


def tensor(*sizes, seed=0, grad=True):
    values = torch.randn(*sizes, dtype=D, generator=torch.Generator().manual_seed(seed))
    return values.requires_grad_(grad)


def on(device, value):
    return tree_map(lambda t: t.detach().clone().to(device).requires_grad_(t.requires_grad) if isinstance(t, torch.Tensor) else t, value)


def same(make, init, xs, outside=(), **options):
    """``make(*outside)`` gives a function; the loop over it on the CPU and the scan give the same, gradients too."""
    found = []
    for device, how in (("cpu", scanned), ("xla", lambda *given: scan(*given, **options))):
        first, stacks, others = on(device, (init, xs, outside))
        carry, ys = how(make(*others), first, stacks)
        loss = total(carry, ys)
        if isinstance(loss, torch.Tensor):
            loss.backward()
        grads = [leaf.grad for leaf in tree_leaves((first, stacks, others)) if isinstance(leaf, torch.Tensor)]
        wants = [leaf.requires_grad for leaf in tree_leaves((carry, ys)) if isinstance(leaf, torch.Tensor)]
        found.append((tree_map(lambda t: t.detach() if isinstance(t, torch.Tensor) else t, (carry, ys)), grads, wants))
    compare(*found, strides=False, rtol=1e-9, atol=1e-9)


def recurrent(weight, inner, bias):
    outer = inner * 2  # a tensor with a graph of its own, which is read with the one that it hangs on
    return lambda h, x: ((n := torch.tanh(h @ weight + x @ outer.t() + inner.sum() + bias)), (n * x).sum(-1))


WAYS = {
    "kept": {"partition_fn": default_partition},
    "again": {"partition_fn": min_cut_rematerialization_partition},
    "pure": {"is_fn_pure": True},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_recurrent_network(way):
    outside = tensor(3, 3, seed=1), tensor(3, 3, seed=2), tensor(3, seed=3)
    same(recurrent, tensor(2, 3), tensor(5, 2, 3, seed=4), outside, **WAYS[way])


def structured(scale):
    def fn(carry, x):
        total, (count, nothing) = carry["total"], carry["rest"]
        new = {"total": total * scale + x[0].sum(0), "rest": (count + 1, nothing)}
        return new, [x[1]["a"] * total, None, {"count": count, "detached": total.detach()}]

    return fn


FUNCTIONS = {
    "nested": (
        structured,
        {"total": tensor(2), "rest": (torch.tensor(0), None)},
        (tensor(4, 3, 2, seed=1), {"a": tensor(4, 2, seed=2)}),
        (tensor(2, seed=3),),
    ),
    "no gradient at first": (
        lambda w: lambda c, x: (c + w * x, c),
        tensor(2, grad=False),
        tensor(3, 2, grad=False, seed=1),
        (tensor(2, seed=2),),
    ),
    "a carry begun anew": (lambda: lambda c, x: (x * 2, c * x), tensor(2), tensor(3, 2, seed=1), ()),
    "a carry that gets none": (
        lambda: lambda c, x: ((c[0] * x, c[1] + 1.0), c[1]),
        (tensor(2), tensor(2, grad=False)),
        tensor(3, 2, seed=1),
        (),
    ),
    "handed through": (lambda w: lambda c, x: (c, (w, x, c)), tensor(2), tensor(3, 2, seed=1), (tensor(2, seed=2),)),
    "of one round": (lambda: lambda c, x: (c * x, c + x), tensor(2), tensor(1, 2, seed=1), ()),
    "without gradients": (lambda: lambda c, x: (c * x, c + x), tensor(2, grad=False), tensor(3, 2, grad=False, seed=1), ()),
    "integers": (lambda: lambda c, x: (c + x, c * x), torch.tensor([1, 2]), torch.arange(6).reshape(3, 2), ()),
    "constants made inside": (
        lambda: lambda c, x: (c + torch.tensor([1.0, 2.0], dtype=D, device=c.device), x),
        tensor(2),
        tensor(3, 2, seed=1),
        (),
    ),
    "in place inside": (lambda: lambda c, x: ((n := c.clone()).add_(x).mul_(c), n[:1] * 2), tensor(2), tensor(3, 2, seed=1), ()),
    "views": (
        lambda w: lambda c, x: (c + (w.t() @ x.view(2, 2).t())[0], w[1:] * c),
        tensor(2),
        tensor(3, 4, seed=1),
        (tensor(2, 2, seed=2),),
    ),
    "no result": (lambda: lambda c, x: (torch.cos(c) + x, None), tensor(2), tensor(3, 2, seed=1), ()),
    "an empty result": (lambda: lambda c, x: (torch.cos(c) + x, ()), tensor(2), tensor(3, 2, seed=1), ()),
    "numbers of the host": (lambda: lambda c, x: (c * torch.tensor(3.0, dtype=D) + 2, x), tensor(2), tensor(3, 2, seed=1), ()),
    "a slice that isn't contiguous": (
        lambda: lambda c, x: (c + x.sum(), x @ x),
        tensor(2),
        tensor(2, 2, 3, seed=1).detach().permute(2, 0, 1),
        (),
    ),
    "complex": (
        lambda: lambda c, x: (torch.view_as_real(torch.view_as_complex(c) * torch.view_as_complex(x)), c),
        tensor(2, 2),
        tensor(3, 2, 2, seed=1),
        (),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("way", ["kept", "again"])
def test_functions_of_all_kinds(name, way):
    same(*FUNCTIONS[name], **WAYS[way])


@settings(max_examples=8, deadline=None)
@given(
    length=st.integers(1, 4),
    rows=st.integers(0, 3),
    columns=st.integers(1, 3),
    grads=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
def test_shapes_lengths_and_gradients(length, rows, columns, grads):
    first, second, third = grads
    same(
        lambda w: lambda c, x: (torch.sin(c @ w) + x, (c * x).sum(0)),
        tensor(rows, columns, grad=first),
        tensor(length, rows, columns, seed=1, grad=second),
        (tensor(columns, columns, seed=2, grad=third),),
    )


def test_no_rounds():
    init = torch.ones(2, device="xla", requires_grad=True)
    carry, ys = scan(lambda c, x: (c * x, x), init, torch.ones(0, 2, device="xla"))
    carry.sum().backward()
    assert ys.shape == (0, 2) and carry.tolist() == [1, 1] and init.grad.tolist() == [1, 1]


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(w)
        return x * w * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0] * 2, grad.sum() * 0 + 1


def test_custom_functions_that_read_from_outside():
    same(lambda w: lambda c, x: (Double.apply(c, w) + x * w, c), tensor(2), tensor(3, 2, seed=1), (tensor(1, seed=2).sum(),))
    w = torch.ones((), device="xla", requires_grad=True)
    scaled = w * 2
    with pytest.raises(RuntimeError, match="takes a tensor from outside that has a graph of its own"):
        scan(lambda c, x: (Double.apply(c, scaled), None), torch.ones(2, device="xla"), torch.ones(2, 2, device="xla"))


def test_a_scan_in_a_scan():
    def make(w, scale):
        hidden = torch.tanh(w)

        def outer(c, x):
            inner, ys = (scanned if c.device.type == "cpu" else scan)(lambda d, y: (d * hidden + y * scale * c, d), c, x)
            return inner, ys.sum(0) * hidden

        return outer

    same(make, tensor(2), tensor(3, 2, 2, seed=1), (tensor(2, seed=2), tensor(2, seed=3)))


def test_hooks_see_the_whole_gradient_once():
    w = torch.ones(2, device="xla", requires_grad=True)
    seen = []
    w.register_hook(lambda grad: seen.append(grad) or grad * 2)
    scan(lambda c, x: (c + w * x, None), torch.zeros(2, device="xla"), torch.ones(3, 2, device="xla"))[0].sum().backward()
    assert [each.tolist() for each in seen] == [[3, 3]] and w.grad.tolist() == [6, 6]


def test_checkpoint_inside():
    def make(w):
        def part(c, x):
            return torch.dropout(torch.sin(c @ w), 0.5, True) + x

        return lambda c, x: (torch.utils.checkpoint.checkpoint(part, c, x, use_reentrant=False), None)

    init, xs, w = on("xla", (tensor(2, 3), tensor(4, 2, 3, seed=1), tensor(3, 3, seed=2)))
    results = []
    for how in (scan, scanned):
        surestep.manual_seed(5)
        carry, _ = how(make(w), init, xs)
        results.append([carry.detach(), *torch.autograd.grad(carry.sum(), [init, xs, w])])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


# Random numbers


@pytest.mark.parametrize("way", ["again", "pure"])
def test_random_numbers_are_those_of_the_loop(way):
    def fn(c, x):
        return torch.nn.functional.dropout(c, 0.5) * 0.9 + x, torch.rand_like(x) * c

    init, xs = on("xla", (tensor(8), tensor(2, 8, seed=1)))
    results = []
    for how in (scanned, lambda *each: scan(*each, **WAYS[way])):
        surestep.manual_seed(3)
        torch.rand(3, device="xla")
        found = []
        for _ in range(2 if way == "pure" else 1):  # the second time they are others, and the function isn't run
            carry, ys = how(fn, init, xs)
            found += [carry, ys, *torch.autograd.grad((carry.sum() + (ys**2).sum()), [init, xs])]
        results.append([each.detach() for each in (*found, torch.rand(2, device="xla"))])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_a_generator_of_ones_own():
    generator = surestep.Generator("xla").manual_seed(1)
    xs = torch.zeros(3, 2, device="xla")
    _, ys = scan(lambda c, x: (c, x + torch.rand(2, device="xla", generator=generator)), xs[0], xs)
    generator.manual_seed(1)
    assert torch.equal(ys, torch.stack([torch.rand(2, device="xla", generator=generator) for _ in range(3)]))
    with pytest.raises(RuntimeError, match="generator of the CPU"):
        host = torch.Generator()
        scan(lambda c, x: (c, x + torch.rand(2, device="xla", generator=host)), xs[0], xs)


# In a training step


def test_one_program_a_step_and_nothing_is_compiled_anew(metrics):
    net = nn.Linear(3, 3).to("xla")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    xs, losses = torch.ones(4, 2, 3, device="xla"), []
    surestep.sync()
    surestep.clear_metrics()
    for scale in (1.0, 1.0, 2.0, 3.0):  # a number that changes costs one program more

        def fn(c, x, scale=scale):
            return torch.tanh(net(c)) * scale + x, None

        with surestep.step():
            optimizer.zero_grad()
            loss = scan(fn, torch.zeros(2, 3, device="xla"), xs)[0].square().mean()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert metrics().run.count == 4 and metrics().compile.count <= 3
    assert len(set(losses)) == 4


def test_loops_that_differ_in_a_number_are_one_program_from_the_start(metrics):
    xs = torch.ones(3, 2, device="xla")
    surestep.sync()
    surestep.clear_metrics()
    for _ in range(3):
        with surestep.step():
            first, _ = scan(lambda c, x: (c * 0.9 + x, None), xs[0], xs)
            kept = scan(lambda c, x: (c * 0.5 + x, None), first, xs)[0]
    assert metrics().compile.count == 1 and metrics().run.count == 3 and kept.shape == (2,)


def test_bodies_that_differ_are_told_apart():
    xs = torch.ones(3, 2, device="xla")
    found = [
        scan(fn, xs[0], xs)[0].tolist() for fn in (lambda c, x: (c + x, None), lambda c, x: (c * 2 + x, None), lambda c, x: (c + x, c))
    ]
    assert found == [[4, 4], [15, 15], [4, 4]]
    ys = [scan(fn, xs[0], xs)[1] for fn in (lambda c, x: (c + x, c * 3), lambda c, x: (c + x, c * 3 + 0 * x))]
    assert ys[0].tolist() == ys[1].tolist() == [[3, 3], [6, 6], [9, 9]]


def test_autocast():
    net = nn.Linear(4, 4).to("xla")
    xs = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0)).to("xla")
    results = []
    for how in (scanned, scan):
        with torch.autocast("xla", dtype=torch.bfloat16):
            carry, ys = how(lambda c, x: (c + net(x).float().tanh(), net(c)), torch.zeros(2, 4, device="xla"), xs)
        results.append([ys.dtype, carry.detach(), ys.detach(), *torch.autograd.grad(carry.sum() + ys.float().sum(), net.parameters())])
    assert results[0][0] is results[1][0] is torch.bfloat16
    for a, b in zip(results[0][1:], results[1][1:], strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)


def test_what_is_kept_is_no_more_than_the_graph_would_keep():
    """The weight that all rounds read isn't kept once a round; with the other partition nothing is but the carries."""
    from surestep.control.recording import Input, recorded
    from surestep.tensor import record
    from surestep.trace.nested import kept_values

    w = torch.ones(64, 64, device="xla", requires_grad=True)
    layout = record._dense((2, 64), torch.float32)
    found, _ = recorded("test", w._storage.trace, lambda t: [torch.sin(t[0] @ w.t()).exp()], [Input(layout, True)], True, None)
    kept, anew = (kept_values(found.nested, 1, again) for again in (False, True))
    assert len(kept.values) == 3 and len(anew.values) == 1 and anew.again  # the carry, sin's operand, and exp's result


def test_memory_of_a_program():
    """A round of ten sines keeps what each of them reads; or, computed again, the carry only."""

    def sines(c, x):
        for _ in range(10):
            c = torch.sin(c)
        return c + x, None

    found = []
    for way in ("kept", "again"):
        c = torch.ones(64, 1024, device="xla", requires_grad=True)
        with surestep.step():
            scan(sines, c, torch.ones(8, 1, device="xla"), **WAYS[way])[0].sum().backward()
        found.append(c._storage.trace.ran.executable.memory_analysis().temp_size_in_bytes)
    assert found[0] < 10 * 9 * c.nbytes and found[1] < 12 * c.nbytes


def test_memory_of_what_was_recorded_is_given_back():
    xs = torch.ones(2, 2, device="xla")
    w = torch.ones(2, device="xla", requires_grad=True)
    alive = weakref.ref(w)
    carry, _ = scan(lambda c, x, w=w: (c * w + x, None), xs[0], xs)
    carry.sum().backward()
    del w, carry
    gc.collect()
    surestep.sync()
    assert alive() is None


# Errors


def stack():
    return torch.ones(3, 2, device="xla")


ERRORS = {
    "fn is no function": (ValueError, "must be callable", lambda: scan(1, stack()[0], stack())),
    "first sizes": (
        ValueError,
        r"same first size.*xs\[0\] of shape \[3, 2\]",
        lambda: scan(lambda c, x: (c, x), stack()[0], (stack(), stack()[:2])),
    ),
    "no first size": (ValueError, "same first size", lambda: scan(lambda c, x: (c, x), stack()[0], stack()[0, 0])),
    "no xs": (ValueError, "no tensors", lambda: scan(lambda c, x: (c, x), stack()[0], [])),
    "structure": (ValueError, "keep its structure", lambda: scan(lambda c, x: ((c, c), x), stack()[0], stack())),
    "shape": (
        ValueError,
        r"init\['a'\] is float32\[2\], and what fn returned for it is float32\[1, 2\]",
        lambda: scan(lambda c, x: ({"a": c["a"][None]}, x), {"a": stack()[0]}, stack()),
    ),
    "dtype": (ValueError, r"float32\[2\].*float64\[2\]", lambda: scan(lambda c, x: (c.double(), x), stack()[0], stack())),
    "one result": (ValueError, "two things", lambda: scan(lambda c, x: c, stack()[0], stack())),
    "a number": (TypeError, r"the result is a int", lambda: scan(lambda c, x: (c, 1), stack()[0], stack())),
    "a CPU tensor": (TypeError, r"init is a tensor on cpu", lambda: scan(lambda c, x: (c, x), torch.ones(2), stack())),
    "a value read": (
        RuntimeError,
        "a value was read, inside of the function .*test_scan.py",
        lambda: scan(lambda c, x: (c * x.sum().item(), x), stack()[0], stack()),
    ),
    "a boundary": (
        RuntimeError,
        "sync, inside of the function",
        lambda: scan(lambda c, x: (surestep.sync(), (c, x))[1], stack()[0], stack()),
    ),
    "a partition": (ValueError, "AOTAutograd", lambda: scan(lambda c, x: (c, x), stack()[0], stack(), partition_fn=len)),
    "a slice overwritten": (
        RuntimeError,
        r"writes in place to its slice of xs",
        lambda: scan(lambda c, x: (c + x.add_(1), x), stack()[0], stack()),
    ),
    "a seed": (
        RuntimeError,
        "sets a seed",
        lambda: scan(lambda c, x: (torch.manual_seed(3), (c, torch.rand_like(x)))[1], stack()[0], stack()),
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    kind, message, call = ERRORS[name]
    before = torch.ones(2, device="xla") * 3
    with pytest.raises(kind, match=message):
        call()
    assert (before + 1).tolist() == [4, 4]  # the trace around goes on as if nothing had been


def test_writes_to_tensors_from_outside_are_errors():
    xs, seen, made = stack(), torch.zeros(2, device="xla"), torch.empty(2, device="xla")
    net = nn.Linear(2, 2).to("xla")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def steps(c, x):
        net.weight.grad = torch.ones_like(net.weight)
        optimizer.step()
        return c, x

    for write in (
        lambda c, x: (c, seen.add_(x)),
        lambda c, x: (c, made.copy_(x)),
        lambda c, x: (c, seen.copy_(torch.ones(2)) + x),
        lambda c, x: (c, seen[0].fill_(1) + x),
        steps,
    ):
        with (
            torch.no_grad(),
            pytest.raises(RuntimeError, match=r"writes in place to a tensor of shape .* from outside of it \(.*test_scan.py"),
        ):
            scan(write, xs[0], xs)
    assert seen.tolist() == [0, 0]


def test_the_carry_may_be_overwritten_and_init_stays():
    init, xs = torch.zeros(1, device="xla"), torch.tensor([[1.0], [2.0], [3.0]], device="xla")

    def cumsum(total, x):
        total += x
        return total, total

    carry, ys = scan(cumsum, init, xs)
    assert carry.item() == 6 and ys.flatten().tolist() == [1, 3, 6] and init.item() == 0


def test_what_is_taken_out_of_the_function_says_so():
    kept = []
    scan(lambda c, x: (kept.append(c * x) or c, x), torch.ones(2, device="xla"), stack())
    with pytest.raises(RuntimeError, match="made inside of scan's function"):
        kept[0].tolist()


def test_backward_inside_is_an_error():
    w = torch.ones(2, device="xla", requires_grad=True)

    def fn(c, x):
        (w * x).sum().backward()
        return c * w, None

    for function in (fn, lambda c, x: (fn(c, x)[0].detach(), None)):
        with pytest.raises(RuntimeError, match="calls backward"):
            scan(function, torch.ones(2, device="xla"), stack())


def test_what_was_overwritten_before_backward_is_pytorchs_error():
    w = torch.ones(2, device="xla", requires_grad=True)
    carry, _ = scan(lambda c, x: (c * w + x, None), torch.ones(2, device="xla"), stack())
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        carry.sum().backward()


def test_a_derivative_of_the_derivative_is_an_error():
    x = torch.ones(2, device="xla", requires_grad=True)
    with pytest.raises(NotImplementedError, match="derivative of its derivative"):
        torch.autograd.grad(scan(lambda c, y: (c * c + y, None), x, stack())[0].sum(), x, create_graph=True)


def test_an_interrupt_inside_leaves_the_trace_around_as_it_was():
    pending = torch.ones(2, device="xla") * 3

    def interrupted(c, x):
        c = c * pending
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scan(interrupted, torch.ones(2, device="xla"), stack())
    assert (pending + 1).tolist() == [4, 4] and scan(lambda c, x: (c * pending, x), pending, stack())[0].tolist() == [81, 81]


def test_eager_mode():
    from surestep.loop.eager import eager_mode_context

    with eager_mode_context(True):
        assert scan(lambda c, x: (c * 2 + x, c), torch.ones(2, device="xla"), stack())[0].tolist() == [15, 15]
