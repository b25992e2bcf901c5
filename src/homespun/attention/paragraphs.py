"""Attention between paragraphs, each pooled from its tokens (Liu and Lapata 2019)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from homespun.attention.full import DotProduct
from homespun.attention.multi_head import AttentionSpec, MultiHeadAttention, split_heads
from homespun.config import Config
from homespun.errors import UserError
from homespun.nn.masks import Mask

_SLOWEST = 10_000.0


@dataclass(frozen=True, eq=False)
class Membership:
    """Membership of tokens in paragraphs: (batch, paragraphs, seq) bool, and (batch, paragraphs) bool of those that
    have a token.
    """

    tokens: Tensor
    present: Tensor

    @classmethod
    def of(cls, mask: Mask, hidden: Tensor) -> Membership:
        """By the documents of the mask; without them all is one paragraph. Padding is in none."""
        shape = hidden.shape[:2]
        numbers = hidden.new_zeros(shape, dtype=torch.long) if mask.documents is None else mask.documents
        keep = numbers >= 0 if mask.keep is None else (numbers >= 0) & mask.keep
        # counted on the numbers given, of which padding is -1: the step of a plan has no values to count
        count = 1 if mask.documents is None else max(1, int(mask.documents.max()) + 1)
        tokens = numbers[:, None] == torch.arange(count, device=hidden.device)[:, None]
        tokens = tokens & keep[:, None]
        return cls(tokens, tokens.any(-1))


class ParagraphAttention(nn.Module):
    """Pool each paragraph by head-wise weights, attend between paragraphs, add the result to each of its tokens.

    Liu and Lapata 2019, section 3.2. Sines and cosines of a paragraph's number are added to its pooled vector. Queries,
    keys and values are made of all heads' vectors, in the paper of one head's each.

    Args:
        hidden_size: width of the stream.
        num_attention_heads: of the pooling and between paragraphs.
        kernel: `homespun.attention.multi_head.Kernel`, between paragraphs.
        layer_norm_eps: of the norm after the pooling.
        bias: the projections have biases.
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
        """Kernel that mixes the paragraphs."""
        kernel: nn.Module = self.between.kernel
        return kernel

    def forward(self, hidden: Tensor, mask: Mask) -> Tensor:
        """(batch, seq, hidden) -> (batch, seq, hidden); `Mask.documents` are the numbers of the paragraphs."""
        mask.refuse_cache("paragraphs attention")
        members = mask.once("paragraphs", lambda: Membership.of(mask, hidden))
        paragraphs = self.pool(hidden, members.tokens)
        paragraphs = self.norm(paragraphs + _places(paragraphs))
        mixed = self.between(paragraphs, mask.once("between paragraphs", lambda: Mask(members.present)))
        of_tokens = members.tokens.transpose(1, 2).to(mixed.dtype)  # (batch, seq, paragraphs)
        result: Tensor = of_tokens @ mixed
        return result

    def pool(self, hidden: Tensor, members: Tensor) -> Tensor:
        """(batch, seq, hidden) and (batch, paragraphs, seq) bool -> (batch, paragraphs, hidden)."""
        # paragraphs without a token come to the mean of all there are, which nobody is told
        scores = self.weight(hidden).transpose(1, 2)[:, :, None]  # (batch, heads, 1, seq)
        scores = scores.masked_fill(~members[:, None], torch.finfo(scores.dtype).min)
        value = split_heads(self.value(hidden), self.num_attention_heads)  # (batch, heads, seq, head_dim)
        heads = scores.softmax(-1) @ value  # (batch, heads, paragraphs, head_dim)
        result: Tensor = self.pooled(heads.transpose(1, 2).flatten(2))
        return result


def _places(paragraphs: Tensor) -> Tensor:
    """(paragraphs, hidden) sines and cosines of the numbers of (batch, paragraphs, hidden)."""
    count, width = paragraphs.shape[1:]
    half = torch.arange(math.ceil(width / 2), device=paragraphs.device, dtype=torch.float32)
    rates = torch.exp(half * (-2 * math.log(_SLOWEST) / width))
    angles = torch.arange(count, device=paragraphs.device, dtype=torch.float32)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :width].to(paragraphs.dtype)


class ParagraphsAttentionConfig(Config):
    """Paragraphs, each pooled from its tokens, attend to each other (Liu and Lapata 2019).

    For layers above others that see their own paragraph only: in ``alternating``, whose cycle is then all layers.
    """

    kind: Literal["paragraphs"] = "paragraphs"
    supports_packing: ClassVar[bool] = False
    is_positional: ClassVar[bool] = False

    def build(self, spec: AttentionSpec) -> nn.Module:
        spec.check_plain("paragraphs")
        spec.check_own_projections("paragraphs")
        if spec.causal:
            raise UserError(
                "paragraphs attention pools whole paragraphs, of which no token may be later; leave it to an encoder"
            )
        kernel = DotProduct(dropout=spec.dropout)
        return ParagraphAttention(
            spec.hidden_size,
            spec.num_attention_heads,
            kernel,
            layer_norm_eps=spec.layer_norm_eps,
            bias=spec.bias,
        )
