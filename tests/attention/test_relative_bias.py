"""Attention with T5's relative bias: its buckets, its two ways against plain autograd, its cache."""

from typing import Any

import pytest
import torch
from torch import Tensor

from homespun.attention import relative_bias
from homespun.attention.relative_bias import BiasedDotProduct, RelativeBias, bucket_of
from homespun.errors import UserError
from homespun.models.encoder import EncoderConfig
from homespun.nn.masks import Mask
from homespun.nn.patterns import FULL

BATCH, HEADS, QUERIES, SIZE, LONGEST = 5, 3, 13, 7, 31
SMALL: dict[str, Any] = {
    "vocab_size": 53,
    "hidden_size": 22,
    "num_attention_heads": 2,
    "intermediate_size": 17,
    "num_hidden_layers": 3,
    "max_position_embeddings": LONGEST,
    "initializer_range": 0.3,
    "hidden_dropout_prob": 0.0,
    "positions": {"kind": "none"},
    "attention": {"kind": "relative_bias", "num_buckets": 6, "max_distance": 11},
}


def test_buckets_by_hand() -> None:
    distance = torch.arange(-9, 10)
    found = bucket_of(distance, num_buckets=8, max_distance=8, causal=False)
    # of four for each side two are of one position; the others end at 2 * (8 / 2) ** (1 / 2) = 4
    assert found.tolist() == [3] * 6 + [2, 2, 1, 0] + [5, 6, 6] + [7] * 6
    found = bucket_of(distance, num_buckets=4, max_distance=8, causal=True)
    assert found.tolist() == [3] * 6 + [2, 2, 1, 0] + [0] * 9


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (6, 11), (17, 23), (4, 5)])
def test_buckets_are_those_of_transformers(num_buckets: int, max_distance: int, causal: bool) -> None:
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    distance = torch.arange(-701, 702)
    expected = t5.T5Attention._relative_position_bucket(distance, not causal, num_buckets, max_distance)
    found = bucket_of(distance, num_buckets=num_buckets, max_distance=max_distance, causal=causal)
    assert torch.equal(found, expected)
    assert len(set(found.tolist())) >= 3


def some_bias(*, causal: bool = False) -> RelativeBias:
    torch.manual_seed(1)
    bias = RelativeBias(HEADS, num_buckets=6, max_distance=7, max_position_embeddings=LONGEST, causal=causal)
    return bias.double()


def plain(bias: RelativeBias, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
    """The same, written down as it is defined."""
    queries, keys = query.shape[2], key.shape[2]
    distance = torch.arange(keys)[None, :] - torch.arange(mask.start, mask.start + queries)[:, None]
    buckets = bucket_of(distance, num_buckets=6, max_distance=7, causal=mask.causal)
    scores = query @ key.mT + bias.embedding(buckets).permute(2, 0, 1)
    allowed = mask.dense(FULL, queries, keys, query.device)
    if allowed is None:
        return scores.softmax(-1) @ value
    values = scores.masked_fill(~allowed, -1e9).softmax(-1) @ value
    return torch.where(allowed.any(-1, keepdim=True), values, 0.0)


KEEP = torch.arange(QUERIES) < torch.tensor([13, 1, 7, 0, 11])[:, None]
DOCUMENTS = (torch.arange(QUERIES) > torch.tensor([2, 3, 5, 7, 11])[:, None]).long()
MASKS: dict[str, Mask] = {
    "all": Mask(),
    "padded": Mask(KEEP),
    "padded on the left": Mask(KEEP.flip(1)),
    "causal": Mask(causal=True),
    "causal, padded": Mask(KEEP.flip(1), causal=True),
    "documents": Mask(KEEP, documents=DOCUMENTS),
    "cached": Mask(KEEP, causal=True, start=8),
}


@pytest.mark.parametrize("scores", [1, 2 * HEADS * QUERIES, 2 * HEADS * QUERIES**2, 2**20], ids=lambda n: f"{n} scores")
@pytest.mark.parametrize("name", MASKS)
def test_values_and_gradients_are_those_of_plain_autograd(
    name: str, scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relative_bias, "_SCORES", scores)  # that many at once
    mask = MASKS[name]
    bias = some_bias(causal=mask.causal)
    generator = torch.Generator().manual_seed(2)
    lengths = (QUERIES - mask.start, QUERIES, QUERIES)
    given = [torch.randn(BATCH, HEADS, n, SIZE, generator=generator, dtype=torch.float64) for n in lengths]
    direction = torch.randn(given[0].shape, generator=generator, dtype=torch.float64)
    found = []
    for attend in (lambda *qkv: plain(bias, *qkv, mask), lambda *qkv: BiasedDotProduct(bias)(*qkv, mask)):
        leaves = [tensor.clone().requires_grad_() for tensor in given]
        values = attend(*leaves)
        found.append([values.detach(), *torch.autograd.grad((values * direction).sum(), [*leaves, *bias.parameters()])])
    for expected, own in zip(*found, strict=True):
        assert expected.abs().max() > 0.1
        torch.testing.assert_close(own, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", MASKS)
def test_with_dropout_too(name: str) -> None:
    mask = MASKS[name]
    bias = some_bias(causal=mask.causal)
    queries = QUERIES - mask.start
    query = torch.randn(BATCH, HEADS, queries, SIZE, dtype=torch.float64)
    value = torch.eye(QUERIES, dtype=torch.float64).expand(BATCH, HEADS, -1, -1)  # what comes out are the shares
    key = torch.randn(BATCH, HEADS, QUERIES, SIZE, dtype=torch.float64)
    shares = BiasedDotProduct(bias, dropout=0.5).train()(query, key, value, mask)
    kept = shares != 0
    assert 0.2 < (kept.sum() / (plain(bias, query, key, value, mask) > 0).sum()).item() < 0.8
    expected = plain(bias, query, key, value, mask) * kept * 2
    torch.testing.assert_close(shares, expected, rtol=1e-9, atol=1e-9)
    direction = torch.randn(shares.shape, dtype=torch.float64)
    gradients = [torch.autograd.grad((v * direction).sum(), bias.embedding.weight) for v in (shares, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-9)


def test_the_table_is_made_once_for_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = EncoderConfig.model_validate(SMALL).build().train()
    assert sum("kernel.bias" in name for name, _ in encoder.named_parameters()) == 1
    made = []
    make = RelativeBias._table
    monkeypatch.setattr(RelativeBias, "_table", lambda *given: made.append(1) or make(*given))
    ids = torch.randint(5, 53, (2, QUERIES))
    for encoder.gradient_checkpointing in (False, True):
        made.clear()
        encoder(ids, attention_mask=KEEP[:2]).sum().backward()
        assert len(made) == 1


def test_positions_enter_by_the_bias_alone() -> None:
    encoder = EncoderConfig.model_validate(SMALL).build().double().eval()
    ids = torch.randint(5, 53, (1, QUERIES))
    assert not torch.allclose(encoder(ids.flip(1)).flip(1), encoder(ids))
    encoder.get_parameter("layers.0.attention.sublayer.kernel.bias.embedding.weight").data.fill_(0.7)
    torch.testing.assert_close(encoder(ids.flip(1)).flip(1), encoder(ids))


@pytest.mark.parametrize(
    ("attention", "causal", "message"),
    [
        ({"num_buckets": 3}, False, "num_buckets=3 .*4"),
        ({"num_buckets": 32, "max_distance": 8}, False, "max_distance=8 .*8 exact buckets"),
        ({"num_buckets": 32, "max_distance": 16}, True, "17"),
    ],
)
def test_buckets_that_do_not_fit_are_refused(attention: dict[str, Any], causal: bool, message: str) -> None:
    tree = SMALL | {"attention": {"kind": "relative_bias"} | attention, "causal": causal}
    with pytest.raises(UserError, match=message):
        EncoderConfig.model_validate(tree).build()
