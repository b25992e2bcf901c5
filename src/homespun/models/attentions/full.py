"""Full attention: every token sees every token."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import nn

from homespun.config import Config
from homespun.models.attentions.shape import AttentionShape
from homespun.nn.kernels.dot_product import DotProduct


class FullAttentionConfig(Config):
    """Every token sees every token (Vaswani et al. 2017)."""

    kind: Literal["full"] = "full"
    separates_documents: ClassVar[bool] = True

    def build(self, shape: AttentionShape) -> nn.Module:
        kernel = DotProduct(dropout=shape.dropout, scaled=shape.scaled)
        return shape.multi_head(kernel)
