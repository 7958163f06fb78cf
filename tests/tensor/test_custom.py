"""Custom operators: lowered by their user, run by a kernel for all devices, or on the host."""

import itertools

import jax.numpy as jnp
import pytest
import torch

import surestep
from both import same, to_xla

numbers = itertools.count()


@pytest.fixture
def library():
    """A namespace of its own, and the library that defines operators in it."""
    name = f"custom{next(numbers)}"
    library = torch.library.Library(name, "DEF")
    library.name = name
    yield library
    library._destroy()


def scaling(**options):
    """``scale(x, by)``, with a gradient."""

    @torch.library.custom_op(f"custom{next(numbers)}::scale", mutates_args=(), **options)
    def scale(x: torch.Tensor, by: float) -> torch.Tensor:
        return x * by

    def keep(ctx, inputs, output):
        ctx.by = inputs[1]

    scale.register_autograd(lambda ctx, grad: (scale(grad, ctx.by), None), setup_context=keep)
    return scale


def test_a_lowering_is_part_of_the_program(metrics):
    scale = scaling(device_types="cpu")
    seen = []

    @surestep.lowering(scale._qualname)
    def lowered(x, by):
        seen.append(by)
        return x * by

    def trained(x):
        (grad,) = torch.autograd.grad(scale(x, 3.0).square().sum(), x, create_graph=True)
        grad.sum().backward()
        return grad, x.grad

    same(trained, torch.arange(3.0, requires_grad=True))
    assert set(seen) == {3.0} and type(seen[0]) is float
    assert metrics().fallbacks.total() == 0 and metrics().compile.count == 1
    assert lowered(2, 3) == 6  # the decorator gives the function back


def test_a_lowering_that_comes_after_the_first_call(metrics):
    scale, x = scaling(device_types="cpu"), torch.ones(2, device="xla")
    with pytest.warns(UserWarning, match="has no lowering"):
        scale(x, 2.0)
    assert metrics().fallbacks.total() == 1
    surestep.lowering(scale._qualname)(lambda x, by: x * by)
    assert scale(x, 2.0).tolist() == [2, 2] and metrics().fallbacks.total() == 1


def test_every_kind_of_argument_and_result(library):
    library.define(
        "mix(Tensor x, Tensor? y, Tensor[] zs, int n, str how, bool flip=False, *, float[] ws, ScalarType d) -> (Tensor, Tensor)"
    )
    library.define("split(Tensor x, int n) -> Tensor[]")
    seen = []

    @surestep.lowering(f"{library.name}::mix")
    def mix(x, y, zs, n, how, flip=False, *, ws, d):
        seen.append((y is None, len(zs), n, how, flip, ws, d))
        return x + sum(zs) * n, jnp.zeros((n, 2), jnp.int64)

    @surestep.lowering(f"{library.name}::split.default")
    def split(x, n):
        return [x[i::n] for i in range(n)]

    operators = getattr(torch.ops, library.name)
    x = torch.arange(4, device="xla")
    for y in (None, x):
        a, b = operators.mix(x, y, [x, x], 3, "so", True, ws=[0.5, 2.0], d=torch.float16)
        assert a.tolist() == [0, 7, 14, 21] and a.dtype is torch.int64 and b.shape == (3, 2)
    assert seen[0] == (True, 2, 3, "so", True, [0.5, 2.0], torch.float16) and not seen[-1][0]
    assert [part.tolist() for part in operators.split(x, 3)] == [[0, 3], [1], [2]]


def test_overloads_have_lowerings_of_their_own(library):
    library.define("f.one(Tensor x) -> Tensor")
    library.define("f.two(Tensor x, Tensor y) -> Tensor")
    with pytest.raises(ValueError, match=r"has the overloads one, two: name one"):
        surestep.lowering(f"{library.name}::f")
    surestep.lowering(f"{library.name}::f.one")(lambda x: -x)
    surestep.lowering(f"{library.name}::f.two")(lambda x, y: x - y)
    f, x = getattr(torch.ops, library.name).f, torch.ones(2, device="xla")
    assert f(x).tolist() == [-1, -1] and f(x, x).tolist() == [0, 0]


def test_an_operator_that_writes_is_served_by_the_one_that_returns(library):
    library.define("f(Tensor x, Tensor y) -> Tensor")
    library.define("f_(Tensor(a!) x, Tensor y) -> Tensor(a!)")
    surestep.lowering(f"{library.name}::f")(lambda x, y: x + 2 * y)
    x = torch.ones(3, device="xla")
    assert getattr(torch.ops, library.name).f_(x[1:], x[:2]) is not None
    assert x.tolist() == [1, 3, 3]


def test_a_fake_kernel_says_the_shape_and_is_held_to():
    scale = scaling(device_types="cpu")
    scale.register_fake(lambda x, by: x.new_empty(x.shape[0] + 1))
    surestep.lowering(scale._qualname)(lambda x, by: x * by)
    with pytest.raises(TypeError, match=r"gave float32\[2\] where PyTorch has float32\[3\]"):
        scale(torch.ones(2, device="xla"), 2.0)


def test_what_a_fake_kernel_raises_is_the_users():
    scale = scaling(device_types="cpu")

    @scale.register_fake
    def fake(x, by):
        torch._check(by > 0, lambda: "by must be positive")
        return torch.empty_like(x)

    surestep.lowering(scale._qualname)(lambda x, by: x * by)
    with pytest.raises(RuntimeError, match="by must be positive"):
        scale(torch.ones(2, device="xla"), -2.0)


def test_what_a_lowering_raises_is_the_users():
    scale = scaling(device_types="cpu")
    surestep.lowering(scale._qualname)(lambda x, by: x @ jnp.ones((7, 7)))
    with pytest.raises(TypeError, match="dot_general"):
        scale(torch.ones(2, 2, device="xla"), 2.0)
    assert torch.ones(2, device="xla").tolist() == [1, 1]


def test_mistakes_in_registering(library):
    library.define("f(Tensor x) -> Tensor")
    library.define("g_(Tensor(a!) x) -> ()")
    surestep.lowering(f"{library.name}::f")(lambda x: x)
    for operator, words in {
        f"{library.name}::f": "has a lowering already",
        "aten::add.Tensor": "PyTorch's own",
        f"{library.name}::h": "there is no operator",
        f"{library.name}.f": "write the operator as",
        f"{library.name}::f.other": "has the overloads default",
        f"{library.name}::g_": "overwrites its arguments",
    }.items():
        with pytest.raises(ValueError, match=words):
            surestep.lowering(operator)


def test_a_kernel_for_all_devices_runs_on_the_device(metrics):
    scale = scaling()
    same(lambda x: scale(x, 2.0).sum().backward() or x.grad, torch.ones(3, requires_grad=True))
    assert metrics().fallbacks.total() == 0

    @torch.library.custom_op(f"custom{next(numbers)}::bump", mutates_args=("x",))
    def bump(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    same(lambda x: (bump(x[1:]), x), torch.arange(4.0))
    assert metrics().fallbacks.total() == 0


@pytest.mark.filterwarnings("ignore:.*no lowering:UserWarning")
def test_a_kernel_of_the_cpu_runs_on_the_host_and_its_writes_come_back(metrics):
    @torch.library.custom_op(f"custom{next(numbers)}::swap", mutates_args=("x", "others", "maybe"), device_types="cpu")
    def swap(x: torch.Tensor, y: torch.Tensor, others: list[torch.Tensor], maybe: torch.Tensor | None = None) -> torch.Tensor:
        before = x.numpy().copy()
        x.copy_(y)
        for other in others:
            other.numpy()[...] += 1
        if maybe is not None:
            maybe.zero_()
        return torch.from_numpy(before)

    def used(x, y):
        version = x._version
        given = swap(x[:2], y.t(), [y.clone(), x[2:]], maybe=x[3:])
        assert x._version > version
        return given, x, y, swap(x[:2], y, [])

    same(used, torch.arange(8.0).reshape(4, 2), torch.arange(10.0, 14.0).reshape(2, 2))
    assert metrics().fallbacks.total() == 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SURESTEP_FALLBACK", "error")
        with pytest.raises(surestep.FallbackError, match="swap"):
            swap(*to_xla((torch.ones(2), torch.ones(2))), [])


@pytest.mark.filterwarnings("ignore:.*no lowering:UserWarning")
def test_a_kernel_of_the_cpu_that_a_library_gives(library):
    library.define("cube(Tensor x) -> Tensor")
    library.impl("cube", lambda x: torch.from_numpy(x.numpy() ** 3), "CPU")
    same(lambda x: getattr(torch.ops, library.name).cube(x), torch.arange(3.0))
