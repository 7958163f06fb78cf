"""Tensors that XLA has no arrays for: each error says what to write instead."""

import pytest
import torch


def xla():
    return torch.ones(4, 4, device="xla")


def quantized():
    return torch.quantize_per_tensor(torch.ones(4, 4), 0.1, 0, torch.quint8)


def sparse_embedding():
    embedding = torch.nn.Embedding(4, 3, sparse=True).to("xla")
    embedding(torch.tensor([1], device="xla")).sum().backward()


REFUSED = {
    "the gradient of an embedding": (sparse_embedding, "sparse=False"),
    "to_sparse": (lambda: xla().to_sparse(), "no sparse tensors.*to_dense"),
    "to_sparse_csr": (lambda: xla().to_sparse_csr(), "no sparse tensors.*to_dense"),
    "a sparse product": (lambda: torch.sparse.mm(torch.eye(4).to_sparse(), xla()), "no sparse tensors.*to_dense"),
    "a sparse tensor moved": (lambda: torch.eye(4).to_sparse().to("xla"), "no sparse tensors.*to_dense"),
    "a sparse tensor copied": (lambda: xla().copy_(torch.eye(4).to_sparse()), "no sparse tensors.*to_dense"),
    "quantize": (lambda: torch.quantize_per_tensor(xla(), 0.1, 0, torch.quint8), "no quantized tensors.*dequantize.*bfloat16"),
    "a quantized tensor copied": (lambda: xla().copy_(quantized()), "no quantized tensors.*dequantize.*bfloat16"),
    "to_mkldnn": (lambda: xla().to_mkldnn(), "no mkldnn tensors.*to_dense"),
    "a mkldnn tensor copied": (lambda: xla().copy_(torch.ones(4, 4).to_mkldnn()), "no mkldnn tensors.*to_dense"),
    "nested": (lambda: torch.nested.as_nested_tensor([xla(), xla()]), "no nested tensors.*to_padded_tensor"),
    "nested, jagged": (lambda: torch.nested.as_nested_tensor([xla()], layout=torch.jagged), "no nested tensors.*to_padded_tensor"),
    "a nested tensor copied": (lambda: xla().copy_(torch.nested.nested_tensor([torch.ones(2)])), "no nested tensors.*to_padded_tensor"),
    "a dtype": (lambda: torch.empty(2, dtype=torch.complex32, device="xla"), "no dtype torch.complex32.*torch.complex64"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore")  # PyTorch's, of prototypes and deprecations
def test_the_error_says_what_to_write(name):
    made, instead = REFUSED[name]
    with pytest.raises((RuntimeError, TypeError), match=instead):
        made()


@pytest.mark.filterwarnings("ignore:surestep. aten.fake_quantize")
def test_fake_quantization_is_of_dense_tensors():
    x = torch.linspace(-1, 1, 5)
    assert torch.fake_quantize_per_tensor_affine(x.to("xla"), 0.1, 0, 0, 255).tolist() == pytest.approx(
        torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255).tolist()
    )


def test_an_encoder_in_evaluation_does_without_nested_tensors():
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2)
    x, padding = torch.randn(2, 3, 8), torch.tensor([[False, False, True], [False, False, False]])
    expected = encoder(x, src_key_padding_mask=padding).detach()
    encoder.to("xla").eval()
    with torch.no_grad():
        found = encoder(x.to("xla"), src_key_padding_mask=padding.to("xla"))
    torch.testing.assert_close(found.cpu(), expected)
