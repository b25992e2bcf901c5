"""Sparse attention whose global tokens have projections of their own (Longformer)."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from homespun.attention.blocked import Blocked, GlobalTokens, find_global_tokens, global_token_table, see_all
from homespun.attention.multi_head import split_heads
from homespun.nn.masks import Mask, zero_fully_masked
from homespun.nn.patterns import Sparse


class GlobalAttention(nn.Module):
    """Multi-head attention under a union of patterns; what global tokens see is projected apart (Beltagy et al. 2020,
    section 3.1: "linear projections for global attention").

    All tokens see their patterns and the global tokens through ``query``, ``key`` and ``value``; the global tokens see
    every token through ``query_global``, ``key_global`` and ``value_global``.

    Args:
        sparse: the patterns, with global tokens.
        dropout: of the attention probabilities, in training.
    """

    def __init__(self, hidden_size: int, num_attention_heads: int, sparse: Sparse, *, dropout: float = 0.0) -> None:
        super().__init__()
        if sparse.global_tokens is None:
            raise ValueError("projections of global tokens need global tokens")
        self.num_attention_heads = num_attention_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.query_global = nn.Linear(hidden_size, hidden_size)
        self.key_global = nn.Linear(hidden_size, hidden_size)
        self.value_global = nn.Linear(hidden_size, hidden_size)
        self.output = nn.Linear(hidden_size, hidden_size)
        local = dataclasses.replace(sparse, global_tokens=dataclasses.replace(sparse.global_tokens, queries=False))
        self.sparse = sparse
        self.kernel = Blocked(local, dropout=dropout)

    def forward(self, hidden: Tensor, mask: Mask) -> Tensor:
        """(batch, seq, hidden) -> (batch, seq, hidden).

        Raises:
            UserError: there is a cache.
        """
        mask.refuse_cache("attention with global projections")
        query, key, value = (self._heads(part(hidden)) for part in (self.query, self.key, self.value))
        values: Tensor = self.kernel(query, key, value, mask).transpose(1, 2).flatten(2)  # (batch, seq, hidden)
        batch, length, width = hidden.shape
        global_tokens = find_global_tokens(self.sparse, mask, batch, length, hidden.device)
        if global_tokens is not None:
            index = global_tokens.index[..., None].expand(-1, -1, width)
            query = self._heads(self.query_global(hidden.gather(1, index)))  # (batch, heads, n, head_dim)
            found = self._see_all(query, hidden, mask, global_tokens).transpose(1, 2).flatten(2)
            if global_tokens.real is not None:
                found = torch.where(global_tokens.real[..., None], found, values.gather(1, index))
            values = values.scatter(1, index, found.to(values.dtype))
        mixed: Tensor = self.output(values)
        return mixed

    def _see_all(self, query: Tensor, hidden: Tensor, mask: Mask, global_tokens: GlobalTokens) -> Tensor:
        """(batch, heads, n, head_dim): what global tokens see of all of them."""
        dropout = self.kernel.dropout if self.training else 0.0
        batch, heads, count, head_dim = query.shape
        if dropout or count >= head_dim:
            key, value = (self._heads(part(hidden)) for part in (self.key_global, self.value_global))
            return see_all(query, key, value, mask, global_tokens, dropout)
        # q (x W) = (q W) x and p (x W) = (p x) W: a few global tokens are projected, not the whole text, which is two
        # of a layer's fourteen products of that size
        keys, values = (part.weight.view(heads, head_dim, -1) for part in (self.key_global, self.value_global))
        asked = (query @ keys * head_dim**-0.5).flatten(1, 2)  # (batch, heads * n, hidden)
        scores = (asked @ hidden.transpose(1, 2)).view(batch, heads, count, -1)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        scores = scores + (query @ self.key_global.bias.view(heads, head_dim, 1)) * head_dim**-0.5
        table = global_token_table(mask, global_tokens, hidden.shape[1])
        if table is not None:
            scores = scores.masked_fill(~table, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1).to(hidden.dtype).flatten(1, 2)
        seen = (weights @ hidden).view(batch, heads, count, -1) @ values.transpose(-1, -2)
        seen = seen + self.value_global.bias.view(heads, 1, head_dim)
        return zero_fully_masked(seen, table)

    def _heads(self, hidden: Tensor) -> Tensor:
        return split_heads(hidden, self.num_attention_heads)
