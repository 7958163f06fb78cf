"""XLA's operations as objects: what they give is what PyTorch's own give."""

import pytest
import torch

from surestep.torch_xla.core import xla_builder as xb
from surestep.torch_xla.core import xla_op_registry as xor

A = torch.tensor([[1.5, -2.0, 3.0], [0.5, 4.0, -1.0]])
B = torch.tensor([[2.0, 3.0, -1.0], [1.0, 0.5, 2.0]])
INDEX = torch.tensor(1)

CASES = {
    "arithmetic": (lambda a, b: (a + b) * a - b / a, lambda a, b: (a + b) * a - b / a),
    "rest": (lambda a, b: a % b, torch.fmod),
    "product": (lambda a, b: a @ b.transpose((1, 0)), lambda a, b: a @ b.T),
    "comparisons": (lambda a, b: ((a > b) & (a != b)) | (a <= b), lambda a, b: ((a > b) & (a != b)) | (a <= b)),
    "select": (lambda a, b: (a >= b).select(a, b), torch.maximum),
    "functions": (
        lambda a, b: (-a).tanh() + a.exp().log1p() + b.cos().atan2(a),
        lambda a, b: (-a).tanh() + a.exp().log1p() + b.cos().atan2(a),
    ),
    "bounds": (lambda a, b: a.clamp(xb.Op.scalar(a.builder(), -1.0), xb.Op.one(a.builder())), lambda a, b: a.clamp(-1.0, 1.0)),
    "scalars": (lambda a, b: a + xb.Op.scalar(a.builder(), 2) * b.ones_like() + b.zeros_like(), lambda a, b: a + 2),
    "casts": (lambda a, b: a.cast(xb.Type.S32), lambda a, b: a.int()),
    "bits": (lambda a, b: a.bitcast(xb.Type.S32) << b.ones_like().cast(xb.Type.S32), lambda a, b: a.view(torch.int32) << 1),
    "shapes": (lambda a, b: a.reshape((6,), (1, 0)).broadcast((2,)), lambda a, b: a.T.reshape(6).expand(2, 6)),
    "broadcast_in_dim": (lambda a, b: a.broadcast_in_dim((2, 4, 3), (0, 2)), lambda a, b: a[:, None].expand(2, 4, 3)),
    "slices": (lambda a, b: a.slice((0, 0), (2, 3), (1, 2)) + b.slice_in_dim(1, 3, 1), lambda a, b: a[:, ::2] + b[:, 1:3]),
    "concatenation": (lambda a, b: xb.Op.concat_in_dim([a, b.rev([1])], 0), lambda a, b: torch.cat([a, b.flip(1)])),
    "reductions": (lambda a, b: a.reduce(xb.Op.zero(None), lambda x, y: x + y, [1]), lambda a, b: a.sum(1)),
    "reduce_all": (lambda a, b: a.reduce_all(xb.Op.one(None), lambda x, y: x.max(y)), lambda a, b: a.max()),
    "solve": (
        lambda a, b: a.slice_in_dim(0, 2, 1).triangualr_solve(b, True, False, False, False),
        lambda a, b: torch.linalg.solve_triangular(a[:, :2].triu(), b, upper=True),
    ),
}


def compared(opfn, expected, tensors, **kwargs):
    operation = xor.register("test", opfn)
    found = operation(*(tensor.to("xla") for tensor in tensors), **kwargs)
    torch.testing.assert_close(found.cpu(), expected)


@pytest.mark.parametrize("name", CASES)
def test_operations(name):
    opfn, function = CASES[name]
    compared(opfn, function(A, B), (A, B))


def test_places_that_are_values():
    compared(lambda a, i: a.dynamic_slice([i.zeros_like(), i], (2, 2)), A[:, 1:3], (A, INDEX))
    expected = A.clone()
    expected[:, 1:3] = B[:, :2]
    compared(lambda a, b, i: a.dynamic_update_slice(b, [i.zeros_like(), i]), expected, (A, B[:, :2], INDEX))


@pytest.mark.parametrize("limit", [0.1, 0.9])
def test_a_condition(limit):
    def opfn(k, a, b, limit):
        condition = k > xb.Op.scalar(k.builder(), limit, dtype=k.shape().dtype)
        return condition.mkconditional((a, b), lambda a, b: a + b, lambda a, b: a - b)

    compared(opfn, A + B if limit < 0.5 else A - B, (torch.tensor(0.5), A, B), limit=limit)


def test_a_loop():
    def opfn(a, b, limit):
        def condition(count, a, b):
            return count < xb.Op.scalar(count.builder(), limit, dtype=xb.Type.S32)

        def body(count, a, b):
            return xb.Op.tuple((count + xb.Op.one(count.builder(), xb.Type.S32), a + b, b))

        return xb.Op.mkwhile((xb.Op.zero(a.builder(), xb.Type.S32), a, b), condition, body).get_tuple_element(1)

    compared(opfn, A + 10 * B, (A, B), limit=10)


def test_several_results_and_a_gradient():
    operation = xor.register("test", lambda a: xb.Op.tuple((a * a, a.cast(xb.Type.BF16))))
    x = A.to("xla").requires_grad_()
    square, cast = operation(x)
    assert cast.dtype == torch.bfloat16
    square.sum().backward()
    torch.testing.assert_close(x.grad.cpu(), 2 * A)


def test_shapes():
    seen = []

    def opfn(a):
        pair = xb.Op.tuple((a, a.cast(xb.Type.PRED))).shape()
        seen.append((a.shape().sizes, a.shape().rank, a.shape().dtype, a.shape().is_tuple()))
        seen.append((pair.is_tuple(), pair.tuple_size(), pair.tuple_shape(1).dtype))
        return a

    compared(opfn, A, (A,))
    assert seen[:2] == [((2, 3), 2, "f32", False), (True, 2, "pred")]


def test_what_it_lacks_is_jax():
    with pytest.raises(AttributeError, match=r"has no 'conv' in surestep\. Write it in JAX: `\.value` is the array"):
        xor.register("test", lambda a: a.conv(a))(A.to("xla"))
    compared(lambda a: xb.Op(a.value.cumsum(1)), A.cumsum(1), (A,))
