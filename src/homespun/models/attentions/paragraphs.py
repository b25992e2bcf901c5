"""Attention between paragraphs: the upper layers of the hierarchical transformer."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import nn

from homespun.config import Config
from homespun.errors import UserError
from homespun.models.attentions.shape import AttentionShape
from homespun.nn.kernels.dot_product import DotProduct
from homespun.nn.paragraph_attention import ParagraphAttention


class ParagraphsAttentionConfig(Config):
    """Paragraphs, each pooled from its tokens, attend to each other (Liu and Lapata 2019); `Mask.documents` has them.

    For the layers above others that see their own paragraph only: in ``alternating``, whose cycle is then all layers.
    """

    kind: Literal["paragraphs"] = "paragraphs"
    separates_documents: ClassVar[bool] = False

    def build(self, shape: AttentionShape) -> nn.Module:
        shape.check_plain("paragraphs")
        shape.check_own_projections("paragraphs")
        if shape.causal:
            raise UserError(
                "paragraphs attention pools whole paragraphs, of which no token may be later; leave it to an encoder"
            )
        kernel = DotProduct(dropout=shape.dropout)
        return ParagraphAttention(
            shape.hidden_size,
            shape.num_attention_heads,
            kernel,
            layer_norm_eps=shape.layer_norm_eps,
            bias=shape.bias,
        )
