"""The attentions, one file each; the union below is their registry."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

from pydantic import Field
from torch import nn

from homespun.config import Config
from homespun.models.attentions.disentangled import DisentangledAttentionConfig
from homespun.models.attentions.full import FullAttentionConfig
from homespun.models.attentions.linformer import LinformerAttentionConfig
from homespun.models.attentions.local import LocalAttentionConfig
from homespun.models.attentions.lsh import LSHAttentionConfig
from homespun.models.attentions.ngram import NgramAttentionConfig
from homespun.models.attentions.paragraphs import ParagraphsAttentionConfig
from homespun.models.attentions.performer import PerformerAttentionConfig
from homespun.models.attentions.relative_bias import RelativeBiasAttentionConfig
from homespun.models.attentions.shape import AttentionShape
from homespun.models.attentions.sparse import SparseAttentionConfig

OneAttention = Annotated[
    FullAttentionConfig
    | SparseAttentionConfig
    | LinformerAttentionConfig
    | PerformerAttentionConfig
    | LocalAttentionConfig
    | LSHAttentionConfig
    | NgramAttentionConfig
    | ParagraphsAttentionConfig
    | RelativeBiasAttentionConfig,
    Field(discriminator="kind"),
]


class AlternatingAttentionConfig(Config):
    """Layers take these in turn: GPT-3's dense and banded layers, Reformer's local and LSH ones."""

    kind: Literal["alternating"] = "alternating"
    cycle: list[OneAttention] = Field(min_length=1)

    @property
    def separates_documents(self) -> bool:
        """Whether all of them keep packed documents apart."""
        return all(attention.separates_documents for attention in self.cycle)

    def build(self, shape: AttentionShape) -> nn.Module:
        return self.cycle[shape.layer % len(self.cycle)].build(dataclasses.replace(shape, previous=None))


AttentionConfig = Annotated[
    FullAttentionConfig
    | SparseAttentionConfig
    | LinformerAttentionConfig
    | PerformerAttentionConfig
    | LocalAttentionConfig
    | LSHAttentionConfig
    | NgramAttentionConfig
    | ParagraphsAttentionConfig
    | DisentangledAttentionConfig
    | RelativeBiasAttentionConfig
    | AlternatingAttentionConfig,
    Field(discriminator="kind"),
]
