"""Disentangled attention against its definition, one pair of tokens at a time."""

import math

import pytest
import torch
from torch import Tensor, nn

from homespun.attention.disentangled import DisentangledAttention, RelativeEmbeddings, check_buckets, log_buckets
from homespun.errors import UserError
from homespun.nn.cache import Cache
from homespun.nn.masks import Mask

HIDDEN, HEADS, LONGEST = 15, 5, 31


def build(*, span: int = LONGEST, maximum: int = 0, **settings: object) -> DisentangledAttention:
    torch.manual_seed(1)
    relative = RelativeEmbeddings(HIDDEN, LONGEST, span=span, maximum=maximum, norm=nn.LayerNorm(HIDDEN))
    attention = DisentangledAttention(HIDDEN, HEADS, relative, relative_dropout=nn.Identity(), **settings)
    for parameter in attention.parameters():
        nn.init.normal_(parameter, std=0.4)
    return attention.double().eval()


def random_tensor(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def bucket(distance: int, span: int, maximum: int) -> int:
    """The formula, of one number."""
    near = span // 2
    if not maximum or abs(distance) <= near:
        return distance
    share = math.log(abs(distance) / near) / math.log((maximum - 1) / near)
    return int(math.copysign(math.ceil(share * (near - 1)) + near, distance))


def by_definition(attention: DisentangledAttention, hidden: Tensor, span: int, maximum: int, **allowed: bool) -> Tensor:
    """He et al. 2021, equation 4, pair by pair."""
    length, size = len(hidden), HIDDEN // HEADS
    vectors = attention.relative.norm(attention.relative.embedding.weight)
    of = {name: getattr(attention, name)(hidden).view(length, HEADS, size) for name in ("query", "key", "value")}
    names = {name: part for name in ("position_key", "position_query") if (part := getattr(attention, name))}
    place = {name: part(vectors).view(len(vectors), HEADS, size) for name, part in names.items()}
    values = torch.zeros(length, HEADS, size, dtype=torch.float64)
    for i in range(length):
        scores = torch.full((length, HEADS), -math.inf, dtype=torch.float64)
        for j in range(i + 1 if allowed.get("causal") else length):
            row = min(max(bucket(i - j, span, maximum) + span, 0), 2 * span - 1)
            scores[j] = (of["query"][i] * of["key"][j]).sum(-1)
            if "position_key" in place:
                scores[j] += (of["query"][i] * place["position_key"][row]).sum(-1)
            if "position_query" in place:
                scores[j] += (of["key"][j] * place["position_query"][row]).sum(-1)
        weights = (scores / math.sqrt(size * (1 + len(place)))).softmax(0)
        values[i] = (weights[..., None] * of["value"]).sum(0)
    return attention.output(values.flatten(1))


@pytest.mark.parametrize("share", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("terms", [("c2p", "p2c"), ("c2p",), ("p2c",)], ids="+".join)
@pytest.mark.parametrize(("span", "maximum"), [(LONGEST, 0), (7, 0), (8, 29)], ids=["each", "clamped", "buckets"])
def test_it_is_the_definition(span: int, maximum: int, terms: tuple[str, ...], share: bool) -> None:
    attention = build(span=span, maximum=maximum, pos_att_type=terms, share_att_key=share, key_bias=not share)
    hidden = random_tensor(2, 23, HIDDEN)
    found = attention(hidden, Mask())
    for row, given in zip(found, hidden, strict=True):
        torch.testing.assert_close(row, by_definition(attention, given, span, maximum), rtol=1e-9, atol=1e-9)


def test_causal_and_a_cache() -> None:
    attention = build(span=8, maximum=29)
    hidden = random_tensor(1, 19, HIDDEN)
    complete = attention(hidden, Mask(causal=True))
    torch.testing.assert_close(complete[0], by_definition(attention, hidden[0], 8, 29, causal=True))
    cache, pieces, start = Cache(), [], 0
    for count in (7, 1, 1, 5, 2, 3):
        cache.start_call()
        pieces.append(attention(hidden[:, start : start + count], Mask(causal=True, start=start, cache=cache)))
        start += count
    torch.testing.assert_close(torch.cat(pieces, 1), complete)


@pytest.mark.parametrize(("buckets", "maximum", "longest"), [(256, 512, 512), (8, 29, 29), (6, 31, 31), (32, 40, 512)])
def test_buckets_rise_and_are_as_many_as_asked_for(buckets: int, maximum: int, longest: int) -> None:
    found = log_buckets(torch.arange(-longest + 1, longest), buckets=buckets, maximum=maximum)
    assert bool((found.diff() >= 0).all())
    assert torch.equal(found, -found.flip(0))
    far = found[found.abs() > buckets // 2]
    assert far.numel()
    reached = int(found[longest - 1 : longest - 1 + maximum].max())
    assert buckets - 1 <= reached <= buckets
    near = torch.arange(-(buckets // 2), buckets // 2 + 1)
    assert torch.equal(log_buckets(near, buckets=buckets, maximum=maximum), near)


@pytest.mark.parametrize(("buckets", "longest"), [(256, 512), (8, 29), (32, 1024)])
def test_buckets_are_those_of_the_checkpoints(buckets: int, longest: int) -> None:
    # to the last place where one ends, which hangs on how the logarithm is rounded
    theirs = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
    distance = torch.arange(-longest + 1, longest)
    expected = theirs.make_log_bucket_position(distance, buckets, longest).long()
    assert torch.equal(log_buckets(distance, buckets=buckets, maximum=longest), expected)


def test_buckets_that_do_not_fit_are_refused() -> None:
    check_buckets(256, 130, 512)
    check_buckets(256, 20, 129)  # no distance is beyond the near ones
    with pytest.raises(UserError, match=r"max_relative_positions=129.*130"):
        check_buckets(256, 129, 512)


@pytest.mark.parametrize(("span", "maximum"), [(LONGEST, 0), (8, 29)], ids=["each", "buckets"])
def test_a_graph_of_one_length_serves_others(span: int, maximum: int) -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = build(span=span, maximum=maximum)

        def forward(self, hidden: Tensor) -> Tensor:
            return self.attention(hidden, Mask())

    length = torch.export.Dim("length", min=2, max=LONGEST - 1)
    with torch.no_grad():
        graph = torch.export.export(
            Whole(), (random_tensor(1, 7, HIDDEN),), dynamic_shapes=({1: length},), strict=False
        )
        longer = random_tensor(1, 29, HIDDEN, seed=2)
        torch.testing.assert_close(graph.module()(longer), Whole()(longer))
