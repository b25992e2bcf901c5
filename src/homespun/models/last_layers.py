"""Heads that read the vectors of an encoder's last layers side by side, not those of the last one alone.

Devlin et al. 2019, section 5.3: a frozen BERT whose last four layers a BiLSTM reads comes near to the tuned one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor, nn

from homespun.config import Config
from homespun.errors import UserError
from homespun.models.backbone import Backbone, Encoder
from homespun.models.chunk_pool import ChunkPoolHeadConfig
from homespun.models.sequence_heads import FeedForwardHeadConfig, SequenceHeadConfig

LayerCount = Annotated[int, Field(ge=1, description="layers, from the last, whose vectors the head reads side by side")]


@dataclass(frozen=True)
class ConcatLastLayers:
    """A `homespun.models.model.Reader`: (batch, seq, layers * hidden), the last layer's vectors at the end."""

    layers: int

    def __call__(self, backbone: Backbone, input_ids: Tensor, **context: Tensor) -> Tensor:
        return _one_stack(backbone, self.layers).last_layers(self.layers, input_ids, **context)


@dataclass(frozen=True)
class ConcatenatedWidth:
    """Width and norm settings that a sequence head is built from."""

    hidden_size: int
    layer_norm_eps: float


class LastLayersHeadConfig(Config):
    """A head on wider vectors; fine-tuning makes it of `objective.last_layers` and the head that was asked for."""

    kind: Literal["last_layers"] = "last_layers"
    layers: LayerCount = 4
    head: Annotated[SequenceHeadConfig | ChunkPoolHeadConfig, Field(discriminator="kind")] = FeedForwardHeadConfig()

    def build(self, backbone: Backbone) -> nn.Module:
        """The head alone: which vectors it is given is for the `ConcatLastLayers` of the model.

        Raises:
            UserError: the backbone has not so many layers, or is not one stack.
        """
        encoder = _one_stack(backbone, self.layers)
        return self.head.build(ConcatenatedWidth(self.layers * encoder.hidden_size, encoder.layer_norm_eps))


def _one_stack(backbone: Backbone, layers: int) -> Encoder:
    if backbone.has_decoder:
        raise UserError(
            f"last_layers={layers} reads the layers of one stack, and this model is an encoder with a decoder; "
            f"set objective.last_layers=1"
        )
    (stack,) = backbone.stacks
    if layers > len(stack.layers):
        raise UserError(f"last_layers={layers}, but the model has {len(stack.layers)} layers; give that many at most")
    return stack
