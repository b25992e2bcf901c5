"""N-gram attention: ProphetNet's, whose decoder predicts several tokens ahead."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator
from torch import nn

from homespun.config import Config
from homespun.errors import UserError
from homespun.models.attentions.shape import AttentionShape
from homespun.nn.ngram_attention import NgramAttention


class NgramAttentionConfig(Config):
    """Every token sees the earlier ones, with a bias of their distance that its own vector decides (Qi et al. 2020).

    Streams that predict may stand beside the main one: `EncoderDecoderConfig.ngram`. Causal only.
    """

    kind: Literal["ngram"] = "ngram"
    num_buckets: int = Field(default=32, ge=2, description="of distances; the first half of them one distance each")
    relative_max_distance: int = Field(default=128, ge=2, description="from here on all distances are one")
    separates_documents: ClassVar[bool] = True

    @model_validator(mode="after")
    def _reaches(self) -> NgramAttentionConfig:
        if self.relative_max_distance <= self.num_buckets // 2:
            raise ValueError(
                f"relative_max_distance={self.relative_max_distance} lies within the {self.num_buckets // 2} exact "
                f"buckets of num_buckets={self.num_buckets}; give more distance or fewer buckets"
            )
        return self

    def build(self, shape: AttentionShape) -> nn.Module:
        if not shape.causal:
            raise UserError("ngram attention is causal only: its distances are to earlier tokens; set causal: true")
        shape.check_own_projections("ngram")
        return NgramAttention(
            shape.hidden_size,
            shape.num_attention_heads,
            num_buckets=self.num_buckets,
            relative_max_distance=self.relative_max_distance,
            dropout=shape.dropout,
            head_size=shape.head_size,
            bias=shape.bias,
            scaled=shape.scaled,
        )
