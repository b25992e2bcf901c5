"""Attention masks: `Mask` for properties of the batch, `homespun.nn.patterns` for those of the model.

Only dense attention builds a ``queries x keys`` table. ``True`` means that a key is seen, as in
`torch.nn.functional.scaled_dot_product_attention`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from homespun.nn.cache import Cache, NoCacheError
from homespun.nn.patterns import Global, Sparse

T = TypeVar("T")

_MOST_REAL = 0.97  # share of real tokens, above which copying takes as long as the padding
_TOKENS_MULTIPLE = 32  # of tokens without padding: oneDNN keeps code for each number of rows (results/serve.md)


@dataclass(frozen=True, eq=False)
class GlobalTokens:
    """Positions of the global tokens of each row."""

    index: Tensor  # (batch, n) int64, all different
    real: Tensor | None  # (batch, n) bool: False where a row has fewer global tokens; None: every row has n
    global_mask: Tensor  # (batch or 1, seq) bool


@dataclass(frozen=True, eq=False)
class Mask:
    """Mask of one batch: padding, documents, causality, global tokens.

    Args:
        keep: (batch, keys) bool, False at padding; None: no padding.
        causal: no query sees a later key.
        start: position of the first query; above zero if earlier keys come from a cache.
        documents: (batch, keys) int64 numbers; tokens see their own document only. None: each row is one document.
        batch_global_mask: (batch, keys) bool, True at tokens that the data makes global; used by attention with
            global tokens.
        source: encoder output for cross-attention; None for a single stack.
        cache: keys and values of earlier tokens, extended by each call.
        position_ids: (batch or 1, queries) int64 for rotary positions; None: counted from ``start``.
        context: (batch, keys, hidden) input of keys and values if it differs from that of queries, for
            attention with ``reads_context``.
        lengths: tokens of each text of a batch of one row without padding (`unpad`); tokens see their own text only.
            For attention with ``reads_unpadded``.
    """

    keep: Tensor | None = None
    causal: bool = False
    start: int = 0
    documents: Tensor | None = None
    batch_global_mask: Tensor | None = None
    source: Source | None = None
    cache: Cache | None = None
    position_ids: Tensor | None = None
    context: Tensor | None = None
    lengths: Sequence[int] | None = None
    _built: dict[Hashable, object] = field(default_factory=dict, repr=False)

    def once(self, name: Hashable, build: Callable[[], T]) -> T:
        """Return ``build()``, computed once a batch under ``name`` and shared by all layers."""
        if name not in self._built:
            self._built[name] = build()
        return cast(T, self._built[name])

    def refuse_cache(self, attention: str) -> None:
        """Raise `NoCacheError` if there is a cache; for attention that needs the full sequence."""
        if self.cache is not None:
            raise NoCacheError(
                f"{attention} cannot use a cache: the keys of a token depend on the full sequence; decode without a "
                f"cache, or use full, sparse or performer attention in the decoder"
            )

    def dense(self, sparse: Sparse, queries: int, keys: int, device: torch.device) -> Tensor | None:
        """Return a (batch or 1, heads or 1, queries or 1, keys) bool mask, or None if every query sees every key."""
        name = ("dense", sparse, str(queries), str(keys))  # sizes in an exported graph are symbols without a hash
        return self.once(name, lambda: self._dense(sparse, queries, keys, device))

    def _dense(self, sparse: Sparse, queries: int, keys: int, device: torch.device) -> Tensor | None:
        query = torch.arange(self.start, self.start + queries, device=device)[None, :, None]
        key = torch.arange(keys, device=device)[None, None, :]
        allowed = sparse.allowed(query, key)
        tables = [] if allowed is None else [allowed[None]]
        if tables and sparse.global_tokens is not None:
            global_mask = self.global_mask(sparse.global_tokens, keys, device)
            tables[0] = tables[0] | global_mask[:, None, None, :]
            if sparse.global_tokens.queries:
                tables[0] = tables[0] | global_mask[:, None, self.start : self.start + queries, None]
        # a single newest token sees all keys; without a cache, sizes may be symbols of an exported graph
        newest = self.cache is not None and queries == 1 and keys == self.start + 1
        if self.causal and not newest:
            tables.append((key <= query)[None])
        if self.documents is not None:
            query_documents = self.documents[:, self.start : self.start + queries]
            tables.append((query_documents[:, :, None] == self.documents[:, None, :])[:, None])
        if self.keep is not None:
            tables.append(self.keep[:, None, None, :])
        return functools.reduce(Tensor.__and__, tables) if tables else None

    def global_mask(self, global_tokens: Global, keys: int, device: torch.device) -> Tensor:
        """Return a (batch or 1, keys) mask of global tokens, whose positions count from the start of each document."""
        return self.once(
            ("global_mask", global_tokens, str(keys)), lambda: self._global_mask(global_tokens, keys, device)
        )

    def _global_mask(self, global_tokens: Global, keys: int, device: torch.device) -> Tensor:
        position = torch.arange(keys, device=device)[None]  # (1, keys)
        if self.documents is not None:  # position in the document
            new = torch.ones_like(self.documents, dtype=torch.bool)
            new[:, 1:] = self.documents[:, 1:] != self.documents[:, :-1]
            position = position - torch.where(new, position, 0).cummax(-1).values  # (batch, keys)
        global_mask = position < global_tokens.first
        if global_tokens.positions:
            global_mask = global_mask | torch.isin(position, torch.tensor(global_tokens.positions, device=device))
        if block := global_tokens.block:
            global_mask = global_mask | (position < block) | self._last_block(position, block)
        if self.batch_global_mask is not None:
            global_mask = global_mask | self.batch_global_mask
        return global_mask if self.keep is None else global_mask & self.keep

    def _last_block(self, position: Tensor, block: int) -> Tensor:
        """Return a (batch or 1, keys) mask of the block of the last real token of each document."""
        real = position if self.keep is None else torch.where(self.keep, position, -1)
        if self.documents is None:
            last = real.amax(-1, keepdim=True)
        else:
            number = self.documents - self.documents.amin(-1, keepdim=True)
            length = real.new_full((number.shape[0], int(number.max()) + 1), -1)
            last = length.scatter_reduce(1, number, real.expand_as(number), "amax").gather(1, number)
        return (last >= 0) & (position // block == last // block)

    def find_global_tokens(
        self, global_tokens: Global | None, batch: int, length: int, device: torch.device
    ) -> GlobalTokens | None:
        """Find the positions of global tokens, once for all layers; None if there are none."""
        if global_tokens is None:
            return None
        global_mask = self.global_mask(global_tokens, length, device)

        def find() -> GlobalTokens | None:
            count = int(global_mask.sum(-1).max())
            if not count:
                return None
            index = global_mask.int().argsort(dim=-1, descending=True, stable=True)[:, :count].expand(batch, -1)
            real = global_mask.expand(batch, -1).gather(1, index)
            return GlobalTokens(index, None if bool(real.all()) else real, global_mask)

        return self.once(("global_tokens", global_tokens, batch, length), find)

    def global_token_table(self, global_tokens: GlobalTokens, keys: int) -> Tensor | None:
        """Return a (batch or 1, 1, n or 1, keys) mask of the keys that global tokens see; None: all keys."""

        def build() -> Tensor | None:
            index, tables = global_tokens.index, []
            if self.causal:
                tables.append(torch.arange(keys, device=index.device) <= index[:, None, :, None])
            if self.documents is not None:
                query_documents = self.documents.gather(1, index)
                tables.append((query_documents[:, :, None] == self.documents[:, None, :])[:, None])
            if self.keep is not None:
                tables.append(self.keep[:, None, None, :])
            return functools.reduce(Tensor.__and__, tables) if tables else None

        return self.once(("all", global_tokens), build)


def unpad(hidden: Tensor, mask: Mask) -> tuple[Tensor, Mask] | None:
    """Concatenate the texts of a padded batch, to compute no padding.

    Args:
        hidden: (batch, seq, hidden).
        mask: mask of the batch.

    Returns:
        (1, tokens, hidden), with zeros up to a multiple of 32 tokens, and its mask with `Mask.lengths`, for attention
        with ``reads_unpadded``; None if that is not faster or not possible: on a GPU, with gradients, in an exported
        graph, or with little padding.
    """
    keep, others = mask.keep, (mask.documents, mask.batch_global_mask, mask.source, mask.cache, mask.context)
    if keep is None or hidden.device.type != "cpu" or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return None
    if any(one is not None for one in others) or hidden.dim() != 3:
        return None
    lengths = [length for length in keep.sum(1).tolist() if length]
    if not lengths or sum(lengths) > _MOST_REAL * keep.numel():
        return None
    columns = torch.arange(keep.shape[1])[None] if mask.position_ids is None else mask.position_ids
    positions, tokens = columns.expand_as(keep)[keep], hidden[keep]
    if rest := -len(tokens) % _TOKENS_MULTIPLE:
        lengths.append(rest)
        positions, tokens = F.pad(positions, (0, rest)), F.pad(tokens, (0, 0, 0, rest))
    return tokens[None], Mask(causal=mask.causal, position_ids=positions[None], lengths=lengths)


def additive_mask(table: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 0 where a bool ``table`` is True, else half of the least finite number, since a row of -inf gives NaN.

    On a CPU, adding it to scores takes a quarter of the time of ``masked_fill``, which is slow for a broadcast mask.
    """
    return torch.where(table, table.new_zeros((), dtype=dtype), torch.finfo(dtype).min / 2)


def zero_fully_masked(values: Tensor, table: Tensor | None) -> Tensor:
    """Set the values of queries that see no key to zero, since attention kernels differ there.

    Args:
        values: (batch, heads, queries, head_dim).
        table: `Mask.dense`.
    """
    if table is None:
        return values
    sees = table.any(-1, keepdim=True)
    # a padding mask alone rarely masks all keys of a row; the check would synchronise with a GPU
    check = table.shape[-2] == 1 and table.device.type == "cpu" and not torch.compiler.is_compiling()
    if check and bool(sees.all()):
        return values
    return torch.where(sees, values, values.new_zeros(()))


@dataclass(frozen=True, eq=False)
class Source:
    """Encoder output that a decoder attends to, with its padding mask."""

    hidden: Tensor  # (batch, source, hidden)
    mask: Mask
