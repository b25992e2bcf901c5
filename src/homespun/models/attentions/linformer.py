"""Linformer's attention: the keys and values of a text made few, whatever its length."""

from __future__ import annotations

from typing import ClassVar, Literal, cast

from pydantic import Field
from torch import nn

from homespun.config import Config
from homespun.errors import UserError
from homespun.models.attentions.shape import AttentionShape, of_layer
from homespun.nn.kernels.linformer import (
    ConvolvedProjection,
    LinearProjection,
    Linformer,
    LinformerAttention,
    PooledProjection,
    Projection,
)


class LinformerAttentionConfig(Config):
    """Every token sees ``k`` projections of all tokens (Wang et al. 2020). Not causal; keeps no documents apart.

    ``sharing`` is the paper's, section 4: ``none`` has matrices of each head for keys and for values, ``headwise`` one
    for keys and one for values, ``key_value`` one for both, ``layerwise`` the same one in all layers. ``pooled`` has
    nothing to share. Windows (pooled, convolved) are of ``max_position_embeddings / k`` tokens, rounded up: where k
    does not divide it, a few less than k are needed.
    """

    kind: Literal["linformer"] = "linformer"
    k: int | list[int] = Field(default=256, description="tokens left of the keys; one number, or one a layer")
    sharing: Literal["none", "headwise", "key_value", "layerwise"] = "headwise"
    projection: Literal["linear", "pooled", "convolved"] = Field(
        default="linear", description="learned sums over all places, means of windows, or convolutions over windows"
    )
    separates_documents: ClassVar[bool] = False

    def build(self, shape: AttentionShape) -> nn.Module:
        shape.check_plain("linformer")
        shape.check_own_projections("linformer")
        if shape.causal:
            raise UserError(
                "linformer cannot be causal: each projected key is made of all tokens; "
                "use full, sparse or performer, or set causal: false"
            )
        if self.sharing == "layerwise" and shape.layer > 0:
            key = value = self._of_the_layer_before(shape)
        else:
            key = self._projection(shape)
            value = self._projection(shape) if self.sharing in ("none", "headwise") else key
        kernel = Linformer(key, value, dropout=shape.dropout)
        attention = shape.multi_head(kernel)
        # sums over places that are the same in all heads may come before the products with the weights; others not
        summed = self.sharing != "none" and self.projection != "convolved"
        return LinformerAttention(attention) if summed else attention

    def _projection(self, shape: AttentionShape) -> Projection:
        k, longest = self._k(shape.layer), shape.max_position_embeddings
        if not 1 <= k <= longest:
            raise UserError(
                f"k={k} must be from 1 to max_position_embeddings={longest}: it is what is left of the keys"
            )
        heads = shape.num_attention_heads if self.sharing == "none" else 1
        window = -(-longest // k)
        if self.projection == "pooled":
            return PooledProjection(window)
        if self.projection == "convolved":
            return ConvolvedProjection(window, shape.hidden_size // shape.num_attention_heads, heads=heads)
        return LinearProjection(longest, k, heads=heads)

    def _k(self, layer: int) -> int:
        if self.sharing == "layerwise" and isinstance(self.k, list) and len(set(self.k)) > 1:
            raise UserError(f"sharing=layerwise has one projection for all layers, so one k, not {self.k}; give one")
        return of_layer(self.k, layer, "k")

    def _of_the_layer_before(self, shape: AttentionShape) -> Projection:
        if shape.previous is None:
            raise UserError(
                "sharing=layerwise needs linformer in every layer; with other attentions between, use key_value"
            )
        return cast(Projection, shape.previous.get_submodule("kernel.key_projection"))
