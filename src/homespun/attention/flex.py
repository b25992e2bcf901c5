"""Exact attention under a union of patterns on a GPU: one fused kernel of FlexAttention (Dong et al. 2024).

The kernel visits the blocks of keys that a block of queries needs and evaluates the mask inside each; nothing is
gathered. It is used if a trial on the device equals the dense reference.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from homespun.attention.full import DotProduct
from homespun.nn.masks import Mask
from homespun.nn.patterns import MaskMod, Sparse
from homespun.nn.torch_private import disable_compile, recompile_limit

Attention = Callable[..., Tensor]

logger = logging.getLogger(__name__)
SIZE = 128  # tokens in a block, of queries and of keys
SHORTEST = 1024  # below it there are too few blocks to leave out
CAPABILITY = (8, 0)  # Ampere: bf16, and the first for which torch has tuned the kernel
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def is_usable(sparse: Sparse, query: Tensor, key: Tensor, mask: Mask, dropout: float) -> bool:
    """True if `attend` supports these inputs on this device."""
    _, heads, length, head_dim = query.shape
    return (
        query.device.type == "cuda"
        and bool(sparse.patterns)
        and dropout == 0
        and mask.start == 0
        and key.shape[-2] == length >= SHORTEST
        and query.dtype in DTYPES
        and 16 <= head_dim <= 256  # the kernel takes no less; for more torch has no tuned sizes
        and works(sparse, heads, head_dim, mask.causal, query.dtype, query.device)
    )


@disable_compile
def attend(sparse: Sparse, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
    """(batch, heads, seq, head_dim) of three such; equal to `DotProduct`, and zeros where a query sees nothing."""
    batch, _, length, _ = query.shape
    blocks = mask.once(
        ("flex", sparse, batch, length), lambda: make_block_mask(sparse, mask, batch, length, query.device)
    )
    return _call(_flex_attention, blocks, query, key, value)


@disable_compile
@functools.cache
def works(sparse: Sparse, heads: int, head_dim: int, causal: bool, dtype: torch.dtype, device: torch.device) -> bool:
    """True if the device has the kernel and its values and gradients equal the dense reference."""
    if torch.cuda.get_device_capability(device) < CAPABILITY or importlib.util.find_spec("triton") is None:
        return False
    try:
        # a thread of its own: this one may be computing without gradients, in autocast or in a checkpoint
        with ThreadPoolExecutor(1) as thread:
            error = thread.submit(_trial_error, sparse, heads, head_dim, causal, dtype, device).result()
    except torch.OutOfMemoryError:
        raise
    except Exception as failure:
        reason = (str(failure).strip() or type(failure).__name__).splitlines()[0]
    else:
        if error < 0.05:  # relative; rounding to bf16 makes it under 0.01, a token too many far more
            return True
        reason = f"it differs from the reference by {error:.0%}"
    logger.warning("FlexAttention cannot be used on %s (%s); the slower blocked attention is", device, reason)
    return False


def _trial_error(
    sparse: Sparse, heads: int, head_dim: int, causal: bool, dtype: torch.dtype, device: torch.device
) -> float:
    """The largest difference of values and gradients, relative to their size."""
    length = 3 * SIZE + 29
    generator = torch.Generator().manual_seed(1)  # not the one that training draws from
    draws = torch.randn(4, 2, heads, length, head_dim, generator=generator).to(device, dtype)
    keep = torch.arange(length, device=device) < torch.tensor([[length - 31], [0]], device=device)
    mask = Mask(keep, causal=causal)
    blocks = make_block_mask(sparse, mask, 2, length, device)

    found = []
    for kind, attention in (
        # not the function of `attend`, for which the compiler would take it from now on that lengths vary
        (dtype, functools.partial(_call, flex_attention, blocks)),
        (torch.float32, functools.partial(DotProduct(sparse), mask=mask)),
    ):
        parts = [part.to(kind).requires_grad_() for part in draws[:3]]
        values = attention(*parts)
        found.append([values, *torch.autograd.grad(values, parts, draws[3].to(kind))])
    pairs = [(ours.detach().float(), truth.detach()) for ours, truth in zip(*found, strict=True)]
    return max(float((ours - truth).norm() / truth.norm().clamp(min=1e-6)) for ours, truth in pairs)


def _call(attention: Attention, block_mask: BlockMask, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    # a pattern, a precision and a kind of mask each compile anew; the limit of 8 is soon reached
    with recompile_limit(64):
        return compiled(attention)(query, key, value, block_mask=block_mask)


@functools.cache
def compiled(attention: Attention) -> Attention:
    """Compiled at the first call, never at import, and as one graph: a part that is not compiled makes the table of
    scores.
    """
    return torch.compile(attention, fullgraph=True)


def _flex_attention(query: Tensor, key: Tensor, value: Tensor, block_mask: BlockMask) -> Tensor:
    values: Tensor = flex_attention(query, key, value, block_mask=block_mask)
    return values


def make_block_mask(sparse: Sparse, mask: Mask, batch: int, length: int, device: torch.device) -> BlockMask:
    """The blocks of keys that each block of queries needs, and who sees whom inside them."""
    needed = pattern_blocks(sparse, length, device)[None]  # (batch or 1, heads or 1, blocks, blocks)
    if sparse.global_tokens is not None:
        has_global = _in_blocks(mask.global_mask(sparse.global_tokens, length, device), False).any(-1)[:, None]
        needed = needed | has_global[:, :, None]
        if sparse.global_tokens.queries:
            needed = needed | has_global[..., None]
    if mask.keep is not None:
        needed = needed & _in_blocks(mask.keep, False).any(-1)[:, None, None]
    if mask.documents is not None:
        ends = torch.iinfo(torch.int32)  # padding goes through a float, which has no larger ends exactly
        first = _in_blocks(mask.documents, ends.max).amin(-1)[:, None]
        last = _in_blocks(mask.documents, ends.min).amax(-1)[:, None]
        needed = needed & (first[..., None] <= last[:, :, None]) & (first[:, :, None] <= last[..., None])
    if mask.causal:
        needed = needed.tril()
    order = needed.int().argsort(dim=-1, descending=True, stable=True).int()
    return BlockMask.from_kv_blocks(
        needed.sum(-1).int().contiguous(),
        order.contiguous(),
        BLOCK_SIZE=SIZE,
        mask_mod=make_mask_mod(sparse, mask, batch, length, device),
        seq_lengths=(length, length),
    )


@functools.lru_cache(maxsize=64)
def pattern_blocks(sparse: Sparse, length: int, device: torch.device) -> Tensor:
    """(heads or 1, blocks, blocks) bool: whether the patterns need a block of keys for a block of queries."""
    blocks = -(-length // SIZE)
    needed = torch.zeros(sparse.heads, blocks, blocks, dtype=torch.bool)
    groups = sparse.groups()
    if len(groups) > 1:  # some heads look further than others
        needed = needed.to(device)
        for group, heads in groups:
            needed[list(heads)] = pattern_blocks(group, length, device)
        return needed
    for pattern in sparse.patterns:
        table = pattern.key_blocks(length, SIZE, 1).expand(sparse.heads, -1, -1)
        head, block, _ = (table >= 0).nonzero(as_tuple=True)
        needed[head, block, table[table >= 0]] = True
    return needed.to(device)


@functools.lru_cache(maxsize=64)
def pattern_rules(sparse: Sparse, device: torch.device) -> tuple[MaskMod, ...]:
    """The mask function of each pattern; their tables are copied to the device once."""
    with torch.inference_mode(False):  # it is to serve training too
        return tuple(pattern.mask_mod(device) for pattern in sparse.patterns)


def make_mask_mod(sparse: Sparse, mask: Mask, batch: int, length: int, device: torch.device) -> MaskMod:
    """Mask function with the values of `Mask.dense`, one position at a time."""
    rules = pattern_rules(sparse, device)
    keep, documents, causal = mask.keep, mask.documents, mask.causal
    global_mask, queries = None, False
    if sparse.global_tokens is not None:
        global_mask = mask.global_mask(sparse.global_tokens, length, device).expand(batch, -1).contiguous()
        queries = sparse.global_tokens.queries

    def seen(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        allowed = rules[0](row, head, query, key)
        for rule in rules[1:]:
            allowed = allowed | rule(row, head, query, key)
        if global_mask is not None:
            allowed = allowed | global_mask[row, key]
            if queries:
                allowed = allowed | global_mask[row, query]
        if causal:
            allowed = allowed & (key <= query)
        if documents is not None:
            allowed = allowed & (documents[row, query] == documents[row, key])
        if keep is not None:
            allowed = allowed & keep[row, key]
        return allowed

    return seen


def _in_blocks(values: Tensor, fill: int | bool) -> Tensor:
    """(batch or 1, blocks, SIZE) of (batch or 1, seq), filled up."""
    return F.pad(values, (0, -values.shape[-1] % SIZE), value=fill).view(len(values), -1, SIZE)
