"""DeBERTa's attention: scores of content and of place, told apart."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, cast

from pydantic import AfterValidator, Field
from torch import nn

from homespun.config import Config
from homespun.errors import UserError
from homespun.models.attentions.shape import AttentionShape
from homespun.nn.disentangled import DisentangledAttention, RelativeEmbeddings, check_buckets
from homespun.nn.dropout import Dropout

_LONGEST = 2**20  # its time grows with the square of it, and it has a table of all distances


def _in_order(terms: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(terms)) < len(terms):
        raise ValueError(f"pos_att_type={[*terms]} names a term twice; each counts once")
    return tuple(sorted(terms))


class DisentangledAttentionConfig(Config):
    """Every token sees every token, by content and by distance (He et al. 2021). Causal too; keeps documents apart.

    V1 is ``key_bias: false`` and nothing else. V2 and V3 have ``position_buckets: 256``, ``share_att_key: true``,
    ``norm_rel_ebd: layer_norm``. The vectors of distances are the same in all layers. Time and memory grow with the
    square of the length, as the scores of distances have no fast path.
    """

    kind: Literal["disentangled"] = "disentangled"
    pos_att_type: Annotated[tuple[Literal["c2p", "p2c"], ...], Field(min_length=1), AfterValidator(_in_order)] = Field(
        default=("c2p", "p2c"), description="content to position, position to content"
    )
    max_relative_positions: int = Field(
        default=0, ge=0, description="the furthest distance told from the others; 0: max_position_embeddings"
    )
    position_buckets: int = Field(
        default=0, ge=0, description="buckets of distances on either side, wider further off; 0: none are shared"
    )
    share_att_key: bool = Field(default=False, description="distances go through the projections of the content")
    norm_rel_ebd: Literal["none", "layer_norm"] = Field(default="none", description="normalise vectors of distances")
    key_bias: bool = Field(default=True, description="projections to keys have biases; those of V1 have none")
    separates_documents: ClassVar[bool] = True

    def build(self, shape: AttentionShape) -> nn.Module:
        shape.check_own_projections("disentangled")
        return DisentangledAttention(
            shape.hidden_size,
            shape.num_attention_heads,
            self._relative(shape),
            pos_att_type=self.pos_att_type,
            share_att_key=self.share_att_key,
            head_size=shape.head_size,
            bias=shape.bias,
            key_bias=self.key_bias,
            scaled=shape.scaled,
            dropout=shape.dropout,
            relative_dropout=Dropout(shape.hidden_dropout),
        )

    def _relative(self, shape: AttentionShape) -> RelativeEmbeddings:
        if shape.previous is not None:
            return cast(RelativeEmbeddings, shape.previous.get_submodule("relative"))
        longest = shape.max_position_embeddings
        if longest > _LONGEST:
            raise UserError(f"disentangled attention reads at most {_LONGEST:,} tokens, not {longest:,}")
        furthest = self.max_relative_positions or longest
        if self.position_buckets == 1:
            raise UserError("position_buckets=1 tells no distance from another; give at least 2, or 0 to share none")
        if self.position_buckets:
            check_buckets(self.position_buckets, furthest, longest)
        norm = nn.LayerNorm(shape.hidden_size, eps=shape.layer_norm_eps)
        return RelativeEmbeddings(
            shape.hidden_size,
            longest,
            span=self.position_buckets or furthest,
            maximum=furthest if self.position_buckets else 0,
            norm=norm if self.norm_rel_ebd == "layer_norm" else nn.Identity(),
        )
