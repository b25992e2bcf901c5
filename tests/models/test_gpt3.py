"""GPT-3's dense and locally banded layers in turn are what explicit tables of who sees whom make of them."""

import pytest
import torch
from torch import Tensor, nn

from homespun.models.encoder import EncoderConfig
from homespun.nn.cache import Cache

LENGTH, WIDTH = 37, 5


class Table(nn.Module):
    """Attention by a table."""

    def __init__(self, allowed: Tensor) -> None:
        super().__init__()
        self.allowed = allowed

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: object) -> Tensor:
        scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
        return scores.masked_fill(~self.allowed, -torch.inf).softmax(-1) @ value


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_banded_and_dense_layers_are_tables(mode: str) -> None:
    torch.manual_seed(1)
    cycle = [{"kind": "full"}, {"kind": "sparse", "patterns": [{"kind": "band", "width": WIDTH}]}]
    config = EncoderConfig.model_validate(
        {
            "preset": "gpt3-tiny",
            "vocab_size": 101,
            "hidden_size": 22,
            "num_attention_heads": 2,
            "num_hidden_layers": 4,
            "hidden_dropout_prob": 0.0,
            "initializer_range": 0.3,
            "attention": {"kind": "alternating", "cycle": cycle},
        }
    )
    model = config.build().double().train(mode == "train")
    ids = torch.randint(5, 101, (3, LENGTH))
    hidden = model(ids)
    gradient = torch.autograd.grad(hidden.square().sum(), model.embeddings.words.weight)[0]
    with torch.no_grad():
        cache = Cache()
        parts = [model.decode(part, cache=cache) for part in ids.split([19, 1, 17], 1)]

    query, key = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)
    dense = key <= query
    for number, layer in enumerate(model.layers):
        near = query - key < WIDTH  # itself and the four before
        layer.attention.sublayer.kernel = Table(dense & near if number % 2 else dense)
    expected = model(ids)
    assert torch.allclose(hidden, expected, atol=1e-10)
    assert torch.allclose(torch.cat(parts, 1), expected, atol=1e-10)
    other = torch.autograd.grad(expected.square().sum(), model.embeddings.words.weight)[0]
    assert torch.allclose(gradient, other, atol=1e-8)
