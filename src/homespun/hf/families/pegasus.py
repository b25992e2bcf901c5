"""PEGASUS (Zhang et al. 2020): BART normalised before the sublayers, with sines and cosines for positions.

The positions are a table there, which is computed anew and not taken from the files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from homespun.config import Tree
from homespun.hf.engine import DefaultTensor, Drop, Table
from homespun.hf.families import bart
from homespun.hf.family import Family, headless
from homespun.models.encoder_decoder import EncoderDecoderConfig
from homespun.nn.positions import SinusoidalPositions

# what is neither BART's nor a plain value
STACK: dict[str, Any] = {
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-5,
    "embedding_norm": False,
    "residual": {"kind": "pre"},
}


def _read(settings: Tree, kind: str | None) -> Tree:
    stack = STACK | {"positions": {"kind": "sinusoidal", "halves": True}}
    return {"encoder": stack, "decoder": stack}


def _positions(stack: str) -> Callable[[EncoderDecoderConfig], Tensor]:
    def make(backbone: EncoderDecoderConfig) -> Tensor:
        config = getattr(backbone, stack)
        return SinusoidalPositions(config.max_position_embeddings, config.hidden_size, halves=True).table.clone()

    return make


PEGASUS = Family(
    model_type="pegasus",
    prefix="model.",
    table=bart.shared_words("model")
    + Table(
        rules=(
            *bart.encoder_rules("model"),
            *bart.decoder_rules("model"),
            *bart.norm_rules("model", "layer_norm", "final_norm"),
        ),
        drops=(Drop(r"model\.(en|de)coder\.embed_positions\.weight", "sines and cosines, which are computed"),),
        default_tensors=tuple(
            DefaultTensor(f"model.{stack}.embed_positions.weight", _positions(stack))
            for stack in ("encoder", "decoder")
        ),
    ),
    architectures=(
        headless("PegasusModel", "model."),
        bart.conditional_lm("PegasusForConditionalGeneration", "model"),
    ),
    defaults={
        **bart.DEFAULTS,
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
        "forced_eos_token_id": 1,
    },
    names=bart.names("encoder"),
    decoder_names=bart.names("decoder"),
    read=_read,
    fixed=bart.FIXED,
    dropouts=lambda settings: bart.DROPOUTS,
)
