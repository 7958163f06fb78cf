"""Faults that the conformance run found outside of the lowerings, one test each."""

import pytest
import torch

from both import same


@pytest.mark.parametrize("operation", [torch.fmod, torch.remainder, torch.floor_divide])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_integers_are_divided(operation, dtype):
    """The stand-ins that the CPU was asked with were zeros."""
    same(operation, torch.arange(5, 9).to(dtype), torch.arange(1, 5).to(dtype))


def test_pivots_are_taken():
    """They begin at one, where the stand-ins had zeros."""
    lu, pivots = torch.linalg.lu_factor(torch.eye(3) + torch.arange(9.0).reshape(3, 3))
    same(torch.lu_unpack, lu, pivots, strides=False)
    same(torch.linalg.lu_solve, lu, pivots, torch.ones(3, 2), strides=False)


@pytest.mark.filterwarnings("ignore:.*has no lowering", "ignore:.*cholesky is deprecated", "ignore:.*cuts the step")
def test_an_empty_out_tensor_grows_on_the_host():
    """The host's copy lay over an array's memory, which can't be resized."""
    x = torch.eye(3, dtype=torch.float64) * 4
    same(lambda a, out: torch.cholesky_inverse(a, out=out), x, torch.empty(0, dtype=torch.float64))


def test_a_list_of_maxima_is_written_on_the_device(metrics):
    """AMSGrad's `_foreach_maximum_`: `maximum` has no in-place form."""

    def maxima(a, b):
        torch._foreach_maximum_([a, b], [b, a])
        torch._foreach_minimum_([a, b], 2.0)

    same(maxima, torch.tensor([1.0, 5.0]), torch.tensor([3.0, 2.0]))
    assert not metrics().fallbacks


def test_what_is_decomposed_refuses_to_write_into_a_dtype_that_cannot_hold_it():
    x = torch.ones(2, dtype=torch.int64, device="xla")
    with pytest.raises(RuntimeError, match="can't be cast"):
        x.ldexp_(x)


def test_the_conjugate_in_place_is_made_on_the_device(metrics):
    same(lambda z: z.conj_physical_(), torch.tensor([1 + 2j]))
    assert not metrics().fallbacks


def test_a_strided_copy_reads_the_storage():
    """The lowering had the operand's elements only, and read those."""
    same(lambda x: torch.as_strided_copy(x[:, ::2], (2, 3), (1, 2), 1), torch.arange(12.0).reshape(3, 4))
    same(lambda x, y: torch.as_strided_scatter(x[:, ::2], y, (2, 2), (1, 2), 1), torch.arange(12.0).reshape(3, 4), torch.ones(2, 2))
    with pytest.raises(RuntimeError, match="out of bounds"):
        torch.as_strided_scatter(torch.ones(2, 2, device="xla"), torch.ones(2, 2, device="xla"), (2, 2), (200, 200))


def test_batch_normalization_saves_nothing_in_evaluation():
    x, one = torch.randn(3, 2), torch.ones(2)
    same(lambda x, one: torch.native_batch_norm(x, one, one, one, one, False, 0.1, 1e-5), x, one, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*cuts the step")
def test_a_mask_selects_from_a_scalar():
    same(torch.masked_select, torch.tensor(2.0), torch.tensor(True))


def test_bounds_of_random_numbers_are_checked():
    before = torch.default_generator.get_state()
    with pytest.raises(RuntimeError, match="from=3 > to=-1"):
        torch.ones(2, device="xla").uniform_(3, -1)
    torch.ones(2, device="xla").uniform_(1, 2)
    with pytest.raises(RuntimeError, match="from=4 > to=-1"):
        torch.ones(2, device="xla").uniform_(4, -1)
    assert torch.equal(before, torch.default_generator.get_state())


def test_what_meta_has_no_kernel_for_is_asked_of_the_cpu(metrics):
    x, target = torch.randn(3, 4, requires_grad=True), torch.tensor([0, 3, 1])
    same(lambda x, t: torch.autograd.grad(torch.nn.functional.multi_margin_loss(x, t), x), x, target)
    assert not metrics().fallbacks


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.filterwarnings("ignore:.*_linalg_check_errors", "ignore:.*cuts the step")
def test_systems_are_solved_on_the_device(transposed):
    """Forward and backward, for operands whose factors PyTorch transposes and for others."""
    a = torch.eye(3, dtype=torch.float64) * 3 + torch.arange(9.0, dtype=torch.float64).reshape(3, 3)

    def solved(a, b):
        m = a.mT if transposed else a
        results = [torch.linalg.det(m), *torch.linalg.slogdet(m), torch.linalg.solve(m, b), torch.linalg.solve(m, b[:, 0])]
        results += [torch.linalg.solve(m, b.mT, left=False), torch.linalg.cholesky(m @ m.mT)]
        return [*results, *torch.autograd.grad(sum(r.cos().sum() for r in results), (a, b))]

    same(solved, a.requires_grad_(), torch.ones(3, 2, dtype=torch.float64).requires_grad_(), strides=False)


def test_a_list_of_out_tensors_is_written():
    def split(x):
        outs = [torch.zeros(1), torch.zeros(2)] if x.device.type == "cpu" else [torch.zeros(n, device="xla") for n in (1, 2)]
        torch.split_with_sizes_copy(x, [1, 2], out=outs)
        return outs

    same(split, torch.arange(3.0))


def test_polygamma_in_place(metrics):
    same(lambda x: x.polygamma_(1), torch.tensor([1.0, 2.5]), rtol=1e-5, atol=1e-5)
    assert not metrics().fallbacks


@pytest.mark.filterwarnings("ignore:.*has no lowering", "ignore:.*cuts the step")
def test_the_host_heeds_the_conjugates_that_a_kernel_makes():
    """PyTorch excludes them inside of ``__torch_dispatch__``: the numbers were wrong."""
    same(torch.linalg.eigvals, torch.tensor([[1, 2j], [-1j, 3]]), rtol=1e-5, atol=1e-5)
    z = torch.tensor([[1, 2j, 0], [1 + 1j, 3, 1]])
    same(torch.linalg.pinv, z, strides=False, rtol=1e-5, atol=1e-5)


def test_kron_writes_its_out_tensor():
    """It writes through `_unsafe_view`, which was no view."""
    same(lambda a, b, out: torch.kron(a, b, out=out), torch.arange(4.0).reshape(2, 2), torch.ones(2, 1), torch.zeros(4, 2))


def test_random_slopes_are_drawn_on_the_device(metrics):
    x = torch.linspace(-2, 2, 1000, device="xla", requires_grad=True)
    y = torch.nn.functional.rrelu(x, 0.1, 0.3, training=True)
    (slopes,) = torch.autograd.grad(y.sum(), x)
    assert not metrics().fallbacks
    torch.testing.assert_close(y, x * slopes)
    assert (slopes[x > 0] == 1).all() and 0.1 <= slopes[x < 0].min() < 0.12 and 0.28 < slopes[x < 0].max() <= 0.3
    same(lambda x: torch.nn.functional.rrelu_(x.clone()), torch.tensor([-1.0, 2.0]))


@pytest.mark.filterwarnings("ignore:.*cuts the step")
def test_repeats_on_the_device_are_read():
    """The result's size was that of the stand-ins' repeats, which are zeros."""
    same(lambda x, r: torch.repeat_interleave(x, r, 1), torch.arange(6.0).reshape(2, 3), torch.tensor([0, 1, 2]))
    same(lambda x, r: torch.repeat_interleave(x, r, 1, output_size=5), torch.arange(6.0).reshape(2, 3), torch.tensor([0, 3, 2]))
    same(torch.repeat_interleave, torch.tensor([0, 1, 2]))


@pytest.mark.filterwarnings("ignore:.*cuts the step")
def test_the_pseudoinverse_is_made_on_the_device(metrics):
    a = torch.arange(12.0, dtype=torch.float64).reshape(3, 4)

    def inverses(a):
        h = a @ a.mT
        results = [torch.linalg.pinv(a), torch.linalg.pinv(h, hermitian=True), torch.linalg.pinv(a, rtol=0.5), torch.linalg.pinv(a[:0])]
        return [*results, torch.autograd.grad(torch.linalg.pinv(a[:2]).sum(), a)]

    same(inverses, a.requires_grad_(), strides=False)
    assert not metrics().fallbacks


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_empty_out_tensors_of_factorizations_grow():
    same(lambda x, a, tau: torch.geqrf(x, out=(a, tau)), torch.eye(3), torch.empty(0), torch.empty(0), strides=False)
    same(
        lambda x, lu, pivots: torch.lu(x, out=(lu, pivots)), torch.eye(3), torch.empty(0), torch.empty(0, dtype=torch.int32), strides=False
    )


def test_an_empty_index_of_another_rank_gathers_nothing(metrics):
    same(lambda x, i: torch.gather(x, 0, i), torch.arange(5.0), torch.empty(2, 0, dtype=torch.int64))
    assert not metrics().fallbacks


@pytest.mark.parametrize("value", [1e30, -(2**40), float("inf"), float("nan")])
def test_a_number_that_the_dtype_cannot_hold_is_refused(value):
    """Also after one that it can hold."""
    mask = torch.tensor([True, False])
    for dtype in (torch.int32, torch.uint8):
        x = torch.zeros(2, dtype=dtype)
        for call in (lambda x, m, v: torch.masked_fill(x, m, v), lambda x, m, v: x.fill_(v), lambda x, m, v: torch.full_like(x, v)):
            same(call, x, mask, 1)
            try:
                call(x.clone(), mask, value)
            except RuntimeError as theirs:
                with pytest.raises(RuntimeError, match=str(theirs)):
                    call(x.to("xla"), mask.to("xla"), value)
            else:
                same(call, x, mask, value)


@pytest.mark.filterwarnings("ignore:.*cuts the step")
def test_an_out_tensor_that_overlaps_an_operand_is_refused():
    x, mask = torch.arange(3.0).to("xla"), torch.tensor([True, False, True]).to("xla")
    for target in (x, torch.zeros(1, device="xla").expand(3)):
        with pytest.raises(RuntimeError, match="single memory location"):
            torch.masked_select(x, mask, out=target)


@pytest.mark.parametrize("operation", [torch.ops.aten.native_batch_norm, torch.ops.aten._native_batch_norm_legit])
@pytest.mark.parametrize("training", [True, False])
def test_batch_normalization_writes_its_out_tensors(metrics, operation, training):
    def normalized(x, one, mean, empty):
        outs = {"out": x.new_empty(0), "save_mean": empty.clone(), "save_invstd": empty.clone()}
        return operation(x, one, one, mean, one.clone(), training, 0.1, 1e-5, **outs), mean

    same(normalized, torch.arange(6.0).reshape(3, 2), torch.ones(2), torch.zeros(2), torch.empty(0), rtol=1e-5, atol=1e-5)
    assert not metrics().fallbacks


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int64])
def test_a_negative_factor_of_unsigned_integers_wraps(metrics, dtype):
    x, index = torch.arange(6).to(dtype).reshape(2, 3), torch.tensor([1, 0])
    same(lambda x, i: x.index_add(0, i, x, alpha=-1), x, index)
    same(lambda x, i: torch.addcmul(x, x, x, value=-2), x, index)
    same(lambda x, i: torch.sub(x, x, alpha=-3), x, index)
    same(lambda x, i: torch.addmv(x[0], x.T[:, :2], i.to(x.dtype), alpha=-1, beta=-1), x, index)
    assert not metrics().fallbacks


@pytest.mark.parametrize("view", [lambda z: z, lambda z: z.mT, lambda z: z[:, ::2], lambda z: z[0].expand(2, 3), lambda z: z[1:, 1]])
def test_conjugates_lie_as_their_operand(view):
    z = torch.arange(6.0).reshape(2, 3).to(torch.complex64) * (1 + 2j)
    same(lambda z: (view(z).conj(), view(z).mH if view(z).ndim == 2 else z, view(z).conj().imag), z)


def test_unsafe_splits_lie_in_their_operand():
    def split(x):
        parts = [*torch.unsafe_chunk(x, 2, 1), *torch.unsafe_split(x, 3, 0), *torch.unsafe_split_with_sizes(x, (1, 3), 1)]
        return parts, torch.autograd.grad(sum(p.sin().sum() for p in parts), x)

    same(split, torch.arange(16.0).reshape(4, 4).requires_grad_(), rtol=1e-5, atol=1e-5)


def test_whole_parts_count_in_a_range_of_integers():
    for bounds in ((3.1,), (-1.9, 2.5), (1.5, 4.2, 1.9), (4.9, 0.1, -1.2), (2**40 + 0.5, 2**40 + 3.5)):
        for dtype in (torch.int64, torch.int32, torch.float32):
            theirs = torch.arange(*bounds, dtype=dtype)
            assert torch.equal(torch.arange(*bounds, dtype=dtype, device="xla").cpu(), theirs)
            assert torch.equal(torch.arange(*bounds, out=torch.empty(0, dtype=dtype, device="xla")).cpu(), theirs)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("name", ["clamp_max_", "clamp_min_", "pow_", "bitwise_and_", "eq_", "remainder_", "gcd_", "add_", "floor_divide_"])
def test_the_target_of_an_operation_in_place_does_not_grow(name):
    """Meta grew some; also after a call of the same dtypes that fits."""
    for device in ("cpu", "xla"):
        x, y = (torch.ones(shape, dtype=torch.int64, device=device) for shape in ((3, 1), (3, 4)))
        getattr(y, name)(x)
        with pytest.raises(RuntimeError, match=r"output with shape \[3, 1\] doesn't match the broadcast shape \[3, 4\]"):
            getattr(x, name)(y)
        assert x.shape == (3, 1)


def test_a_write_of_another_dtype_is_computed_in_the_promoted_one():
    """It was computed in the target's."""
    torch.manual_seed(0)
    x, y = torch.arange(6, dtype=torch.uint8), torch.tensor([300, -1, 2, 7, -300, 5], dtype=torch.int32)
    same(lambda x, y: x.clamp_(y, y + 1), x, y)
    same(lambda x, y: torch.maximum(y, y, out=x), x, y)
    same(lambda x, y: (x.bitwise_right_shift_(y.abs()), x.ne_(y)), x, y)
    half, wide = torch.full((3,), 2048.0, dtype=torch.float16), torch.tensor([1.0, 2.0, 0.1])
    same(lambda h, w: (h.add_(w, alpha=0.5).sub_(w), h.mul_(w).div_(w)), half, wide)


def test_sizes_that_meta_does_not_check():
    """Also after a call of the same dtypes that fits."""
    index = torch.tensor([0, 1])
    for call, fits, mistaken in (
        (lambda x, i, s: x.index_add_(0, i, s), (2, 4), (2, 1)),
        (lambda x, i, s: x.index_copy(0, i, s), (2, 4), (2, 3)),
        (lambda x, i, s: x.scatter_add(1, i[:, None].expand(2, 2), s), (3, 4), (1, 4)),
    ):
        x, source = torch.zeros(3, 4), torch.ones(fits)
        same(call, x, index, source)
        for device in ("cpu", "xla"):
            with pytest.raises((RuntimeError, IndexError)):
                call(x.to(device, copy=True), index.to(device), torch.ones(mistaken, device=device))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_integers_lie_between_integers(dtype):
    """The ends of an integral range are cut to integers first, also where they are exponents."""
    for start, end, steps, base in ((4.3, 0, 4, 2.0), (1.2, 3.7, 5, 2.5), (0, 4.9, 4, 2), (3, 5, 3, 2), (6.9, 0.5, 7, 1.5)):
        same(lambda x, a=start, b=end, n=steps, k=base: torch.logspace(a, b, n, k, dtype=dtype, device=x.device), torch.ones(()))
        same(lambda x, a=start, b=end, n=steps: torch.linspace(a, b, n, dtype=dtype, device=x.device), torch.ones(()))


@pytest.mark.parametrize("shape", [(5, 0, 5), (0,), (2, 0)])
def test_what_nothing_fills_is_filled(shape):
    """JAX gives zeros for an empty operand, whatever the fill value."""
    same(lambda x: (torch.nonzero_static(x, size=3), torch.nonzero_static(x, size=2, fill_value=7)), torch.ones(shape))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("shape", [(4,), (1, 4), (3, 4)])
def test_the_loss_of_one_sample_has_no_dimension(shape, reduction):
    target = torch.tensor([0, 2, -1, 1]).expand(shape).contiguous()
    x = torch.linspace(-1, 1, target.numel()).reshape(shape).requires_grad_()

    def loss(x, target):
        loss = torch.nn.functional.multilabel_margin_loss(x, target, reduction=reduction)
        return loss, torch.autograd.grad(loss.sum(), x)

    same(loss, x, target)


@pytest.mark.filterwarnings("ignore:.*has no lowering")
def test_a_decomposition_that_is_the_operation_itself():
    """Once ``torch._refs`` is imported, PyTorch's table says that these are a primitive, which calls them again."""
    import torch._refs.special

    x = torch.linspace(0.1, 3, 5)
    for function in (torch.special.bessel_j0, torch.special.bessel_j1, torch.special.erfcx, torch.special.spherical_bessel_j0):
        same(function, x)
        same(lambda x, out, function=function: function(x, out=out), x, torch.empty(5))


@pytest.mark.parametrize("rank", [2, 3])
def test_pooling_of_no_samples_stays_on_the_device(rank, metrics):
    pool = getattr(torch.nn.functional, f"fractional_max_pool{rank}d")
    x = torch.ones(0, 2, *[5] * rank, requires_grad=True)

    def pooled(x):
        result = pool(x, 2, output_size=3)
        return result, torch.autograd.grad(result.sum(), x)

    same(pooled, x)
    assert not metrics().fallbacks


def test_statistics_written_where_none_run():
    """Meta has no kernel of this form."""
    x = torch.linspace(-1, 1, 24).reshape(2, 3, 4)
    form = torch.ops.aten._native_batch_norm_legit.no_stats_out
    same(
        lambda x, *outs: form(x, None, None, True, 0.1, 1e-5, out=outs[0], save_mean=outs[1], save_invstd=outs[2]), x, *[torch.empty(0)] * 3
    )
