"""PEGASUS (Zhang et al. 2020): BART, pre-norm, with sinusoidal positions, which are computed and not read."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from homespun.config import Tree
from homespun.hf import builders
from homespun.hf.engine import DefaultTensor, Drop, Table
from homespun.hf.families import bart
from homespun.models.encoder_decoder import EncoderDecoderConfig
from homespun.nn.positions import SinusoidalPositions

STACK: Tree = {"embedding_norm": False, "residual": {"kind": "pre"}}


def _positions(stack: str) -> Callable[[EncoderDecoderConfig], Tensor]:
    def make(backbone: EncoderDecoderConfig) -> Tensor:
        config = getattr(backbone, stack)
        return SinusoidalPositions(config.max_position_embeddings, config.hidden_size, halves=True).table.clone()

    return make


PEGASUS = bart.family(
    "pegasus",
    "model",
    (*bart.encoder_rules("model"), *bart.norm_rules("model", "layer_norm", "final_norm")),
    builders.headless("PegasusModel", "model."),
    bart.conditional_lm("PegasusForConditionalGeneration", "model"),
    table=Table(
        drops=(Drop(r"model\.(en|de)coder\.embed_positions\.weight", "sines and cosines, which are computed"),),
        default_tensors=tuple(
            DefaultTensor(f"model.{stack}.embed_positions.weight", _positions(stack)) for stack in bart.STACKS
        ),
    ),
    defaults={
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
        "forced_eos_token_id": 1,
    },
    stack=STACK | {"positions": {"kind": "sinusoidal", "halves": True}},
)
