"""Exact attention under a union of patterns, a block of queries at a time: memory and work grow with the length.

Each block of queries gets the blocks of keys of its patterns and the global tokens, with a mask inside the blocks, in
one batched call of SDPA. Queries of global tokens are computed separately. A dilated window is a plain one once tokens
are ordered by their remainder. Equal to `DotProduct` up to rounding.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from homespun.attention import flex
from homespun.attention.block_plan import Plan, make_plan
from homespun.attention.full import DotProduct, attend
from homespun.nn.masks import Mask, zero_fully_masked
from homespun.nn.patterns import Sparse
from homespun.nn.torch_private import FunctionContext, flash_attention_cpu, flash_attention_cpu_backward

# bytes of gathered keys that are attended to at once, on a CPU. At 4,096 tokens, forward and backward of the attention
# alone, the peak falls from 1.28 to 0.95 GB against all heads at once, for 3 % of time; half as many save little more
_AT_ONCE = 2**25
_FEW = 12288  # numbers of a block's keys of one head, up to which half precision is slower there than float32


class Blocked(nn.Module):
    """``softmax(query key^T / sqrt(head_dim)) value`` over the keys that a union of patterns allows.

    With a cache, and for texts so short that blocks save nothing, `DotProduct` computes it; on a GPU, if possible,
    `homespun.attention.flex`. ``dropout`` is of the attention probabilities, in training.
    """

    def __init__(self, sparse: Sparse, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.sparse = sparse
        self.dropout = dropout
        self.dense = DotProduct(sparse, dropout=dropout)
        self.groups = sparse.groups()

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        """(batch, heads, queries, head_dim) from queries, and (batch, heads, keys, head_dim) keys and values."""
        if flex.is_usable(self.sparse, query, key, mask, self.dropout if self.training else 0.0):
            values: Tensor = flex.attend(self.sparse, query, key, value, mask)
            return values
        own = mask.start == 0 and key.shape[-2] == query.shape[-2]
        plans = [
            make_plan(sparse, query.shape[-2], mask.causal, query.device) if own else None for sparse, _ in self.groups
        ]
        if any(plan is None for plan in plans):
            dense: Tensor = self.dense(query, key, value, mask)
            return dense
        if len(self.groups) == 1:
            return self._planned(plans[0], self.sparse, query, key, value, mask)
        parts = [
            self._planned(plan, sparse, query[:, list(heads)], key[:, list(heads)], value[:, list(heads)], mask)
            for plan, (sparse, heads) in zip(plans, self.groups, strict=True)
        ]
        order = torch.tensor([head for _, heads in self.groups for head in heads], device=query.device)
        return torch.cat(parts, dim=1).index_select(1, order.argsort())

    def _planned(
        self, plan: Plan | None, sparse: Sparse, query: Tensor, key: Tensor, value: Tensor, mask: Mask
    ) -> Tensor:
        assert plan is not None
        return _attend(plan, sparse, mask, self.dropout if self.training else 0.0, query, key, value)

    def extra_repr(self) -> str:
        return f"{self.sparse}, dropout={self.dropout}"


@dataclass(frozen=True, eq=False)
class GlobalTokens:
    """The tokens of each row that see all and are seen by all."""

    index: Tensor  # (batch, n) int64 positions, all different
    real: Tensor | None  # (batch, n) bool: False where a row has fewer of them; None where none has
    global_mask: Tensor  # (batch or 1, seq) bool


def find_global_tokens(
    sparse: Sparse, mask: Mask, batch: int, length: int, device: torch.device
) -> GlobalTokens | None:
    """Positions of global tokens, found once for all layers; None if there are none."""
    if sparse.global_tokens is None:
        return None
    global_mask = mask.global_mask(sparse.global_tokens, length, device)

    def find() -> GlobalTokens | None:
        most = int(global_mask.sum(-1).max())
        if not most:
            return None
        index = global_mask.int().argsort(dim=-1, descending=True, stable=True)[:, :most].expand(batch, -1)
        real = global_mask.expand(batch, -1).gather(1, index)
        return GlobalTokens(index, None if bool(real.all()) else real, global_mask)

    return mask.once(("global_tokens", sparse.global_tokens, batch, length), find)


def _attend(
    plan: Plan, sparse: Sparse, mask: Mask, dropout: float, query: Tensor, key: Tensor, value: Tensor
) -> Tensor:
    batch, heads, length, _ = query.shape
    global_tokens = find_global_tokens(sparse, mask, batch, length, query.device)
    bias, sees = mask.once(
        ("bias", plan, sparse.global_tokens, batch, query.dtype),
        lambda: _bias(plan, mask, global_tokens, batch, query.dtype),
    )
    if not torch.is_grad_enabled():
        values = _in_blocks(query, key, value, plan, global_tokens, bias, dropout)
    elif query.device.type == "cpu" and not dropout and not torch.compiler.is_compiling():
        values = _InBlocks.apply(query, key, value, plan, global_tokens, bias)  # type: ignore[no-untyped-call]
    else:
        # the gathered keys are several times the keys: they are gathered again in the backward pass, not kept for it
        values = checkpoint(
            _in_blocks,
            *(query, key, value, plan, global_tokens, bias, dropout),
            use_reentrant=False,
            preserve_rng_state=dropout > 0,
        )
    if sees is not None:
        values = torch.where(sees, values, values.new_zeros(()))
    if plan.heads == 1:  # (batch * blocks, heads, size, head_dim)
        values = values.transpose(1, 2).reshape(batch, -1, heads, values.shape[-1])
    else:  # (batch, heads * blocks, size, head_dim)
        values = values.reshape(batch, heads, -1, values.shape[-1]).transpose(1, 2)
    values = values[:, :length] if plan.slot is None else values.index_select(1, plan.slot)  # (batch, seq, heads, ...)
    values = values.transpose(1, 2)
    if global_tokens is None or sparse.global_tokens is None or not sparse.global_tokens.queries:
        return values
    index = global_tokens.index[:, None, :, None].expand(-1, heads, -1, values.shape[-1])
    found = see_all(query.gather(2, index), key, value, mask, global_tokens, dropout)
    if global_tokens.real is not None:  # an unreal index is a token of its own, that keeps what it has
        found = torch.where(global_tokens.real[:, None, :, None], found, values.gather(2, index))
    return values.scatter(2, index, found)


def _in_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    plan: Plan,
    global_tokens: GlobalTokens | None,
    bias: Tensor | None,
    dropout: float,
) -> Tensor:
    """The values of each block of queries, in the layout of `_query_blocks`."""
    blocks = _blocks(query, key, value, plan, global_tokens)
    return attend(*blocks, table=bias, dropout=dropout)


def _blocks(
    query: Tensor, key: Tensor, value: Tensor, plan: Plan, global_tokens: GlobalTokens | None
) -> tuple[Tensor, Tensor, Tensor]:
    return _query_blocks(query, plan), _key_blocks(key, plan, global_tokens), _key_blocks(value, plan, global_tokens)


class _InBlocks(torch.autograd.Function):
    """`_in_blocks` on a CPU: the backward pass gathers keys and values again, and does not compute attention again.

    The two halves of SDPA's fused path on a CPU. Some heads at a time: gathered keys are several times the keys.
    """

    @staticmethod
    def forward(
        ctx: FunctionContext,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        plan: Plan,
        global_tokens: GlobalTokens | None,
        bias: Tensor | None,
    ) -> Tensor:
        heads, parts, sums = query.shape[1], [], []
        for part, own, its_bias in _by_heads(query, plan, global_tokens, bias):
            blocks = _blocks(query[:, part], key[:, part], value[:, part], own, global_tokens)
            values, totals = flash_attention_cpu(*blocks, attn_mask=its_bias)
            parts.append(values)
            sums.append(totals)
        ctx.plan, ctx.global_tokens, ctx.bias, ctx.heads = plan, global_tokens, bias, heads
        result = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        ctx.save_for_backward(query, key, value, result, *sums)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionContext, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, values, *sums = ctx.saved_tensors
        totals = [torch.empty_like(tensor) for tensor in (query, key, value)]
        places = zip(_by_heads(query, ctx.plan, ctx.global_tokens, ctx.bias), sums, strict=True)
        for (part, own, bias), logsumexp in places:
            inputs = [tensor[:, part].detach().requires_grad_() for tensor in (query, key, value)]
            with torch.enable_grad():
                blocks = _blocks(inputs[0], inputs[1], inputs[2], own, ctx.global_tokens)
            width = values.shape[1] // query.shape[1]
            where = slice(part.start * width, part.stop * width)
            given = (gradient[:, where], *(block.detach() for block in blocks), values[:, where])
            given, bias = _widened(given, bias)
            gradients = flash_attention_cpu_backward(*given, logsumexp, 0.0, False, attn_mask=bias)
            gradients = [found.to(query.dtype) for found in gradients]
            for total, found in zip(totals, torch.autograd.grad(blocks, inputs, gradients), strict=True):
                total[:, part] = found
        return *totals, None, None, None


def _widened(given: tuple[Tensor, ...], bias: Tensor | None) -> tuple[tuple[Tensor, ...], Tensor | None]:
    """Float32 in place of half precision where it halves the time of a block's backward pass: with few keys."""
    _, _, key, _, _ = given
    if key.element_size() > 2 or key.shape[-2] * key.shape[-1] > _FEW:
        return given, bias
    return tuple(part.float() for part in given), None if bias is None else bias.float()


def _by_heads(
    query: Tensor, plan: Plan, global_tokens: GlobalTokens | None, bias: Tensor | None
) -> Iterator[tuple[slice, Plan, Tensor | None]]:
    """Heads to compute at once, with their part of the plan and of the bias."""
    batch, heads, _, head_dim = query.shape
    shared = 0 if global_tokens is None else global_tokens.index.shape[1]
    gathered = batch * plan.blocks * (len(plan.columns) * plan.size + shared) * head_dim * query.element_size()
    # no part is of one head alone, whose layout would be the other one
    parts = max(1, min(-(-heads * gathered // _AT_ONCE), heads // 2))
    edges = [heads * number // parts for number in range(parts + 1)]
    for first, last in itertools.pairwise(edges):
        part, blocks = slice(first, last), slice(first * plan.blocks, last * plan.blocks)
        if plan.heads == 1:
            yield part, plan, bias
        else:
            yield part, plan.of_heads(part), None if bias is None else bias[:, blocks]


def see_all(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask, global_tokens: GlobalTokens, dropout: float
) -> Tensor:
    """(batch, heads, n, head_dim): values of the global tokens' queries, over all keys that the batch allows."""
    table = global_token_table(mask, global_tokens, key.shape[2])
    values = attend(query, key, value, table=table, dropout=dropout)
    return zero_fully_masked(values, table)


def global_token_table(mask: Mask, global_tokens: GlobalTokens, keys: int) -> Tensor | None:
    """(batch or 1, 1, n or 1, keys) bool: what the batch lets global tokens see; None: everything."""

    def build() -> Tensor | None:
        index, tables = global_tokens.index, []
        if mask.causal:
            tables.append(torch.arange(keys, device=index.device) <= index[:, None, :, None])
        if mask.documents is not None:
            asking = mask.documents.gather(1, index)
            tables.append((asking[:, :, None] == mask.documents[:, None, :])[:, None])
        if mask.keep is not None:
            tables.append(mask.keep[:, None, None, :])
        return functools.reduce(torch.Tensor.__and__, tables) if tables else None

    return mask.once(("all", global_tokens), build)


def _query_blocks(query: Tensor, plan: Plan) -> Tensor:
    """(batch * blocks, heads, size, head_dim), or (batch, heads * blocks, size, head_dim) where heads differ."""
    batch, heads, _, head_dim = query.shape
    tokens = _in_slots(query.transpose(1, 2), plan)  # (batch, slots, heads, head_dim)
    if plan.heads == 1:
        return tokens.reshape(batch * plan.blocks, plan.size, heads, head_dim).transpose(1, 2)
    return tokens.transpose(1, 2).reshape(batch, heads * plan.blocks, plan.size, head_dim)


def _key_blocks(key: Tensor, plan: Plan, global_tokens: GlobalTokens | None) -> Tensor:
    """As `_query_blocks`, with the keys that each block needs in place of ``size``."""
    batch, heads, _, head_dim = key.shape
    tokens = key.transpose(1, 2)
    shifts = [column for column in plan.columns if isinstance(column, int)]
    before, after = -min([0, *shifts]), max([0, *shifts])
    blocks = _in_slots(tokens, plan, before * plan.size, after * plan.size)
    groups = plan.heads
    if groups == 1:
        blocks = blocks.reshape(batch, 1, -1, plan.size, heads * head_dim)  # (batch, groups, blocks, size, width)
    else:
        blocks = blocks.reshape(batch, -1, plan.size, heads, head_dim).permute(0, 3, 1, 2, 4)
    seen = None
    if global_tokens is not None:
        index = global_tokens.index[:, :, None, None].expand(-1, -1, heads, head_dim)
        seen = tokens.gather(1, index)  # (batch, n, heads, head_dim)
        seen = seen.flatten(2)[:, None] if groups == 1 else seen.transpose(1, 2)
    gathered: Tensor = _Gather.apply(blocks, seen, plan.columns, before, plan.blocks)  # type: ignore[no-untyped-call]
    if groups == 1:
        return gathered.view(batch * plan.blocks, -1, heads, head_dim).transpose(1, 2)
    return gathered.view(batch, heads * plan.blocks, -1, head_dim)


class _Gather(torch.autograd.Function):
    """Blocks of keys next to each other, then the keys that every block needs.

    Autograd of slices and their concatenation would fill a gradient as large as all the keys for every column.
    """

    @staticmethod
    def forward(
        ctx: FunctionContext,
        blocks: Tensor,
        seen: Tensor | None,
        columns: tuple[int | Tensor, ...],
        before: int,
        count: int,
    ) -> Tensor:
        """(batch, groups, count, columns * size + n, width) of blocks (batch, groups, all, size, width)."""
        batch, groups, _, size, width = blocks.shape
        shared = 0 if seen is None else seen.shape[2]
        gathered = blocks.new_empty(batch, groups, count, len(columns) * size + shared, width)
        flat = _Gather.flat(blocks, columns)
        for place, column in enumerate(columns):
            part = gathered.narrow(3, place * size, size)
            if isinstance(column, int):
                part.copy_(blocks.narrow(2, before + column, count))
            else:
                part.copy_(flat.index_select(1, _Gather.index(column, blocks, before)).view(part.shape))
        if seen is not None:
            gathered.narrow(3, len(columns) * size, shared).copy_(seen[:, :, None])
        ctx.shape, ctx.shared, ctx.columns, ctx.before, ctx.count = blocks.shape, shared, columns, before, count
        return gathered

    @staticmethod
    def backward(ctx: FunctionContext, gradient: Tensor) -> tuple[Tensor | None, ...]:
        blocks = gradient.new_zeros(ctx.shape)
        size = ctx.shape[3]
        for place, column in enumerate(ctx.columns):
            part = gradient.narrow(3, place * size, size)
            if isinstance(column, int):
                blocks.narrow(2, ctx.before + column, ctx.count).add_(part)
            else:
                blocks.flatten(1, 2).index_add_(1, _Gather.index(column, blocks, ctx.before), part.flatten(1, 2))
        seen = gradient.narrow(3, len(ctx.columns) * size, ctx.shared).sum(2) if ctx.shared else None
        return blocks, seen, None, None, None

    @staticmethod
    def flat(blocks: Tensor, columns: tuple[int | Tensor, ...]) -> Tensor:
        """(batch, groups * all, size, width); a copy where groups are heads, so made only if it is used."""
        return blocks if all(isinstance(column, int) for column in columns) else blocks.flatten(1, 2)

    @staticmethod
    def index(column: Tensor, blocks: Tensor, before: int) -> Tensor:
        """(groups * count,) int64 into the flat blocks; missing ones read any block, and are masked."""
        first = torch.arange(blocks.shape[1], device=column.device)[:, None] * blocks.shape[2] + before
        return (first + column.clamp(min=0)).flatten()


def _in_slots(tokens: Tensor, plan: Plan, before: int = 0, after: int = 0) -> Tensor:
    """(batch, before + slots + after, heads, head_dim): the tokens in their slots, zeros in empty ones."""
    if plan.place is not None:
        tokens = tokens.index_select(1, plan.place)
    missing = plan.blocks * plan.size - tokens.shape[1] + after
    return F.pad(tokens, (0, 0, 0, 0, before, missing)) if before or missing else tokens


def _bias(
    plan: Plan, mask: Mask, global_tokens: GlobalTokens | None, batch: int, dtype: torch.dtype
) -> tuple[Tensor | None, Tensor | None]:
    """Bias of the scores and mask of the queries that see a key, in block layout; None: no effect.

    Masked scores get the least number, not minus infinity: queries without a key then have finite gradients, times
    zero.
    """
    ok = plan.inside[None]  # (batch or 1, heads, blocks, size or 1, keys)
    rows = plan.queries.squeeze(-1)  # (1, blocks, size)
    if mask.keep is not None:
        ok = ok & _of_tokens(mask.keep, plan.keys)[:, :, :, None]
    if global_tokens is not None:
        ok = ok & ~_of_tokens(global_tokens.global_mask, plan.keys)[:, :, :, None]
    if mask.documents is not None:
        same = _of_tokens(mask.documents, rows)[..., None] == _of_tokens(mask.documents, plan.keys)[:, :, :, None]
        ok = ok & same
    if global_tokens is not None:
        real = global_tokens.real
        if real is None:
            real = torch.ones_like(global_tokens.index[:1], dtype=torch.bool)
        shared = real[:, None, None, None, :]  # (batch or 1, 1, 1, 1, n)
        if mask.causal:
            shared = shared & (global_tokens.index[:, None, None, None, :] <= rows[None, ..., None])
        if mask.documents is not None:
            asked = mask.documents.gather(1, global_tokens.index)[:, None, None, None, :]
            shared = shared & (_of_tokens(mask.documents, rows)[..., None] == asked)
        shape = (ok[..., 0] | shared[..., 0]).shape
        ok = torch.cat([ok.expand(*shape, -1), shared.expand(*shape, -1)], dim=-1)
    sees = ok.any(-1, keepdim=True)
    bias = torch.zeros(ok.shape, dtype=dtype, device=ok.device).masked_fill_(~ok, torch.finfo(dtype).min)
    return (
        None if bool(ok.all()) else _as_blocks(bias, plan, batch),
        None if bool(sees.all()) else _as_blocks(sees, plan, batch),
    )


def _of_tokens(values: Tensor, places: Tensor) -> Tensor:
    """(batch or 1, *places) of (batch or 1, seq) values; False or -2 where there is no token."""
    nothing = False if values.dtype == torch.bool else -2
    return F.pad(values, (0, 1), value=nothing)[:, places]


def _as_blocks(table: Tensor, plan: Plan, batch: int) -> Tensor:
    """(batch or 1, heads, blocks, size or 1, keys or 1) in the layout of `_query_blocks`, to broadcast."""
    if plan.heads == 1:
        return table.expand(batch, *table.shape[1:]).reshape(batch * plan.blocks, 1, *table.shape[3:])
    return table.expand(-1, plan.heads, -1, -1, -1).flatten(1, 2)
