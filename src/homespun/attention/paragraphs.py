"""Attention between paragraphs, each pooled from its tokens (Liu and Lapata 2019)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from homespun.attention.full import DotProduct
from homespun.attention.multi_head import AttentionSettings, AttentionSpec, MultiHeadAttention, split_heads
from homespun.errors import UserError
from homespun.nn.masks import Mask

_MAX_WAVELENGTH = 10_000.0


@dataclass(frozen=True, eq=False)
class Membership:
    """Membership of tokens in paragraphs."""

    tokens: Tensor  # (batch, paragraphs, seq) bool
    present: Tensor  # (batch, paragraphs) bool: paragraphs with a token

    @classmethod
    def of(cls, mask: Mask, hidden: Tensor) -> Membership:
        """Build the membership from `Mask.documents`; a row without documents is one paragraph.

        Padding is in no paragraph.
        """
        shape = hidden.shape[:2]
        numbers = hidden.new_zeros(shape, dtype=torch.long) if mask.documents is None else mask.documents
        keep = numbers >= 0 if mask.keep is None else (numbers >= 0) & mask.keep
        # counted on the documents of the batch, which have values while a step is traced
        count = 1 if mask.documents is None else max(1, int(mask.documents.max()) + 1)
        tokens = numbers[:, None] == torch.arange(count, device=hidden.device)[:, None]
        tokens = tokens & keep[:, None]
        return cls(tokens, tokens.any(-1))


class ParagraphAttention(nn.Module):
    """Attention between paragraphs (Liu and Lapata 2019, section 3.2).

    Each paragraph is pooled, paragraphs attend to each other, and each token gets the result of its paragraph.
    Sinusoidal embeddings of paragraph numbers are added to the pooled vectors. Projections of queries, keys and values
    read all heads; in the paper each reads one head.

    Args:
        hidden_size: width of input and output.
        num_attention_heads: heads of pooling and attention.
        kernel: kernel of `MultiHeadAttention` between paragraphs.
        layer_norm_eps: epsilon of the norm after pooling.
        bias: add biases to the projections.
    """

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        kernel: nn.Module,
        *,
        layer_norm_eps: float = 1e-12,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.weight = nn.Linear(hidden_size, num_attention_heads, bias=bias)
        self.value = nn.Linear(hidden_size, hidden_size, bias=bias)
        self.pooled = nn.Linear(hidden_size, hidden_size, bias=bias)
        self.norm = nn.LayerNorm(hidden_size, eps=layer_norm_eps)
        self.between = MultiHeadAttention(hidden_size, num_attention_heads, kernel, bias=bias)

    @property
    def kernel(self) -> nn.Module:
        """Kernel of the attention between paragraphs."""
        return self.between.kernel

    def bottleneck(self, length: int) -> str:
        """Describe the vectors that represent all tokens."""
        return "a vector a head\nand paragraph"

    def forward(self, hidden: Tensor, mask: Mask) -> Tensor:
        """Map (batch, seq, hidden) to (batch, seq, hidden); `Mask.documents` holds paragraph numbers."""
        mask.refuse_cache("paragraphs attention")
        members = mask.once("paragraphs", lambda: Membership.of(mask, hidden))
        paragraphs = self.pool(hidden, members.tokens)
        paragraphs = self.norm(paragraphs + _sinusoids(paragraphs))
        mixed = self.between(paragraphs, mask.once("between paragraphs", lambda: Mask(members.present)))
        return members.tokens.transpose(1, 2).to(mixed.dtype) @ mixed  # (batch, seq, hidden)

    def pool(self, hidden: Tensor, members: Tensor) -> Tensor:
        """Map (batch, seq, hidden) and (batch, paragraphs, seq) bool to (batch, paragraphs, hidden)."""
        # paragraphs without a token get a mean of all tokens, which no token reads
        scores = self.weight(hidden).transpose(1, 2)[:, :, None]  # (batch, heads, 1, seq)
        scores = scores.masked_fill(~members[:, None], torch.finfo(scores.dtype).min)
        value = split_heads(self.value(hidden), self.num_attention_heads)  # (batch, heads, seq, head_dim)
        heads = scores.softmax(-1) @ value  # (batch, heads, paragraphs, head_dim)
        return self.pooled(heads.transpose(1, 2).flatten(2))


def _sinusoids(paragraphs: Tensor) -> Tensor:
    """Compute sinusoidal embeddings (paragraphs, hidden) for (batch, paragraphs, hidden)."""
    count, width = paragraphs.shape[1:]
    half = torch.arange(math.ceil(width / 2), device=paragraphs.device, dtype=torch.float32)
    rates = torch.exp(half * (-2 * math.log(_MAX_WAVELENGTH) / width))
    angles = torch.arange(count, device=paragraphs.device, dtype=torch.float32)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :width].to(paragraphs.dtype)


class ParagraphsAttentionConfig(AttentionSettings):
    """Config of attention between pooled paragraphs (Liu and Lapata 2019).

    For upper layers: use ``alternating`` attention with a cycle of all layers.
    """

    kind: Literal["paragraphs"] = "paragraphs"
    supports_packing: ClassVar[bool] = False

    def build(self, spec: AttentionSpec) -> nn.Module:
        spec.check_plain("paragraphs")
        spec.check_own_projections("paragraphs")
        if spec.causal:
            raise UserError("paragraphs attention does not support causal=true; use it in an encoder")
        kernel = DotProduct(dropout=spec.dropout)
        return ParagraphAttention(
            spec.hidden_size, spec.num_attention_heads, kernel, layer_norm_eps=spec.layer_norm_eps, bias=spec.bias
        )
