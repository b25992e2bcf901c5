"""Attention masks. `Mask` holds what depends on the batch; a pattern what depends on the model.

Both are symbolic; only a dense reference builds a ``queries x keys`` table. ``True`` means *takes part*, as in
`torch.nn.functional.scaled_dot_product_attention`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TypeVar, cast

import torch
from torch import Tensor

from homespun.nn.cache import Cache, NoCacheError
from homespun.nn.patterns import Global, Sparse

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Mask:
    """Mask of one batch: padding, documents, causality, global tokens.

    Args:
        keep: (batch, keys) bool, False at padding; None when nothing is padded.
        causal: no query sees a later key.
        start: the position of the first query; above zero when earlier keys come from a cache.
        documents: (batch, keys) int64; tokens see those of the same number only; None when a row is one document.
        batch_global_mask: (batch, keys) bool: tokens that see and are seen by all, where the
            architecture has such tokens.
        source: what a decoder reads; None for a stack that stands alone.
        cache: keys and values of earlier tokens, to which those of this call are added.
        position_ids: (batch or 1, queries) int64, for attentions that rotate; None: counted from ``start``.
        context: (batch, keys, hidden): what keys and values are made of, where it is not what queries are made of, and
            where the architecture has that (DeBERTa).
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
    _built: dict[Hashable, object] = field(default_factory=dict, repr=False)

    def once(self, name: Hashable, build: Callable[[], T]) -> T:
        """``build()``, made once for all layers under this name."""
        if name not in self._built:
            self._built[name] = build()
        return cast(T, self._built[name])

    def refuse_cache(self, attention: str) -> None:
        """For an attention that cannot go on from the keys of earlier tokens alone.

        Raises:
            NoCacheError: there is a cache.
        """
        if self.cache is not None:
            raise NoCacheError(
                f"{attention} cannot go on from a cache: what a token sees there depends on the whole text; decode "
                f"without a cache, or give the decoder full, sparse or performer attention"
            )

    def dense(self, sparse: Sparse, queries: int, keys: int, device: torch.device) -> Tensor | None:
        """(batch or 1, heads or 1, queries or 1, keys) bool, or None when everything is allowed."""
        name = ("dense", sparse, str(queries), str(keys))  # in a graph under export they are symbols, without a hash
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
        # the newest token alone sees all that there are; under export, where sizes are symbols, there is no cache
        newest = self.cache is not None and queries == 1 and keys == self.start + 1
        if self.causal and not newest:
            tables.append((key <= query)[None])
        if self.documents is not None:
            asking = self.documents[:, self.start : self.start + queries]
            tables.append((asking[:, :, None] == self.documents[:, None, :])[:, None])
        if self.keep is not None:
            tables.append(self.keep[:, None, None, :])
        if not tables:
            return None
        table = tables[0]
        for other in tables[1:]:
            table = table & other
        return table

    def global_mask(self, global_tokens: Global, keys: int, device: torch.device) -> Tensor:
        """(batch or 1, keys) bool: the tokens that see and are seen by all; counted inside each document."""
        return self.once(
            ("global_mask", global_tokens, str(keys)), lambda: self._global_mask(global_tokens, keys, device)
        )

    def _global_mask(self, global_tokens: Global, keys: int, device: torch.device) -> Tensor:
        position = torch.arange(keys, device=device)[None]  # (1, keys)
        if self.documents is None:
            inside = position
        else:
            new = torch.ones_like(self.documents, dtype=torch.bool)
            new[:, 1:] = self.documents[:, 1:] != self.documents[:, :-1]
            inside = position - torch.where(new, position, 0).cummax(-1).values
        global_mask = inside < global_tokens.first
        if global_tokens.positions:
            global_mask = global_mask | torch.isin(inside, torch.tensor(global_tokens.positions, device=device))
        if global_tokens.block:
            global_mask = global_mask | (inside < global_tokens.block) | self._last_block(inside, global_tokens.block)
        if self.batch_global_mask is not None:
            global_mask = global_mask | self.batch_global_mask
        return global_mask if self.keep is None else global_mask & self.keep

    def _last_block(self, inside: Tensor, block: int) -> Tensor:
        """(batch or 1, keys) bool: tokens in the block in which the last real token of their document stands."""
        real = inside if self.keep is None else torch.where(self.keep, inside, -1)
        if self.documents is None:
            last = real.amax(-1, keepdim=True)
        else:
            number = self.documents - self.documents.amin(-1, keepdim=True)
            length = real.new_full((number.shape[0], int(number.max()) + 1), -1)
            last = length.scatter_reduce(1, number, real.expand_as(number), "amax").gather(1, number)
        return (last >= 0) & (inside // block == last // block)


def zero_fully_masked(values: Tensor, table: Tensor | None) -> Tensor:
    """The values of queries that see something under a `Mask.dense` table, and zeros for the others: kernels differ in
    what they give for a row with nothing to see."""
    if table is None:
        return values
    sees = table.any(-1, keepdim=True)
    # padding alone leaves no query blind, as a rule; a GPU would have to be waited for
    alone = table.shape[-2] == 1 and table.device.type == "cpu" and not torch.compiler.is_compiling()
    if alone and bool(sees.all()):
        return values
    return torch.where(sees, values, values.new_zeros(()))


@dataclass(frozen=True, eq=False)
class Source:
    """Encoder output that a decoder attends to, with its padding mask."""

    hidden: Tensor
    """(batch, source, hidden)"""
    mask: Mask
