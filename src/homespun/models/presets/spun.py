"""Our own models, by size: the blocks that learn most from the same minutes (results/efficiency.md).

All have norms before the sublayers, no dropout, matrices drawn by their width and output projections that start at
zero. The decoder is the block of NanoChat: rotary positions, norms after the embeddings and without weights, normalised
queries and keys, ReLU squared. The encoder is the block of ModernBERT with biases in its attention, whose heads start
at neighbouring tokens. The encoder-decoder is the block of T5 1.1, whose heads start there too, with scaled scores and
embeddings, which `homespun.hf.folding` makes T5's on export, and one table of embeddings for both stacks and the head.
"""

from __future__ import annotations

from homespun.config import Tree
from homespun.models.presets.encoders import SIZES, SMALL, dimensions

_BLOCK: Tree = {
    "max_position_embeddings": 2048,
    "type_vocab_size": 0,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "mlp_bias": False,
    "initialization": "fan_in",
    "initializer_range": 0.03,
    "positions": {"kind": "rotary"},
    "residual": {"kind": "pre"},
}
_DECODER: Tree = _BLOCK | {
    "causal": True,
    "hidden_act": "relu2",
    "norm": "rms_norm",
    "norm_weight": False,
    "layer_norm_eps": 1e-6,
    "qk_norm": True,
    "attention_bias": False,
}
_ENCODER: Tree = _BLOCK | {
    "gated_feed_forward": True,
    "norm_bias": False,
    "layer_norm_eps": 1e-5,
    "residual": {"kind": "pre", "first_norm": False},
    "neighbour_heads": 1,
}
_RELATIVE_BIAS: Tree = {"kind": "relative_bias"}
_ENCODER_DECODER: Tree = _BLOCK | {
    "gated_feed_forward": True,
    "hidden_act": "gelu_new",
    "norm": "rms_norm",
    "layer_norm_eps": 1e-6,
    "embedding_norm": False,
    "attention_bias": False,
    "scale_embedding": True,
    "positions": {"kind": "none"},
    "attention": _RELATIVE_BIAS,
    "residual": {"kind": "pre", "final_dropout": True},
    "neighbour_heads": 1,
}


_SIZES = {
    **SMALL,
    "small": dimensions(6, 384),
    "medium": dimensions(8, 512),
    "base": SIZES["base"],
}


def _gated(values: Tree) -> Tree:
    """With two thirds of the inner width, in steps of 64: as many parameters as without the gate."""
    return values | {"intermediate_size": round(values["intermediate_size"] / 96) * 64}


SPUN: dict[str, Tree] = {
    **{f"spun-decoder-{size}": values | _DECODER for size, values in _SIZES.items()},
    **{f"spun-encoder-{size}": _gated(values) | _ENCODER for size, values in _SIZES.items()},
    **{
        f"spun-encoder-decoder-{size}": {
            "kind": "encoder_decoder",
            "encoder": _gated(values) | _ENCODER_DECODER,
            "decoder": {"attention": _RELATIVE_BIAS},
            "learned_padding": True,
        }
        for size, values in _SIZES.items()
    },
}
