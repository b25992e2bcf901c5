"""LSH and local attention against `transformers`' Reformer and tables by hand; their invariants."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from homespun.attention.local import Chunks, LocalAttention, LocalAttentionConfig
from homespun.attention.lsh import (
    LSH,
    LSHAttentionConfig,
    SharedQueryKeyAttention,
    default_num_buckets,
    draw_rotations,
    parts,
)
from homespun.attention.multi_head import AttentionSpec, MultiHeadAttention
from homespun.errors import UserError
from homespun.nn.masks import Mask

BATCH, HEADS, HEAD_DIM, LENGTH = 2, 3, 5, 4
HIDDEN, SEED = HEADS * HEAD_DIM, 11


def peer(kind: str, *, causal: bool, **fields: Any) -> nn.Module:
    """The peer's attention before its output projection; its hashes come from the seed that ours are drawn from."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.reformer.modeling_reformer import LocalSelfAttention, LSHSelfAttention

    config = transformers.ReformerConfig(
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        attention_head_size=HEAD_DIM,
        is_decoder=causal,
        attn_layers=[kind],
        hash_seed=SEED,
        max_position_embeddings=64,
        axial_pos_embds=False,
        lsh_attention_probs_dropout_prob=0.0,
        local_attention_probs_dropout_prob=0.0,
        **fields,
    )
    torch.manual_seed(1)
    attention: nn.Module = {"lsh": LSHSelfAttention, "local": LocalSelfAttention}[kind](config, layer_idx=0)
    return attention.double()


def lsh(num_buckets: tuple[int, ...] = (6,), num_hashes: int = 1, chunks: Chunks | None = None, **fields: Any) -> LSH:
    rotations = draw_rotations(HEADS, HEAD_DIM, num_hashes, num_buckets, seed=SEED)
    return LSH(rotations, num_buckets=num_buckets, chunks=chunks or Chunks(LENGTH), **fields)


def assert_equal_to_peer(ours: nn.Module, theirs: nn.Module, mask: Mask, length: int) -> None:
    """Values at real tokens, and the gradients of all weights and of the input, in float64.

    The peer is given whole chunks, filled up with masked garbage, as its model does to any input in evaluation.
    """
    ours.load_state_dict(dict(theirs.named_parameters()) | {"output.weight": torch.eye(HIDDEN)})
    ours.double()
    filled = length if length <= LENGTH else length + -length % LENGTH
    hidden = torch.randn(BATCH, length, HIDDEN, dtype=torch.float64, requires_grad=True)
    keep = torch.ones(BATCH, length, dtype=torch.bool) if mask.keep is None else mask.keep
    garbage = torch.randn(BATCH, filled - length, HIDDEN, dtype=torch.float64)
    wanted = theirs(
        torch.cat([hidden, garbage], 1), attention_mask=nn.functional.pad(keep, (0, filled - length))
    ).hidden_states[:, :length]
    found = ours(hidden, mask)
    torch.testing.assert_close(found[keep], wanted[keep], rtol=1e-6, atol=1e-6)
    upstream = torch.randn_like(found) * keep[..., None]
    names = [name for name, _ in theirs.named_parameters()]
    gradients = [
        torch.autograd.grad(output, [hidden, *(dict(module.named_parameters())[name] for name in names)], upstream)
        for module, output in ((ours, found), (theirs, wanted))
    ]
    for name, mine, other in zip(["hidden", *names], *gradients, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}")


def padding(kind: str, length: int) -> Tensor | None:
    """Rows that end in less than a chunk of padding: where the peer's ring is the ring of the real tokens."""
    if kind == "whole":
        return None
    count = -(-length // LENGTH)
    return torch.arange(length) < torch.tensor([[length], [max((count - 1) * LENGTH + 1, 1)]])


@pytest.mark.parametrize("length", [3, 12, 29])
@pytest.mark.parametrize("kind", ["whole", "padded"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("num_hashes", [1, 2])
@pytest.mark.parametrize(
    ("num_buckets", "before", "after"), [(6, 1, 0), ([2, 4], 1, 0), (4, 2, 1), (2, 0, 1), (4, 0, 0)]
)
def test_lsh_is_as_in_transformers(
    num_buckets: Any, before: int, after: int, num_hashes: int, causal: bool, kind: str, length: int
) -> None:
    theirs = peer(
        "lsh",
        causal=causal,
        num_hashes=num_hashes,
        num_buckets=num_buckets,
        lsh_attn_chunk_length=LENGTH,
        lsh_num_chunks_before=before,
        lsh_num_chunks_after=after,
    )
    factors = (num_buckets,) if isinstance(num_buckets, int) else tuple(num_buckets)
    kernel = lsh(factors, num_hashes, Chunks(LENGTH, before, after))
    kernel.rotations = _as_drawn_in_float64(kernel.rotations)
    ours = SharedQueryKeyAttention(HIDDEN, HEADS, kernel)
    assert_equal_to_peer(ours, theirs, Mask(padding(kind, length), causal=causal), length)


def _as_drawn_in_float64(rotations: Tensor) -> Tensor:
    return torch.randn(rotations.shape, generator=torch.Generator().manual_seed(SEED), dtype=torch.float64)


# in causal attention the peer's last chunk looks ahead to the first one, so that it matters where a row ends: not ours
@pytest.mark.parametrize("length", [3, 12, 29])
@pytest.mark.parametrize("kind", ["whole", "padded"])
@pytest.mark.parametrize(
    ("before", "after", "causal"),
    [(1, 0, False), (1, 0, True), (2, 1, False), (2, 0, True), (0, 0, False), (0, 0, True), (1, 1, False)],
)
def test_local_is_as_in_transformers(before: int, after: int, causal: bool, kind: str, length: int) -> None:
    theirs = peer(
        "local",
        causal=causal,
        local_attn_chunk_length=LENGTH,
        local_num_chunks_before=before,
        local_num_chunks_after=after,
    )
    ours = MultiHeadAttention(HIDDEN, HEADS, LocalAttention(Chunks(LENGTH, before, after)), bias=False)
    assert_equal_to_peer(ours, theirs, Mask(padding(kind, length), causal=causal), length)


@pytest.mark.parametrize(("longest", "chunk"), [(4096, 64), (512, 64), (100, 64), (2**16, 8), (700, 3)])
def test_the_default_number_of_buckets_is_that_of_transformers(longest: int, chunk: int) -> None:
    theirs = peer("lsh", causal=False, num_buckets=None, lsh_attn_chunk_length=chunk)
    theirs.max_position_embeddings = longest
    theirs._set_num_buckets(longest)
    ours = default_num_buckets(longest, chunk)
    assert (list(ours) if len(ours) > 1 else ours[0]) == theirs.num_buckets


def test_a_row_below_two_chunks_has_two_buckets() -> None:
    assert default_num_buckets(31, 64) == (2,)


def random_tensor(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def heads(length: int, seed: int = 1) -> Tensor:
    return random_tensor(BATCH, HEADS, length, HEAD_DIM, seed=seed)


def by_hand(query: Tensor, key: Tensor, value: Tensor, seen: Tensor) -> Tensor:
    """Softmax over the keys that ``seen`` (..., queries, keys) counts, each as often as it counts them."""
    weights = (query @ key.transpose(-1, -2) / math.sqrt(HEAD_DIM)).exp() * seen
    return weights / weights.sum(-1, keepdim=True) @ value


def ring(length: int, before: int, after: int, *, causal: bool) -> Tensor:
    """(length, length) how often the token sees the other in chunks that close to a ring."""
    chunks, seen = -(-length // LENGTH), torch.zeros(length, length, dtype=torch.float64)
    for query in range(length):
        for away in range(-before, after + 1):
            chunk = query // LENGTH + away
            if causal and not 0 <= chunk < chunks:
                continue
            first = chunk % chunks * LENGTH
            for key in range(first, min(first + LENGTH, length)):
                seen[query, key] += not causal or key <= query
    return seen


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("before", "after"), [(1, 0), (2, 1), (0, 0)])
def test_local_equals_a_table_by_hand(before: int, after: int, packed: bool, causal: bool) -> None:
    length, short = 23, 9
    query, key, value = (heads(length, seed) for seed in (1, 2, 3))
    keep = torch.arange(length) < torch.tensor([[length], [short]])
    documents = (torch.arange(length) // 7).expand(BATCH, -1) if packed else None
    found = LocalAttention(Chunks(LENGTH, before, after))(query, key, value, Mask(keep, causal, documents=documents))
    for row, real in enumerate((length, short)):
        seen = ring(real, before, after, causal=causal)
        if documents is not None:
            seen *= documents[row, :real, None] == documents[row, None, :real]
        wanted = by_hand(*(part[row, :, :real] for part in (query, key, value)), seen)
        torch.testing.assert_close(found[row, :, :real], wanted)


@pytest.mark.parametrize("num_hashes", [1, 3])
@pytest.mark.parametrize("before", [1, 2])
@pytest.mark.parametrize("packed", [False, True])
def test_causal_sees_the_tokens_before_it_in_its_bucket(packed: bool, before: int, num_hashes: int) -> None:
    length, short = 41, 18
    kernel = lsh((4,), num_hashes, Chunks(LENGTH, before), attend_across_buckets=False).double()
    query_key, value = heads(length), heads(length, 2)
    keep = torch.arange(length) < torch.tensor([[length], [short]])
    documents = (torch.arange(length) // 15).expand(BATCH, -1) if packed else None
    mask = Mask(keep, causal=True, documents=documents)
    buckets = kernel.buckets(query_key, mask)
    seen = torch.zeros(BATCH, HEADS, length, length, dtype=torch.float64)
    for row, turn, head, query in torch.cartesian_prod(*map(torch.arange, (BATCH, num_hashes, HEADS, length))).tolist():
        own = buckets[row, turn, head]
        for key in [k for k in range(query) if own[k] == own[query]][-before * LENGTH :]:
            seen[row, head, query, key] += documents is None or documents[row, key] == documents[row, query]
    seen += torch.eye(length) * (seen.sum(-1, keepdim=True) == 0)  # the last resort
    unit = query_key / (query_key.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    found = kernel(query_key, value, mask)
    for row, real in enumerate((length, short)):
        wanted = by_hand(query_key[row], unit[row], value[row], seen[row])
        torch.testing.assert_close(found[row, :, :real], wanted[:, :real])


def test_hashing() -> None:
    kernel = lsh((6, 4), num_hashes=3).double()
    vectors = heads(29)
    mask = Mask()
    buckets = kernel.buckets(vectors, mask)
    assert buckets.shape == (BATCH, 3, HEADS, 29)
    assert set(range(4 * 6)) >= set(buckets.unique().tolist())
    assert len(buckets.unique()) > 12
    assert torch.equal(kernel.buckets(vectors * 7, mask), buckets), "a bucket is a direction"
    opposite = kernel.buckets(-vectors, mask)
    assert torch.equal((buckets % 6 + 3) % 6, opposite % 6)
    assert torch.equal((buckets // 6 + 2) % 4, opposite // 6)
    keep = torch.arange(29) < torch.tensor([[29], [13]])
    padded = kernel.buckets(vectors, Mask(keep))
    assert torch.equal(padded == 24, ~keep[:, None, None].expand_as(padded))
    assert torch.equal(padded.where(keep[:, None, None], 0), buckets.where(keep[:, None, None], 0))


def test_rotations_are_a_function_of_seed_and_layer() -> None:
    def rotations(seed: int, layer: int) -> Tensor:
        shape = AttentionSpec(HIDDEN, HEADS, 64, layer, causal=False, dropout=0.0, seed=seed)
        kernel = LSHAttentionConfig(chunk_length=4, num_hashes=2).build(shape).kernel
        found: Tensor = kernel.rotations
        assert not list(kernel.state_dict())
        return found

    assert torch.equal(rotations(1, 0), rotations(1, 0))
    assert not torch.equal(rotations(1, 0), rotations(2, 0))
    assert not torch.equal(rotations(1, 0), rotations(1, 1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_hashes", [1, 2])
@pytest.mark.parametrize("across", [False, True])
def test_a_token_sees_itself_only_as_a_last_resort(across: bool, num_hashes: int, dtype: torch.dtype) -> None:
    kernel = lsh((2,), num_hashes, attend_across_buckets=across).to(dtype)
    query_key, value = heads(2)[..., :1, :].expand(-1, -1, 2, -1).to(dtype), heads(2, 2).to(dtype)
    found = kernel(query_key, value, Mask(causal=True))
    # the first has nothing else to see; the second sees the first, though it is as near to itself
    torch.testing.assert_close(found, value[..., :1, :].expand_as(found))
    if across:
        torch.testing.assert_close(kernel(query_key, value, Mask()), value.flip(-2))


@pytest.mark.parametrize("num_hashes", [1, 2])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradients_are_those_of_finite_differences(
    dropout: float, causal: bool, num_hashes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homespun.attention.lsh._SCORES", LENGTH**2)  # a chunk at a time
    kernel = lsh((4,), num_hashes, attend_across_buckets=not causal, dropout=dropout).double()
    keep = torch.arange(9) < torch.tensor([[9], [6]])
    mask = Mask(keep, causal=causal)
    kernel.rotations = kernel.rotations[:1]

    def run(query_key: Tensor, value: Tensor) -> Tensor:
        torch.manual_seed(3)
        return kernel(query_key, value, mask)

    assert torch.autograd.gradcheck(run, [heads(9, seed)[:, :1].requires_grad_() for seed in (1, 2)])


@pytest.mark.parametrize("num_hashes", [1, 2])
def test_mixed_precision_is_near_full_precision(num_hashes: int) -> None:
    attention = SharedQueryKeyAttention(HIDDEN, HEADS, lsh((2,), num_hashes, Chunks(13)))
    hidden = random_tensor(BATCH, 13, HIDDEN).float().requires_grad_()  # one chunk: buckets that differ change nothing
    full = attention(hidden, Mask())
    with torch.autocast("cpu", torch.bfloat16):
        mixed = attention(hidden, Mask())
    torch.testing.assert_close(mixed.float(), full, rtol=0.1, atol=0.02)
    gradients = [torch.autograd.grad(y.float().sum(), hidden)[0] for y in (mixed, full)]
    torch.testing.assert_close(*gradients, rtol=0.1, atol=0.05)


def test_a_gpu_computes_more_scores_at_once() -> None:
    """4,096 tokens and 12 heads: parts for the cache of a CPU, and one for a GPU, which would wait for more."""

    def count(device: str) -> int:
        return len(list(parts(torch.empty(64, 12, 64, dtype=torch.int64, device=device), 128, dropout=0.0, seed=0)))

    assert count("cpu") > 4
    assert count("meta") == 1


def test_what_does_not_fit_is_refused_when_built() -> None:
    shape = AttentionSpec(HIDDEN, HEADS, 64, 0, causal=True, dropout=0.0, seed=0)
    for wrong in (5, 0, -2, [2, 3], []):
        with pytest.raises(UserError, match=r"num_buckets=.*even"):
            LSHAttentionConfig(num_buckets=wrong).build(shape)
    with pytest.raises(UserError, match="num_chunks_before=0"):
        LSHAttentionConfig(num_chunks_before=0).build(shape)
    for config in (LSHAttentionConfig, LocalAttentionConfig):
        with pytest.raises(ValueError, match="chunk_length"):
            config(chunk_length=0)
    with pytest.raises(ValueError, match="num_hashes"):
        LSHAttentionConfig(num_hashes=0)
    for sizes in ((0, 1, 0), (4, -1, 0), (4, 0, -1)):
        with pytest.raises(UserError, match=r"chunk.* 1 token"):
            Chunks(*sizes)
    with pytest.raises(UserError, match="3 axes"):
        LSH(draw_rotations(HEADS, HEAD_DIM, 1, (6,), seed=0), num_buckets=(4,), chunks=Chunks(LENGTH))
    with pytest.raises(UserError, match="0 rounds"):
        LSH(draw_rotations(HEADS, HEAD_DIM, 0, (6,), seed=0), num_buckets=(6,), chunks=Chunks(LENGTH))
    with pytest.raises(UserError, match="num_attention_heads=2"):
        SharedQueryKeyAttention(HIDDEN, 2, lsh())
    with pytest.raises(UserError, match=r"11 queries.*13 keys"):
        LocalAttention(Chunks(LENGTH))(heads(11), heads(13), heads(13), Mask())
