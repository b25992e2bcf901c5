"""The blocked path equals the dense reference, in values and gradients, under every pattern and every kind of mask."""

from typing import Any

import pytest
import torch
from torch import Tensor

from homespun.attention import blocked
from homespun.attention.blocked import Blocked, attend_from_global, make_layout
from homespun.attention.full import DotProduct
from homespun.attention.multi_head import split_heads
from homespun.attention.sparse import GlobalAttention
from homespun.nn.masks import Mask
from homespun.nn.patterns import Band, Blocks, BlockTable, Global, Sparse, Window


def permuted(size: int, permutations: tuple[tuple[int, ...], ...]) -> BlockTable:
    return BlockTable(size, tuple(tuple((block,) for block in row) for row in permutations))


BATCH, HEADS, HEAD_DIM, LENGTH = 2, 3, 5, 457
RANDOM = BlockTable.draw(size=16, count=2, blocks=31, heads=HEADS, away=2, seed=1)
SPARSE = {
    "window": Sparse((Window(19),)),
    "dilated": Sparse((Window(7, (3,)),)),
    "dilated per head": Sparse((Window(5, (1, 2, 3)),)),
    "window and dilated": Sparse((Window(9), Window(4, (5,)))),
    "window and global": Sparse((Window(19),), Global(first=2)),
    "dilated and global": Sparse((Window(7, (2,)),), Global(first=1)),
    "window and global places": Sparse((Window(19),), Global(positions=(7, 60, 311))),
    "keys global only": Sparse((Window(19),), Global(first=2, queries=False)),
    "band": Sparse((Band(29),)),
    "blocks": Sparse((Blocks(16),)),
    "blocks before": Sparse((Blocks(16, before=2, after=0),)),
    "random": Sparse((RANDOM,)),
    "big bird": Sparse((Blocks(16), RANDOM), Global(block=16)),
    "permuted": Sparse((permuted(97, ((0, 1, 2, 3, 4), (1, 2, 3, 4, 0), (4, 3, 2, 1, 0))),)),
    "odd sizes": Sparse((Blocks(24), Window(19)), Global(first=1)),
    "no common size": Sparse((Blocks(23), Window(19))),
    "a table beyond the text": Sparse((BlockTable(16, (((60,),) * 31,) * HEADS),)),
    "a table beyond the text, and global": Sparse((BlockTable(16, (((60,),) * 31,) * HEADS),), Global(first=1)),
}
KEEP = torch.arange(LENGTH) < torch.tensor([[LENGTH], [LENGTH - 83]])
DOCUMENTS = torch.stack([torch.arange(LENGTH) // 89, torch.where(KEEP[1], torch.arange(LENGTH) // 61, -1)])
CHOSEN = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
CHOSEN[0, [7, 200]] = CHOSEN[1, 100] = True


def random_tensor(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def outcome(kernel: Any, mask: Mask, *, length: int = LENGTH, heads: int = HEADS) -> list[Tensor]:
    """Values of random queries, keys and values, and their gradients."""
    torch.manual_seed(1)
    parts = [random_tensor(BATCH, heads, length, HEAD_DIM) for _ in range(3)]
    upstream = torch.randn(BATCH, heads, length, HEAD_DIM, dtype=torch.float64)
    values = kernel(*parts, mask)
    return [values, *torch.autograd.grad(values, parts, upstream)]


@pytest.mark.parametrize(
    ("sparse", "batch_global_mask"),
    [
        *(pytest.param(sparse, None, id=name) for name, sparse in SPARSE.items()),
        *(pytest.param(one, CHOSEN, id=f"{name}-chosen") for name, one in SPARSE.items() if one.global_tokens),
    ],
)
@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
@pytest.mark.parametrize("keep", [None, KEEP], ids=["whole", "padded"])
@pytest.mark.parametrize("documents", [None, DOCUMENTS], ids=["one", "packed"])
def test_blocked_is_dense(
    sparse: Sparse, causal: bool, keep: Tensor | None, documents: Tensor | None, batch_global_mask: Tensor | None
) -> None:
    assert make_layout(sparse, LENGTH, causal, torch.device("cpu")) is not None
    mask = Mask(keep, causal=causal, documents=documents, batch_global_mask=batch_global_mask)
    torch.testing.assert_close(outcome(Blocked(sparse), mask), outcome(DotProduct(sparse), mask))


@pytest.mark.parametrize("few", [0, 10**9], ids=["as they are", "widened"])
def test_half_precision_is_dense_but_for_rounding(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked, "_WIDEN_BELOW", few)
    torch.manual_seed(1)
    sparse = SPARSE["window and global"]
    halves = [random_tensor(BATCH, HEADS, LENGTH, HEAD_DIM).detach().bfloat16().requires_grad_() for _ in range(3)]
    exact = [part.detach().double().requires_grad_() for part in halves]
    upstream = torch.randn(BATCH, HEADS, LENGTH, HEAD_DIM).bfloat16()
    values, truth = Blocked(sparse)(*halves, Mask(KEEP)), DotProduct(sparse)(*exact, Mask(KEEP))
    gradients = torch.autograd.grad(values, halves, upstream), torch.autograd.grad(truth, exact, upstream.double())
    for ours, theirs in [(values, truth), *zip(*gradients, strict=True)]:
        assert ours.dtype == torch.bfloat16
        assert (ours.double() - theirs).norm() < torch.finfo(torch.bfloat16).eps * theirs.norm()


def test_float16_has_gradients_if_a_row_sees_nothing() -> None:
    query, key, value = (torch.full((1, 1, 256, 8), x, dtype=torch.float16, requires_grad=True) for x in (9, -9, 1))
    attention = Blocked(Sparse((Window(16),)), dropout=0.1).train()  # without dropout the scores are float32
    values = attention(query, key, value, Mask(torch.zeros(1, 256, dtype=torch.bool)))
    assert not values.any()
    assert all(part.isfinite().all() for part in torch.autograd.grad(values.sum(), (query, key, value)))


def test_global_positions_count_in_each_document() -> None:
    for documents, places in ((None, [[1, 9, 400]] * 2), (DOCUMENTS, [[i for i in range(457) if i % 89 in (1, 9)]])):
        global_mask = Mask(documents=documents).global_mask(Global(positions=(1, 9, 400)), LENGTH, torch.device("cpu"))
        assert global_mask[0].nonzero().flatten().tolist() == places[0]
    assert Mask(KEEP).global_mask(Global(positions=(1, 400)), LENGTH, torch.device("cpu"))[1].nonzero().tolist() == [
        [1]
    ]


# tables of another size than the blocks; of some queries they name fewer blocks than of others
UNEVEN = {
    "random": Sparse((Window(9), BlockTable.draw(size=41, count=1, blocks=23, heads=HEADS, away=2, seed=1))),
    "permuted": Sparse((Window(40), permuted(131, ((1, 2, 3, 4, 5, 6, 0), (0, 1, 2, 3, 4, 5, 6), (6,) * 7)))),
    "blocks": Sparse((Blocks(100, before=0, after=1), Band(37)), Global(block=7)),
    "a text longer than the table": Sparse(
        (Blocks(21), BlockTable.draw(size=19, count=1, blocks=23, heads=HEADS, away=2, seed=1))
    ),
}


@pytest.mark.parametrize("sparse", UNEVEN.values(), ids=UNEVEN)
@pytest.mark.parametrize("length", [907, 896])
def test_blocks_of_one_size_serve_patterns_of_several(sparse: Sparse, length: int) -> None:
    layout = make_layout(sparse, length, False, torch.device("cpu"))
    assert layout.size >= 32
    expected = outcome(DotProduct(sparse), Mask(), length=length)
    torch.testing.assert_close(outcome(Blocked(sparse), Mask(), length=length), expected)


@pytest.mark.parametrize(
    ("sparse", "size", "keys"),
    [
        (Sparse((Window(256),)), 256, 3 * 256),
        (Sparse((Blocks(64),)), 64, 3 * 64),
        (Sparse((Blocks(16), Blocks(16, before=2))), 16, 4 * 16),
        (Sparse((Window(250), Blocks(63))), 32, 17 * 32),
        (Sparse((Window(256), Blocks(100))), 64, 9 * 64),
        (Sparse((Window(256), Blocks(48))), 32, 17 * 32),
    ],
)
def test_keys_that_a_block_is_given(sparse: Sparse, size: int, keys: int) -> None:
    """As many as the wider pattern needs, whatever the other's size is."""
    layout = make_layout(sparse, 2048, False, torch.device("cpu"))
    assert (layout.size, len(layout.columns) * layout.size) == (size, keys)


def test_a_layout_that_evaluation_made_serves_training() -> None:
    sparse, parts = Sparse((Window(16, (2,)),)), [torch.randn(1, 1, 701, 5, requires_grad=True) for _ in range(3)]
    with torch.inference_mode():
        Blocked(sparse)(*parts, Mask())
    Blocked(sparse)(*parts, Mask()).sum().backward()
    assert all(part.grad is not None for part in parts)


FIVE = {
    "alike": Sparse((Window(19),), Global(first=2)),
    "each its own": Sparse(
        (Blocks(16), BlockTable.draw(size=16, count=2, blocks=31, heads=5, away=2, seed=1)), Global(block=16)
    ),
}


@pytest.mark.parametrize("sparse", FIVE.values(), ids=FIVE)
@pytest.mark.parametrize("most", [2, 3])
def test_some_heads_at_a_time_are_all_heads_at_once(sparse: Sparse, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five heads are computed in parts of two and three, since a part has at least two heads."""
    calls, found = [], []
    fused = blocked.flash_attention_cpu

    def counting(*inputs: Tensor, **options: Any) -> Any:
        calls.append(1)
        return fused(*inputs, **options)

    monkeypatch.setattr(blocked, "flash_attention_cpu", counting)
    for at_once in (2**40, most * _bytes_of_a_head(sparse)):
        monkeypatch.setattr(blocked, "_GATHERED_BYTES", at_once)
        found.append(outcome(Blocked(sparse), Mask(KEEP), heads=5))
    assert len(calls) == 1 + 2
    torch.testing.assert_close(*found)


def _bytes_of_a_head(sparse: Sparse) -> int:
    layout = make_layout(sparse, LENGTH, False, torch.device("cpu"))
    shared = sparse.global_tokens.first + 2 * sparse.global_tokens.block
    return BATCH * layout.blocks * (len(layout.columns) * layout.size + shared) * HEAD_DIM * 8


@pytest.mark.parametrize("count", [1, HEAD_DIM], ids=["few", "many"])
@pytest.mark.parametrize("documents", [None, DOCUMENTS], ids=["one", "packed"])
def test_few_global_tokens_are_projected_in_place_of_the_text(count: int, documents: Tensor | None) -> None:
    """Against the definition: keys and values of all tokens under their own projections."""
    torch.manual_seed(1)
    width = HEADS * HEAD_DIM
    attention = GlobalAttention(width, HEADS, Sparse((Window(19),), Global(first=count))).double()
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    hidden = torch.randn(BATCH, LENGTH, width, dtype=torch.float64, requires_grad=True)
    mask = Mask(KEEP, documents=documents)
    global_tokens = mask.find_global_tokens(attention.sparse.global_tokens, BATCH, LENGTH, hidden.device)
    parts = (attention.query_global, attention.key_global, attention.value_global)
    query, key, value = (split_heads(part(hidden), HEADS) for part in parts)
    index = global_tokens.index[:, None, :, None].expand(-1, HEADS, -1, HEAD_DIM)
    truth = attend_from_global(query.gather(2, index), key, value, mask, global_tokens, 0.0)
    found = attention._attend_from_global(query.gather(2, index), hidden, mask, global_tokens)
    torch.testing.assert_close(found, truth)
    learns = [hidden, *(p for part in parts for p in part.parameters())]
    upstream = torch.randn_like(truth)
    gradients = [torch.autograd.grad(values, learns, upstream, retain_graph=True) for values in (found, truth)]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)
