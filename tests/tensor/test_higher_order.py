"""Derivatives of derivatives, in both modes; functional transforms; and what traces instead of computing."""

import io

import pytest
import torch
import torch.autograd.forward_ad as forward
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, linearize, stack_module_state, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from both import compare, same

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning"),  # of `linearize`, on the CPU too
]

X = torch.arange(1.0, 7.0).reshape(2, 3)


def network(device):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 2)).to(device)


def on_both(function):
    """``function(network, x)`` gives the same on the CPU and on the device."""
    compare(function(network("cpu"), X), function(network("xla"), X.to("xla")), strides=False, rtol=1e-4, atol=1e-5)


OF_NETWORKS = {
    "double backward": lambda net, x: penalty(net, x),
    "third derivative": lambda net, x: cubed(net)(x),
    "per-sample gradients": lambda net, x: vmap(grad(lambda p, s: functional_call(net, p, (s,)).sum()), (None, 0))(parameters(net), x),
    "ensemble": lambda net, x: vmap(lambda p: functional_call(net, p, (x,)))(stack_module_state([net, net])[0]),
    "jacrev": lambda net, x: jacrev(net)(x),
    "jacfwd": lambda net, x: jacfwd(net)(x),
    "jacobian of parameters": lambda net, x: jacrev(lambda p: functional_call(net, p, (x,)))(parameters(net)),
    "hessian": lambda net, x: hessian(lambda t: net(t).square().sum())(x),
    "jvp": lambda net, x: jvp(net, (x,), (x,)),
    "vjp": lambda net, x: vjp(net, x)[1](torch.ones_like(net(x))),
    "forward over reverse": lambda net, x: jvp(grad(lambda t: net(t).square().sum()), (x,), (x,)),
    "linearize": lambda net, x: linearize(net, x)[1](x),
    "grad_and_value": lambda net, x: grad_and_value(lambda t: net(t).sum())(x),
    "dual tensors": lambda net, x: pushed(net, x, torch.ones_like(x)),
    "dual tensors of a transposed primal": lambda net, x: pushed(lambda t: net(t.t()), x.t().contiguous(), x.t()),
    "reverse over dual tensors": lambda net, x: reverse_over_forward(net, x),
    "vmap in chunks": lambda net, x: vmap(net, chunk_size=1)(x),
}


def parameters(net):
    return {name: parameter.detach() for name, parameter in net.named_parameters()}


def penalty(net, x):
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    (slope.norm(dim=1) - 1).square().mean().backward()
    return slope.detach(), x.grad, [parameter.grad for parameter in net.parameters()][:-1]


def cubed(net):
    return grad(lambda t: grad(lambda s: grad(lambda r: net(r).pow(3).sum())(s).sum())(t).sum())


def pushed(function, x, tangent):
    with forward.dual_level():
        return forward.unpack_dual(function(forward.make_dual(x, tangent))).tangent


def reverse_over_forward(net, x):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(pushed(net, x, torch.ones_like(x)).square().sum(), x)


@pytest.mark.parametrize("name", OF_NETWORKS)
def test_of_a_network(name):
    on_both(OF_NETWORKS[name])


def test_linear_is_one_operation_again_after_a_dual_level(metrics):
    net, x = nn.Linear(3, 4).to("xla"), X.to("xla")
    pushed(net, x, x)
    from surestep.tensor import xla_tensor

    seen = []
    dispatch = xla_tensor.HANDLERS[id(torch.ops.aten.linear.default)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(xla_tensor.HANDLERS, id(torch.ops.aten.linear.default), lambda *a: seen.append(1) or dispatch(*a))
        net(x).sum().backward()
    assert seen == [1] and net.weight.grad is not None


F = torch.autograd.functional


@pytest.mark.parametrize(
    "use",
    [
        lambda f, x: F.jacobian(lambda t: t.sin() * t.sum(), x),
        lambda f, x: F.jacobian(lambda t: t.sin() * t.sum(), x, vectorize=True),
        lambda f, x: F.jacobian(lambda t: t.sin() * t.sum(), x, vectorize=True, strategy="forward-mode"),
        lambda f, x: F.hessian(f, x),
        lambda f, x: F.hessian(f, x, vectorize=True, outer_jacobian_strategy="forward-mode"),
        lambda f, x: F.vjp(f, x),
        lambda f, x: F.jvp(f, x, x),
        lambda f, x: F.vhp(f, x, x),
        lambda f, x: F.hvp(f, x, x),
    ],
)
def test_autograd_functional(use):
    same(lambda x: use(lambda t: (t**3).sum().exp().log(), x), torch.arange(1.0, 4.0) / 10)


class Cube(torch.autograd.Function):
    """A custom function in the form that transforms take."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def backward(ctx, grad):
        return 3 * ctx.saved_tensors[0] ** 2 * grad

    @staticmethod
    def jvp(ctx, tangent):
        return 3 * ctx.saved_tensors[0] ** 2 * tangent


class Batched(torch.autograd.Function):
    """One with a rule of its own for `vmap`."""

    @staticmethod
    def forward(x, by):
        return x * by, x.sum()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.by = inputs[1]
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, grad, _):
        return grad * ctx.by, None

    @staticmethod
    def vmap(info, in_dims, x, by):
        assert info.batch_size == x.shape[in_dims[0]]
        x = x.movedim(in_dims[0], 0)
        return (x * by, x.flatten(1).sum(1)), (0, 0)


@pytest.mark.parametrize(
    "use",
    [
        lambda x: vmap(grad(lambda t: Cube.apply(t).sum()))(x),
        lambda x: jvp(Cube.apply, (x,), (x,)),
        lambda x: hessian(lambda t: Cube.apply(t).sum())(x),
        lambda x: pushed(Cube.apply, x, x),
        lambda x: jacrev(Cube.apply)(x),
        lambda x: vmap(lambda t: Batched.apply(t, 2.0))(x),
        lambda x: vmap(lambda t: Batched.apply(t, 2.0), in_dims=1)(x),
    ],
)
def test_custom_functions(use):
    same(use, X, strides=False)


def test_a_function_once_differentiable():
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**2

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, grad):
            return 2 * ctx.saved_tensors[0] * grad

    x = X.to("xla").requires_grad_()
    (slope,) = torch.autograd.grad((Once.apply(x) * x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


def test_vmap_and_random_numbers():
    x = X.to("xla")
    assert vmap(lambda t: t * 0 + torch.rand_like(t), randomness="different")(x).unique().numel() == 6
    rows = vmap(lambda t: torch.rand(3, device="xla"), randomness="same", in_dims=0)(x)
    assert torch.equal(rows[0], rows[1])
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(torch.rand_like)(x)


def test_gradcheck():
    x = X.to("xla", torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: t.sin() @ t.t(), (x,), check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradcheck(lambda t: t.sin() @ t.t(), (x,), fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda t: t.sin() * t, (x,))


# Tracing


def test_fake_tensors(metrics):
    x = X.to("xla")
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
        assert (fake.t() @ fake).shape == (3, 3) and fake.device == x.device
        made = torch.empty(3, 4, device="xla")
        assert (made.sum(0) * 2).shape == (4,) and made.device.type == "xla"
    assert metrics().run.count == 0


def test_make_fx_records_what_comes_of_captured_tensors():
    net = network("xla")
    traced = make_fx(lambda t: net(t) * t.sum())(X.to("xla"))
    x = torch.ones(2, 3, device="xla")
    torch.testing.assert_close(traced(x), net(x) * x.sum())


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict):
    net, x = network("xla"), X.to("xla")
    exported = torch.export.export(net, (x,), strict=strict)
    assert [node.target for node in exported.graph.nodes if node.op == "call_function"].count(torch.ops.aten.linear.default) == 2
    torch.testing.assert_close(exported.module()(x), net(x))
    file = io.BytesIO()
    torch.export.save(exported, file)
    file.seek(0)
    torch.testing.assert_close(torch.export.load(file).module()(x), net(x))


def test_export_with_a_dynamic_size():
    net = network("xla")
    exported = torch.export.export(net, (X.to("xla"),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},), strict=True).module()
    for rows in (2, 5):
        x = torch.ones(rows, 3, device="xla")
        torch.testing.assert_close(exported(x), net(x))


@pytest.mark.parametrize("dynamic", [None, True])
def test_compile_with_the_eager_backend(dynamic):
    torch.compiler.reset()
    net, seen = network("xla"), []

    def backend(graph, inputs):
        seen.append(graph)
        return graph

    compiled = torch.compile(net, backend=backend, fullgraph=True, dynamic=dynamic)
    for rows in (2, 5, 7):
        x = torch.ones(rows, 3, device="xla")
        compiled(x).sum().backward()
        torch.testing.assert_close(compiled(x), net(x))
    assert len(seen) == (1 if dynamic else 2)
    assert net[0].weight.grad is not None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_other_backends_are_refused_with_what_to_write(backend):
    torch.compiler.reset()
    with pytest.raises(RuntimeError, match="backend='eager'"):
        torch.compile(network("xla"), backend=backend)(X.to("xla"))
