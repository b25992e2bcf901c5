"""Sparse attention whose global tokens have projections of their own (Longformer)."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from homespun.nn.attention import split_heads
from homespun.nn.kernels.blocked import Blocked, find_everywhere, see_all
from homespun.nn.masks import Mask
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
        if sparse.everywhere is None:
            raise ValueError("projections of global tokens need global tokens")
        self.num_attention_heads = num_attention_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.query_global = nn.Linear(hidden_size, hidden_size)
        self.key_global = nn.Linear(hidden_size, hidden_size)
        self.value_global = nn.Linear(hidden_size, hidden_size)
        self.output = nn.Linear(hidden_size, hidden_size)
        local = dataclasses.replace(sparse, everywhere=dataclasses.replace(sparse.everywhere, queries=False))
        self.sparse = sparse
        self.kernel = Blocked(local, dropout=dropout)

    def forward(self, hidden: Tensor, mask: Mask) -> Tensor:
        """(batch, seq, hidden) -> (batch, seq, hidden)."""
        query, key, value = (self._heads(part(hidden)) for part in (self.query, self.key, self.value))
        values: Tensor = self.kernel(query, key, value, mask).transpose(1, 2).flatten(2)  # (batch, seq, hidden)
        batch, length, width = hidden.shape
        everywhere = find_everywhere(self.sparse, mask, batch, length, hidden.device)
        if everywhere is not None:
            index = everywhere.index[..., None].expand(-1, -1, width)
            key, value = (self._heads(part(hidden)) for part in (self.key_global, self.value_global))
            query = self._heads(self.query_global(hidden.gather(1, index)))  # (batch, heads, n, head_dim)
            dropout = self.kernel.dropout if self.training else 0.0
            found = see_all(query, key, value, mask, everywhere, dropout).transpose(1, 2).flatten(2)
            if everywhere.real is not None:
                found = torch.where(everywhere.real[..., None], found, values.gather(1, index))
            values = values.scatter(1, index, found)
        mixed: Tensor = self.output(values)
        return mixed

    def _heads(self, hidden: Tensor) -> Tensor:
        return split_heads(hidden, self.num_attention_heads)
