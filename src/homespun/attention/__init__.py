"""Attention modules, one file each; the union `AttentionConfig` is their registry."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import nn

from homespun.attention.disentangled import DisentangledAttentionConfig
from homespun.attention.full import FullAttentionConfig
from homespun.attention.linformer import LinformerAttentionConfig
from homespun.attention.local import LocalAttentionConfig
from homespun.attention.lsh import LSHAttentionConfig
from homespun.attention.multi_head import AttentionSpec
from homespun.attention.ngram import NgramAttentionConfig
from homespun.attention.paragraphs import ParagraphsAttentionConfig
from homespun.attention.performer import PerformerAttentionConfig
from homespun.attention.relative_bias import RelativeBiasAttentionConfig
from homespun.attention.sparse import SparseAttentionConfig
from homespun.config import Config

_Single = (
    FullAttentionConfig
    | SparseAttentionConfig
    | LinformerAttentionConfig
    | PerformerAttentionConfig
    | LocalAttentionConfig
    | LSHAttentionConfig
    | NgramAttentionConfig
    | ParagraphsAttentionConfig
    | RelativeBiasAttentionConfig
)


class AlternatingAttentionConfig(Config):
    """Cycle of attention configs over the layers: dense and banded (GPT-3), local and LSH (Reformer)."""

    kind: Literal["alternating"] = "alternating"
    num_global_tokens: ClassVar[int] = 0
    cycle: list[Annotated[_Single, Field(discriminator="kind")]] = Field(min_length=1)

    @property
    def supports_packing(self) -> bool:
        """True if every attention of the cycle supports packing."""
        return all(attention.supports_packing for attention in self.cycle)

    @property
    def is_positional(self) -> bool:
        """True if an attention of the cycle is positional."""
        return any(attention.is_positional for attention in self.cycle)

    @property
    def reads_context(self) -> bool:
        """True if every attention of the cycle reads a context."""
        return all(attention.reads_context for attention in self.cycle)

    @property
    def reads_unpadded(self) -> bool:
        """True if every attention of the cycle reads texts without padding."""
        return all(attention.reads_unpadded for attention in self.cycle)

    def fixed_length_setting(self, max_position_embeddings: int) -> str | None:
        return None

    def of_layers(self, layers: Sequence[int]) -> AlternatingAttentionConfig:
        cycle = [self.cycle[layer % len(self.cycle)].of_layers(layers) for layer in layers]
        return self.model_copy(update={"cycle": cycle})

    def build(self, spec: AttentionSpec) -> nn.Module:
        return self.cycle[spec.layer % len(self.cycle)].build(dataclasses.replace(spec, shared_with=None))


AttentionConfig = Annotated[
    _Single | DisentangledAttentionConfig | AlternatingAttentionConfig, Field(discriminator="kind")
]
