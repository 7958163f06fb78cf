"""``ctc_loss``: lengths as lists, on the CPU or on the device; forward and backward as on the CPU."""

import itertools

import pytest
import torch
import torch.nn.functional as F

import surestep

T, N, C = 9, 4, 5
INPUTS, LENGTHS = [9, 7, 5, 2], [3, 0, 4, 3]  # the last can't be: its loss is infinite
ROWS = torch.tensor([[1, 1, 2, 4], [3, 2, 1, 1], [4, 4, 1, 2], [1, 2, 3, 3]])
FLAT = torch.cat([row[:n] for row, n in zip(ROWS, LENGTHS, strict=True)])


def logits(seed=0, dtype=torch.float32):
    return torch.randn(T, N, C, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def computed(device, targets, lengths, blank=0, dtype=torch.float32, **options):
    x = logits(dtype=dtype).to(device).requires_grad_()
    inputs, labels = lengths(INPUTS), lengths(LENGTHS)
    loss = F.ctc_loss(x.log_softmax(2), targets, inputs, labels, blank=blank, **options)
    weights = torch.arange(1.0, loss.numel() + 1, dtype=dtype, device=device).reshape(loss.shape)
    (loss * weights).sum().backward()
    return loss.detach().cpu(), x.grad.cpu()


LENGTH_KINDS = {
    "list": list,
    "tuple": tuple,
    "cpu": torch.tensor,
    "cpu int32": lambda lengths: torch.tensor(lengths, dtype=torch.int32),
    "device": lambda lengths: torch.tensor(lengths, device="xla"),
}


@pytest.mark.parametrize("kind", LENGTH_KINDS)
@pytest.mark.parametrize("form", ["rows", "flat"])
@pytest.mark.parametrize("where", ["cpu", "xla"])
def test_lengths_and_targets_from_anywhere(kind, form, where, metrics):
    targets = ROWS if form == "rows" else FLAT
    theirs = computed("cpu", targets, list, reduction="none", zero_infinity=True)
    ours = computed("xla", targets.to(where), LENGTH_KINDS[kind], reduction="none", zero_infinity=True)
    torch.testing.assert_close(ours, theirs)
    assert metrics().fallbacks.total() == 0


OPTIONS = list(itertools.product(["none", "mean", "sum"], [True, False], [0, 2, C - 1]))


@pytest.mark.parametrize(("reduction", "zero_infinity", "blank"), OPTIONS)
def test_options(reduction, zero_infinity, blank):
    targets = torch.where(ROWS == blank, 0, ROWS)
    options = {"reduction": reduction, "zero_infinity": zero_infinity, "blank": blank, "dtype": torch.float64}
    torch.testing.assert_close(computed("xla", targets, torch.tensor, **options), computed("cpu", targets, list, **options), equal_nan=True)


@pytest.mark.parametrize("grad", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_modes(grad):
    with grad():
        theirs, ours = (
            F.ctc_loss(logits().to(d).log_softmax(2), ROWS, torch.tensor(INPUTS), torch.tensor(LENGTHS), zero_infinity=True)
            for d in ("cpu", "xla")
        )
    torch.testing.assert_close(ours.cpu(), theirs)


def test_one_sequence_without_a_batch():
    def computed(device):
        x = logits()[:, 0].to(device).requires_grad_()
        loss = F.ctc_loss(x.log_softmax(1), ROWS[0, :3].to(device), torch.tensor(9), torch.tensor(3))
        loss.backward()
        return loss.detach().cpu(), x.grad.cpu()

    torch.testing.assert_close(computed("xla"), computed("cpu"))


def test_nothing_to_say():
    def computed(device):
        x = logits()[:, :2].to(device).requires_grad_()
        loss = F.ctc_loss(x.log_softmax(2), torch.zeros(0, dtype=torch.long), [3, 0], [0, 0], reduction="none")
        loss.sum().backward()
        return loss.detach().cpu(), x.grad.cpu()

    torch.testing.assert_close(computed("xla"), computed("cpu"))


def test_small_probabilities_stay_logarithms():
    def computed(device):
        x = (logits() * 60).to(device).requires_grad_()
        loss = F.ctc_loss(x.log_softmax(2), ROWS, [9, 9, 9, 9], [3, 4, 4, 3])
        loss.backward()
        return loss.detach().cpu(), x.grad.cpu()

    torch.testing.assert_close(computed("xla"), computed("cpu"), rtol=1e-4, atol=1e-4)


def test_other_lengths_are_no_other_program(metrics):
    model, criterion = torch.nn.Linear(C, C).to("xla"), torch.nn.CTCLoss()
    optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), logits().to("xla")
    compiled = []
    for inputs, labels in ([9, 9, 9, 9], [4, 3, 2, 1]), ([9, 8, 8, 9], [1, 1, 4, 2]), ([9, 8, 7, 9], [2, 1, 3, 2]):
        with surestep.step():
            criterion(model(x).log_softmax(2), ROWS, torch.tensor(inputs), torch.tensor(labels)).backward()
            optimizer.step()
            optimizer.zero_grad()
        compiled.append(metrics().compile.count)
    assert compiled[0] == compiled[-1]


@pytest.mark.parametrize(
    "mistake",
    [
        lambda x: F.ctc_loss(x, ROWS, [T + 1, 1, 1, 1], LENGTHS),
        lambda x: F.ctc_loss(x, ROWS, INPUTS, [5, 1, 1, 1]),
        lambda x: F.ctc_loss(x, ROWS, torch.tensor([1, 1]), torch.tensor(LENGTHS)),
        lambda x: F.ctc_loss(x, ROWS, INPUTS, LENGTHS, blank=C),
        lambda x: F.ctc_loss(x, FLAT[:-1], INPUTS, LENGTHS),
        lambda x: F.ctc_loss(x, ROWS[0, None, None], INPUTS, LENGTHS),
    ],
)
def test_mistakes_are_pytorchs_errors(mistake):
    with pytest.raises(RuntimeError) as theirs:
        mistake(logits())
    with pytest.raises(RuntimeError) as ours:
        mistake(logits().to("xla"))
    assert str(ours.value) == str(theirs.value)


def test_mistakes_in_lengths_on_the_device():
    with pytest.raises(RuntimeError, match="size batch_size"):
        F.ctc_loss(logits().to("xla"), ROWS.to("xla"), torch.tensor([1], device="xla"), torch.tensor([1], device="xla"))


def test_probabilities_on_the_cpu_are_refused():
    with pytest.raises(RuntimeError, match="argument log_probs is on cpu"):
        F.ctc_loss(logits(), ROWS.to("xla"), torch.tensor(INPUTS), torch.tensor(LENGTHS))
