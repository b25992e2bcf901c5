"""Full attention with a learned number for each bucket of relative position: T5's."""

from __future__ import annotations

from typing import ClassVar, Literal, cast

from pydantic import Field
from torch import nn

from homespun.config import Config
from homespun.errors import UserError
from homespun.models.attentions.shape import AttentionShape
from homespun.nn.relative_bias import BiasedDotProduct, RelativeBias


class RelativeBiasAttentionConfig(Config):
    """Every token sees every token, and how far it is is told by numbers added to the scores (Raffel et al. 2020).

    Each head learns one number a bucket, the same in all layers; positions of the embeddings are best ``none`` then.
    """

    kind: Literal["relative_bias"] = "relative_bias"
    num_buckets: int = Field(
        default=32, ge=2, description="the near half of one position each; in an encoder half of them for each side"
    )
    max_distance: int = Field(default=128, ge=2, description="tokens; what is further off is in the last bucket")
    separates_documents: ClassVar[bool] = True

    def build(self, shape: AttentionShape) -> nn.Module:
        sides = 1 if shape.causal else 2
        exact = self.num_buckets // sides // 2
        if not exact:
            raise UserError(f"num_buckets={self.num_buckets} are too few for both sides; give at least 4")
        if self.max_distance <= exact:
            raise UserError(
                f"max_distance={self.max_distance} is not beyond the {exact} buckets of one position that "
                f"num_buckets={self.num_buckets} has; give at least {exact + 1}"
            )
        kernel = BiasedDotProduct(self._bias(shape), dropout=shape.dropout, scaled=shape.scaled)
        return shape.multi_head(kernel)

    def _bias(self, shape: AttentionShape) -> RelativeBias:
        if shape.previous is not None:
            return cast(RelativeBias, shape.previous.get_submodule("kernel.bias"))
        return RelativeBias(
            shape.num_attention_heads,
            num_buckets=self.num_buckets,
            max_distance=self.max_distance,
            max_position_embeddings=shape.max_position_embeddings,
            causal=shape.causal,
        )
