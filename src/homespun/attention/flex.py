"""Attention under a union of patterns on a GPU by FlexAttention (Dong et al. 2024), a fused block-sparse kernel.

Used only if a test run on the device equals dense attention.
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
SHORTEST = 1024  # tokens below which too few blocks are skipped
CAPABILITY = (8, 0)  # Ampere: bf16, and tuned kernel sizes in torch
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
        and 16 <= head_dim <= 256  # sizes that the kernel supports and torch has tuned
        and works(sparse, heads, head_dim, mask.causal, query.dtype, query.device)
    )


@disable_compile
def attend(sparse: Sparse, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
    """Compute `DotProduct` on (batch, heads, seq, head_dim) tensors, with zeros for queries that see no key."""
    batch, _, length, _ = query.shape
    blocks = mask.once(
        ("flex", sparse, batch, length), lambda: make_block_mask(sparse, mask, batch, length, query.device)
    )
    return _call(_flex_attention, blocks, query, key, value)


@disable_compile
@functools.cache
def works(sparse: Sparse, heads: int, head_dim: int, causal: bool, dtype: torch.dtype, device: torch.device) -> bool:
    """True if the device supports the kernel and its values and gradients equal dense attention."""
    if torch.cuda.get_device_capability(device) < CAPABILITY or importlib.util.find_spec("triton") is None:
        return False
    try:
        # a new thread: the current one may be in no_grad, autocast or checkpoint
        with ThreadPoolExecutor(1) as thread:
            error = thread.submit(_relative_error, sparse, heads, head_dim, causal, dtype, device).result()
    except torch.OutOfMemoryError:
        raise
    except Exception as exception:
        reason = (str(exception).strip() or type(exception).__name__).splitlines()[0]
    else:
        if error < 0.05:  # bf16 rounding gives less than 0.01, one wrong token far more
            return True
        reason = f"it differs from dense attention by {error:.0%}"
    logger.warning("FlexAttention is not usable on %s (%s); using slower blocked attention", device, reason)
    return False


def _relative_error(
    sparse: Sparse, heads: int, head_dim: int, causal: bool, dtype: torch.dtype, device: torch.device
) -> float:
    """Compute the largest relative error of values and gradients against dense attention, in norm."""
    length = 3 * SIZE + 29
    generator = torch.Generator().manual_seed(1)  # leaves the global random state unchanged
    draws = torch.randn(4, 2, heads, length, head_dim, generator=generator).to(device, dtype)
    keep = torch.arange(length, device=device) < torch.tensor([[length - 31], [0]], device=device)
    mask = Mask(keep, causal=causal)
    blocks = make_block_mask(sparse, mask, 2, length, device)

    results = []
    for run_dtype, attention in (
        # not `_flex_attention`, which the compiler would from then on treat as having dynamic lengths
        (dtype, functools.partial(_call, flex_attention, blocks)),
        (torch.float32, functools.partial(DotProduct(sparse), mask=mask)),
    ):
        parts = [part.to(run_dtype).requires_grad_() for part in draws[:3]]
        values = attention(*parts)
        results.append([values, *torch.autograd.grad(values, parts, draws[3].to(run_dtype))])
    pairs = [(actual.detach().float(), expected.detach()) for actual, expected in zip(*results, strict=True)]
    return max(float((actual - expected).norm() / expected.norm().clamp(min=1e-6)) for actual, expected in pairs)


def _call(attention: Attention, block_mask: BlockMask, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    # each pattern, precision and mask recompiles; the default limit is 8
    with recompile_limit(64):
        return compiled(attention)(query, key, value, block_mask=block_mask)


@functools.cache
def compiled(attention: Attention) -> Attention:
    """Compile as one graph at the first call; an uncompiled part would build the table of scores."""
    return torch.compile(attention, fullgraph=True)


def _flex_attention(query: Tensor, key: Tensor, value: Tensor, block_mask: BlockMask) -> Tensor:
    return flex_attention(query, key, value, block_mask=block_mask)


def make_block_mask(sparse: Sparse, mask: Mask, batch: int, length: int, device: torch.device) -> BlockMask:
    """Build the `BlockMask` of patterns and mask."""
    needed = pattern_blocks(sparse, length, device)[None]  # (batch or 1, heads or 1, blocks, blocks)
    if sparse.global_tokens is not None:
        has_global = _in_blocks(mask.global_mask(sparse.global_tokens, length, device), False).any(-1)[:, None]
        needed = needed | has_global[:, :, None]
        if sparse.global_tokens.queries:
            needed = needed | has_global[..., None]
    if mask.keep is not None:
        needed = needed & _in_blocks(mask.keep, False).any(-1)[:, None, None]
    if mask.documents is not None:
        ends = torch.iinfo(torch.int32)  # `F.pad` converts through a float, which is exact for int32
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
    """Return a (heads or 1, blocks, blocks) mask of key blocks with a key that the query block sees."""
    blocks = -(-length // SIZE)
    needed = torch.zeros(sparse.heads, blocks, blocks, dtype=torch.bool)
    groups = sparse.groups()
    if len(groups) > 1:
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
    """Build the mask function of each pattern, with its tables on the device."""
    with torch.inference_mode(False):  # cached for training too
        return tuple(pattern.mask_mod(device) for pattern in sparse.patterns)


def make_mask_mod(sparse: Sparse, mask: Mask, batch: int, length: int, device: torch.device) -> MaskMod:
    """Build a mask function that equals `Mask.dense`."""
    rules = pattern_rules(sparse, device)
    keep, documents, causal = mask.keep, mask.documents, mask.causal
    global_mask, queries = None, False
    if sparse.global_tokens is not None:
        global_mask = mask.global_mask(sparse.global_tokens, length, device).expand(batch, -1).contiguous()
        queries = sparse.global_tokens.queries

    def is_allowed(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
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

    return is_allowed


def _in_blocks(values: Tensor, fill: int | bool) -> Tensor:
    """Map (batch or 1, seq) to (batch or 1, blocks, SIZE), padded with ``fill``."""
    return F.pad(values, (0, -values.shape[-1] % SIZE), value=fill).view(len(values), -1, SIZE)
