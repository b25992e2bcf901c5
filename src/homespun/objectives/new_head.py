"""A new head on a pretrained stack, for objectives that give each text one row of numbers."""

from __future__ import annotations

from typing import Protocol

from torch import nn

from homespun.data.long_inputs import LongInputs
from homespun.errors import UserError
from homespun.models.chunk_pool import ChunkPoolHeadConfig
from homespun.models.config import ModelConfig
from homespun.models.encoder import initialise
from homespun.models.encoder_decoder import EncoderDecoderConfig
from homespun.models.last_layers import LayerCount
from homespun.models.model import Model
from homespun.models.scalar_mix import Layers, on_layers
from homespun.models.sequence_heads import SequenceHeadConfig, reads_first


class OfTexts(Protocol):
    """What an objective says of its head."""

    head: SequenceHeadConfig
    layers: Layers
    last_layers: LayerCount


def new_head(
    objective: OfTexts, model: Model, config: ModelConfig, num_labels: int, long_inputs: LongInputs
) -> tuple[nn.Module, ModelConfig]:
    """The head, drawn anew, and the config of the model with it.

    Layers over the chunks of long texts, where ``long_inputs`` has any, become part of the head.

    Raises:
        UserError: the head goes by the first token, of which the model makes nothing.
    """
    check_head(objective.head, config)
    own: SequenceHeadConfig = objective.head.model_copy(update={"num_labels": num_labels})
    chunks, above = long_inputs.chunks, long_inputs.layers
    pooled = ChunkPoolHeadConfig(head=own, chunks=chunks, layers=above) if above else own
    head_config = on_layers(pooled, objective.layers, objective.last_layers)
    head = head_config.build(model.backbone)
    initialise(head.modules(), config.backbone.initializer_range)
    return head, config.model_copy(update={"head": head_config})


def check_head(head: SequenceHeadConfig, config: ModelConfig) -> None:
    """Whether what a head goes by can say anything of a text.

    Raises:
        UserError: see `check_first_token`.
    """
    if reads_first(head):
        way_out = "set objective.head.kind=last, mean, cnn or bilstm, or take the recipe classify-cnn"
        check_first_token(f"objective.head.kind={head.kind}", config, way_out=way_out)


def check_first_token(what: str, config: ModelConfig, *, way_out: str) -> None:
    """Whether the vector of the first token can say anything of a text.

    Raises:
        UserError: it cannot, as the stack is causal: no other token is read there.
    """
    if not isinstance(config.backbone, EncoderDecoderConfig) and config.backbone.causal:
        raise UserError(
            f"{what} goes by the vector of [CLS], the first token, where a causal model has read nothing of the text; "
            f"{way_out}"
        )
