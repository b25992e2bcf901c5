"""Blockwise attention under a union of patterns: memory and time are linear in the sequence length.

Each block of queries attends to the blocks of keys of its patterns and to the global tokens, in one batched call of
SDPA with a mask inside the blocks. Queries of global tokens are computed separately. A dilated window becomes a plain
window once tokens are sorted by position modulo dilation. Results equal `DotProduct` up to rounding.
"""

from __future__ import annotations

import dataclasses
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
from homespun.attention.full import DotProduct, attend
from homespun.nn.masks import GlobalTokens, Mask, zero_fully_masked
from homespun.nn.patterns import Sparse
from homespun.nn.torch_private import FunctionContext, flash_attention_cpu, flash_attention_cpu_backward

# Bytes of gathered keys in one call on a CPU. At 4,096 tokens the peak of forward and backward falls from 1.28 to
# 0.95 GB against one call for all heads, for 3 % of time; half the size saves little more.
_GATHERED_BYTES = 2**25
_WIDEN_BELOW = 12288  # numbers in a block's keys of one head up to which float32 is faster than half precision


@dataclass(frozen=True, eq=False)
class BlockLayout:
    """Blocks of keys of each block of queries, for one sequence length and union of patterns; shared by all batches."""

    size: int  # tokens in a block
    heads: int  # 1: the same layout for all heads
    order: Tensor | None  # (slots,) int64: token of each slot; None: tokens stay in order
    slot: Tensor | None  # (seq,) int64: slot of each token
    queries: Tensor  # (1, blocks, size, 1) int64 positions; the sequence length in empty slots
    keys: Tensor  # (heads, blocks, keys) int64 positions; the sequence length in empty slots
    columns: tuple[int | Tensor, ...]  # key blocks: an offset from the query block, or (heads, blocks) int64
    allowed: Tensor  # (heads, blocks, size or 1, keys) bool: mask of patterns and causality

    @property
    def blocks(self) -> int:
        return self.queries.shape[1]

    def of_heads(self, part: slice) -> BlockLayout:
        """Restrict the number of heads and the columns to a slice of heads; other fields still cover all heads."""
        columns = tuple(column if isinstance(column, int) else column[part] for column in self.columns)
        return dataclasses.replace(self, heads=part.stop - part.start, columns=columns)


@functools.lru_cache(maxsize=64)
@torch.inference_mode(False)  # the first call may be in inference mode, whose tensors training could not use
def make_layout(sparse: Sparse, length: int, causal: bool, device: torch.device) -> BlockLayout | None:
    """Build the layout for a sequence length, or None if dense attention is at least as fast."""
    if not sparse.patterns:
        return None
    size, step = sparse.block_size, sparse.step
    num_global = 0 if sparse.global_tokens is None else 2 * sparse.global_tokens.max_count
    slots = -(-length // size) * size
    order = torch.arange(length)
    if step > 1:  # sort by position modulo step
        order = (order % step * length + order // step).argsort()
    table = sparse.key_blocks(length, size)  # (heads, blocks, n)
    if 3 * (table.shape[-1] * size + num_global) // 2 + 128 > length:  # measured on a CPU, forward and backward
        return None
    positions = F.pad(order, (0, slots - length), value=length)
    queries = positions.view(1, -1, size, 1)
    keys = (table[..., None] * size + torch.arange(size)).flatten(2)  # (heads, blocks, keys)
    keys = torch.where(keys >= 0, positions[keys.clamp(min=0)], length)
    allowed = sparse.allowed(queries, keys[:, :, None])
    assert allowed is not None
    allowed = allowed & (keys < length)[:, :, None]
    if causal:
        allowed = allowed & (keys[:, :, None] <= queries)
    allowed = allowed.expand(table.shape[0], *allowed.shape[1:])
    empty = (queries == length).expand_as(allowed)
    any_query = (allowed & ~empty).any(-2, keepdim=True)
    if bool(((allowed == any_query) | empty).all()):  # all queries of a block see the same keys
        allowed = any_query
    return BlockLayout(
        size,
        table.shape[0],
        order.to(device) if step > 1 else None,
        order.argsort().to(device) if step > 1 else None,
        queries.to(device),
        keys.to(device),
        tuple(_column(column) for column in table.to(device).unbind(-1)),
        allowed.to(device),
    )


def _column(column: Tensor) -> int | Tensor:
    """Return the offset of (heads, blocks) key blocks from their query blocks if it is constant, else the column."""
    offsets = (column - torch.arange(column.shape[1], device=column.device))[column >= 0]
    first = int(offsets[0]) if len(offsets) else 0
    return first if bool((offsets == first).all()) else column


class Blocked(nn.Module):
    """Sparse attention ``softmax(query key^T / sqrt(head_dim)) value`` over the keys that a union of patterns allows.

    Uses `homespun.attention.flex` on a GPU that supports it, and `DotProduct` with a cache and for short sequences.

    Args:
        sparse: patterns and global tokens.
        dropout: dropout probability of the attention probabilities, in training.
    """

    def __init__(self, sparse: Sparse, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.sparse = sparse
        self.dropout = dropout
        self.dense = DotProduct(sparse, dropout=dropout)
        self.groups = sparse.groups()

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        """Attend from (batch, heads, queries, head_dim) queries to (batch, heads, keys, head_dim) keys and values."""
        if self.sparse.global_tokens is not None and self.sparse.global_tokens.block:
            mask.refuse_cache("sparse attention with a global last block")  # which moves as a text grows
        dropout = self.dropout if self.training else 0.0
        if flex.is_usable(self.sparse, query, key, mask, dropout):
            return flex.attend(self.sparse, query, key, value, mask)
        layouts = []
        if mask.start == 0 and key.shape[-2] == query.shape[-2]:
            found = [make_layout(sparse, key.shape[-2], mask.causal, query.device) for sparse, _ in self.groups]
            layouts = [layout for layout in found if layout is not None]
        if len(layouts) < len(self.groups):
            return self.dense(query, key, value, mask)
        if len(self.groups) == 1:
            return _attend(layouts[0], self.sparse, mask, dropout, query, key, value)
        parts = [
            _attend(layout, sparse, mask, dropout, *(part[:, list(heads)] for part in (query, key, value)))
            for layout, (sparse, heads) in zip(layouts, self.groups, strict=True)
        ]
        order = torch.tensor([head for _, heads in self.groups for head in heads], device=query.device)
        return torch.cat(parts, dim=1).index_select(1, order.argsort())

    def extra_repr(self) -> str:
        return f"{self.sparse}, dropout={self.dropout}"


def _attend(
    layout: BlockLayout, sparse: Sparse, mask: Mask, dropout: float, query: Tensor, key: Tensor, value: Tensor
) -> Tensor:
    batch, heads, length, _ = query.shape
    global_tokens = mask.find_global_tokens(sparse.global_tokens, batch, length, query.device)
    bias, sees = mask.once(
        ("bias", layout, sparse.global_tokens, batch, query.dtype),
        lambda: _bias(layout, mask, global_tokens, batch, query.dtype),
    )
    if not torch.is_grad_enabled():
        values = _attend_blocks(query, key, value, layout, global_tokens, bias, dropout)
    elif query.device.type == "cpu" and not dropout and not torch.compiler.is_compiling():
        values = _BlockAttention.apply(query, key, value, layout, global_tokens, bias)
    else:
        # gathered keys are several times as large as the keys: gather them again in the backward pass
        values = checkpoint(
            _attend_blocks,
            *(query, key, value, layout, global_tokens, bias, dropout),
            use_reentrant=False,
            preserve_rng_state=dropout > 0,
        )
    if sees is not None:
        values = torch.where(sees, values, values.new_zeros(()))
    if layout.heads == 1:  # (batch * blocks, heads, size, head_dim)
        values = values.transpose(1, 2).reshape(batch, -1, heads, values.shape[-1])
    else:  # (batch, heads * blocks, size, head_dim)
        values = values.reshape(batch, heads, -1, values.shape[-1]).transpose(1, 2)
    values = values[:, :length] if layout.slot is None else values.index_select(1, layout.slot)  # (batch, seq, heads,
    values = values.transpose(1, 2)  # (batch, heads, seq, head_dim)
    if global_tokens is None or sparse.global_tokens is None or not sparse.global_tokens.queries:
        return values
    index = global_tokens.index[:, None, :, None].expand(-1, heads, -1, values.shape[-1])
    found = attend_from_global(query.gather(2, index), key, value, mask, global_tokens, dropout)
    if global_tokens.real is not None:  # other indices are distinct ordinary tokens, whose values stay
        found = torch.where(global_tokens.real[:, None, :, None], found, values.gather(2, index))
    return values.scatter(2, index, found)


def attend_from_global(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask, global_tokens: GlobalTokens, dropout: float
) -> Tensor:
    """Attend from (batch, heads, n, head_dim) queries of global tokens to all keys that the mask allows."""
    table = mask.global_token_table(global_tokens, key.shape[2])
    values = attend(query, key, value, table=table, dropout=dropout)
    return zero_fully_masked(values, table)


def _attend_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: BlockLayout,
    global_tokens: GlobalTokens | None,
    bias: Tensor | None,
    dropout: float,
) -> Tensor:
    """Compute the values of each block of queries, in the layout of `_query_blocks`."""
    return attend(*_blocks(query, key, value, layout, global_tokens), table=bias, dropout=dropout)


def _blocks(
    query: Tensor, key: Tensor, value: Tensor, layout: BlockLayout, global_tokens: GlobalTokens | None
) -> tuple[Tensor, Tensor, Tensor]:
    keys, values = (_key_blocks(part, layout, global_tokens) for part in (key, value))
    return _query_blocks(query, layout), keys, values


class _BlockAttention(torch.autograd.Function):
    """`_attend_blocks` on a CPU by both halves of SDPA's flash attention, a few heads at a time.

    The backward pass gathers keys and values again and does not compute the attention again.
    """

    @staticmethod
    def forward(
        ctx: FunctionContext,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        layout: BlockLayout,
        global_tokens: GlobalTokens | None,
        bias: Tensor | None,
    ) -> Tensor:
        values, logsumexps = [], []
        for part, part_layout, part_bias in _split_heads(query, layout, global_tokens, bias):
            blocks = _blocks(query[:, part], key[:, part], value[:, part], part_layout, global_tokens)
            part_values, logsumexp = flash_attention_cpu(*blocks, attn_mask=part_bias)
            values.append(part_values)
            logsumexps.append(logsumexp)
        ctx.layout, ctx.global_tokens, ctx.bias = layout, global_tokens, bias
        result = values[0] if len(values) == 1 else torch.cat(values, 1)
        ctx.save_for_backward(query, key, value, result, *logsumexps)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionContext, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, values, *logsumexps = ctx.saved_tensors
        totals = [torch.empty_like(tensor) for tensor in (query, key, value)]
        width = values.shape[1] // query.shape[1]  # rows of `values` a head
        parts = _split_heads(query, ctx.layout, ctx.global_tokens, ctx.bias)
        for (part, layout, bias), logsumexp in zip(parts, logsumexps, strict=True):
            inputs = [tensor[:, part].detach().requires_grad_() for tensor in (query, key, value)]
            with torch.enable_grad():
                blocks = _blocks(inputs[0], inputs[1], inputs[2], layout, ctx.global_tokens)
            rows = slice(part.start * width, part.stop * width)
            arguments = (gradient[:, rows], *(block.detach() for block in blocks), values[:, rows])
            if blocks[1].element_size() <= 2 and blocks[1].shape[-2] * blocks[1].shape[-1] <= _WIDEN_BELOW:
                arguments = tuple(argument.float() for argument in arguments)
                bias = None if bias is None else bias.float()
            gradients = flash_attention_cpu_backward(*arguments, logsumexp, 0.0, False, attn_mask=bias)
            gradients = [block_gradient.to(query.dtype) for block_gradient in gradients]
            for total, found in zip(totals, torch.autograd.grad(blocks, inputs, gradients), strict=True):
                total[:, part] = found
        return *totals, None, None, None


def _split_heads(
    query: Tensor, layout: BlockLayout, global_tokens: GlobalTokens | None, bias: Tensor | None
) -> Iterator[tuple[slice, BlockLayout, Tensor | None]]:
    """Slices of the heads whose gathered keys fit `_GATHERED_BYTES`, with their layout and bias."""
    batch, heads, _, head_dim = query.shape
    num_global = 0 if global_tokens is None else global_tokens.index.shape[1]
    gathered = batch * layout.blocks * (len(layout.columns) * layout.size + num_global) * head_dim
    # at least two heads a part: the layout of a single head is that of ``heads == 1``
    parts = max(1, min(-(-heads * gathered * query.element_size() // _GATHERED_BYTES), heads // 2))
    edges = [heads * number // parts for number in range(parts + 1)]
    for first, last in itertools.pairwise(edges):
        part, blocks = slice(first, last), slice(first * layout.blocks, last * layout.blocks)
        if layout.heads == 1:
            yield part, layout, bias
        else:
            yield part, layout.of_heads(part), None if bias is None else bias[:, blocks]


def _query_blocks(query: Tensor, layout: BlockLayout) -> Tensor:
    """Return (batch * blocks, heads, size, head_dim), or (batch, heads * blocks, size, head_dim) if heads differ."""
    batch, heads, _, head_dim = query.shape
    tokens = _to_slots(query.transpose(1, 2), layout)  # (batch, slots, heads, head_dim)
    if layout.heads == 1:
        return tokens.reshape(batch * layout.blocks, layout.size, heads, head_dim).transpose(1, 2)
    return tokens.transpose(1, 2).reshape(batch, heads * layout.blocks, layout.size, head_dim)


def _key_blocks(key: Tensor, layout: BlockLayout, global_tokens: GlobalTokens | None) -> Tensor:
    """Return the keys of each block in the layout of `_query_blocks`, with keys in place of ``size``."""
    batch, heads, _, head_dim = key.shape
    tokens = key.transpose(1, 2)
    offsets = [column for column in layout.columns if isinstance(column, int)]
    before, after = -min([0, *offsets]), max([0, *offsets])
    blocks = _to_slots(tokens, layout, before * layout.size, after * layout.size)
    groups = layout.heads
    if groups == 1:
        blocks = blocks.reshape(batch, 1, -1, layout.size, heads * head_dim)  # (batch, groups, blocks, size, width)
    else:
        blocks = blocks.reshape(batch, -1, layout.size, heads, head_dim).permute(0, 3, 1, 2, 4)
    global_keys = None
    if global_tokens is not None:
        index = global_tokens.index[:, :, None, None].expand(-1, -1, heads, head_dim)
        global_keys = tokens.gather(1, index)  # (batch, n, heads, head_dim)
        global_keys = global_keys.flatten(2)[:, None] if groups == 1 else global_keys.transpose(1, 2)
    gathered: Tensor = _Gather.apply(blocks, global_keys, layout.columns, before, layout.blocks)
    if groups == 1:
        return gathered.view(batch * layout.blocks, -1, heads, head_dim).transpose(1, 2)
    return gathered.view(batch, heads * layout.blocks, -1, head_dim)


class _Gather(torch.autograd.Function):
    """Concatenate the key blocks of each query block, then the global keys.

    Autograd of slices and their concatenation would fill a gradient of the size of all keys for every column.
    """

    @staticmethod
    def forward(
        ctx: FunctionContext,
        blocks: Tensor,
        global_keys: Tensor | None,
        columns: tuple[int | Tensor, ...],
        before: int,
        count: int,
    ) -> Tensor:
        """Map (batch, groups, all, size, width) to (batch, groups, count, columns * size + n, width)."""
        batch, groups, _, size, width = blocks.shape
        num_global = 0 if global_keys is None else global_keys.shape[2]
        gathered = blocks.new_empty(batch, groups, count, len(columns) * size + num_global, width)
        # a copy if groups are heads, so flattened only for columns of indices
        flat = blocks if all(isinstance(column, int) for column in columns) else blocks.flatten(1, 2)
        for number, column in enumerate(columns):
            part = gathered.narrow(3, number * size, size)
            if isinstance(column, int):
                part.copy_(blocks.narrow(2, before + column, count))
            else:
                part.copy_(flat.index_select(1, _Gather.index(column, blocks, before)).view(part.shape))
        if global_keys is not None:
            gathered.narrow(3, len(columns) * size, num_global).copy_(global_keys[:, :, None])
        ctx.shape, ctx.num_global, ctx.columns, ctx.before, ctx.count = blocks.shape, num_global, columns, before, count
        return gathered

    @staticmethod
    def backward(ctx: FunctionContext, gradient: Tensor) -> tuple[Tensor | None, ...]:
        blocks = gradient.new_zeros(ctx.shape)
        size = ctx.shape[3]
        for number, column in enumerate(ctx.columns):
            part = gradient.narrow(3, number * size, size)
            if isinstance(column, int):
                blocks.narrow(2, ctx.before + column, ctx.count).add_(part)
            else:
                blocks.flatten(1, 2).index_add_(1, _Gather.index(column, blocks, ctx.before), part.flatten(1, 2))
        global_keys = gradient.narrow(3, len(ctx.columns) * size, ctx.num_global).sum(2) if ctx.num_global else None
        return blocks, global_keys, None, None, None

    @staticmethod
    def index(column: Tensor, blocks: Tensor, before: int) -> Tensor:
        """Return (groups * count,) int64 into flattened blocks; missing blocks read any block and are masked."""
        first = torch.arange(blocks.shape[1], device=column.device)[:, None] * blocks.shape[2] + before
        return (first + column.clamp(min=0)).flatten()


def _to_slots(tokens: Tensor, layout: BlockLayout, before: int = 0, after: int = 0) -> Tensor:
    """Map (batch, seq, heads, head_dim) to (batch, before + slots + after, heads, head_dim); empty slots are zero."""
    if layout.order is not None:
        tokens = tokens.index_select(1, layout.order)
    missing = layout.blocks * layout.size - tokens.shape[1] + after
    return F.pad(tokens, (0, 0, 0, 0, before, missing)) if before or missing else tokens


def _bias(
    layout: BlockLayout, mask: Mask, global_tokens: GlobalTokens | None, batch: int, dtype: torch.dtype
) -> tuple[Tensor | None, Tensor | None]:
    """Build the bias of the scores and the mask of queries that see a key, in block layout; None: no effect.

    Masked scores get half of the least number, whose sum with a score is finite: a row of -inf has gradients of NaN.
    """
    allowed = layout.allowed[None]  # (batch or 1, heads, blocks, size or 1, keys)
    rows = layout.queries.squeeze(-1)  # (1, blocks, size)
    documents = None if mask.documents is None else _lookup(mask.documents, rows)[..., None]
    if mask.keep is not None:
        allowed = allowed & _lookup(mask.keep, layout.keys)[:, :, :, None]
    if global_tokens is not None:
        allowed = allowed & ~_lookup(global_tokens.global_mask, layout.keys)[:, :, :, None]
    if mask.documents is not None:
        allowed = allowed & (documents == _lookup(mask.documents, layout.keys)[:, :, :, None])
    if global_tokens is not None:
        real = global_tokens.real
        if real is None:
            real = torch.ones_like(global_tokens.index[:1], dtype=torch.bool)
        shared = real[:, None, None, None, :]  # (batch or 1, 1, 1, 1, n)
        if mask.causal:
            shared = shared & (global_tokens.index[:, None, None, None, :] <= rows[None, ..., None])
        if mask.documents is not None:
            shared = shared & (documents == mask.documents.gather(1, global_tokens.index)[:, None, None, None, :])
        shape = (allowed[..., 0] | shared[..., 0]).shape
        allowed = torch.cat([allowed.expand(*shape, -1), shared.expand(*shape, -1)], dim=-1)
    sees = allowed.any(-1, keepdim=True)
    bias = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
    bias.masked_fill_(~allowed, torch.finfo(dtype).min / 2)
    return (
        None if bool(allowed.all()) else _to_blocks(bias, layout, batch),
        None if bool(sees.all()) else _to_blocks(sees, layout, batch),
    )


def _lookup(values: Tensor, positions: Tensor) -> Tensor:
    """Map (batch or 1, seq) values to (batch or 1, *positions); False or -2 in empty slots."""
    return F.pad(values, (0, 1), value=False if values.dtype == torch.bool else -2)[:, positions]


def _to_blocks(table: Tensor, layout: BlockLayout, batch: int) -> Tensor:
    """Broadcast (batch or 1, heads, blocks, size or 1, keys or 1) to the layout of `_query_blocks`."""
    if layout.heads == 1:
        return table.expand(batch, *table.shape[1:]).reshape(batch * layout.blocks, 1, *table.shape[3:])
    return table.expand(-1, layout.heads, -1, -1, -1).flatten(1, 2)
