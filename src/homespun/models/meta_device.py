"""Shapes of a described model, compared with the given weights before memory is allocated."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from homespun.errors import UserError
from homespun.models.config import ModelConfig
from homespun.models.model import Model

MOST_LAYERS = 4096
_MOST_COMPUTED = 2**28  # numbers in tables of positions and the like: 262,144 places of width 1,024


def build_on_meta(config: ModelConfig, weights: Mapping[str, Tensor], *, source: str) -> Model:
    """The model of a config, on the device ``meta``.

    Args:
        config: as a file describes it.
        weights: those that it is to be given; none of its layers is without.
        source: what describes it, for errors.

    Raises:
        UserError: it has more layers than there are weights, or asks for endless memory.
    """
    backbone = config.backbone
    if backbone.own_layers > len(weights):
        raise UserError(f"{source} describes {backbone.own_layers} layers; there are weights of at most {len(weights)}")
    if backbone.num_hidden_layers > MOST_LAYERS:
        raise UserError(f"{source} describes {backbone.num_hidden_layers} layers; a model has at most {MOST_LAYERS}")
    try:
        with torch.device("meta"):
            model = config.build()
    except (RuntimeError, TypeError, OverflowError) as error:  # what torch says of a size that no tensor can have
        raise UserError(f"{source} describes a tensor larger than any can be") from error
    kept = model.state_dict().keys()
    computed = sum(buffer.numel() for name, buffer in model.named_buffers() if name not in kept)
    if computed > _MOST_COMPUTED:
        raise UserError(
            f"{source} describes tables of {computed:,} numbers beside the weights, to be computed for "
            f"max_position_embeddings={backbone.max_position_embeddings}; there may be {_MOST_COMPUTED:,}"
        )
    return model
