"""Our own models, by size: the block that learns most from the same minutes (results/efficiency.md).

Norms before the sublayers and after the embeddings without weights, rotary positions, normalised queries and keys,
ReLU squared, no biases, no dropout, and output projections that start at zero. The decoder is the block of NanoChat.
"""

from __future__ import annotations

from typing import Any

from homespun.models.presets.sizes import SIZES

_BLOCK: dict[str, Any] = {
    "max_position_embeddings": 2048,
    "type_vocab_size": 0,
    "hidden_act": "relu2",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "norm": "rms_norm",
    "norm_weight": False,
    "layer_norm_eps": 1e-6,
    "qk_norm": True,
    "attention_bias": False,
    "mlp_bias": False,
    "initialization": "fan_in",
    "initializer_range": 0.03,
    "positions": {"kind": "rotary"},
    "residual": {"kind": "pre"},
}


def _size(layers: int, width: int) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": width // 64,
        "intermediate_size": 4 * width,
    }


_SIZES = {
    "tiny": SIZES["tiny"],
    "mini": SIZES["mini"],
    "small": _size(6, 384),
    "medium": _size(8, 512),
    "base": SIZES["base"],
}

SPUN: dict[str, dict[str, Any]] = {
    **{f"spun-decoder-{size}": values | _BLOCK | {"causal": True} for size, values in _SIZES.items()},
    **{f"spun-encoder-{size}": values | _BLOCK for size, values in _SIZES.items()},
}
