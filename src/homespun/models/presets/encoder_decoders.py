"""Encoders with a decoder, by size."""

from __future__ import annotations

from typing import Any

from homespun.models.presets.sizes import SIZES

# Of two stacks. T5's small is the released one; 1.1's feed-forward is `gated_feed_forward` with `gelu_new`.
_T5: dict[str, Any] = {
    "type_vocab_size": 0,
    "hidden_act": "relu",
    "norm": "rms_norm",
    "layer_norm_eps": 1e-6,
    "embedding_norm": False,
    "attention_bias": False,
    "mlp_bias": False,
    "scale_attn_weights": False,
    "positions": {"kind": "none"},
    "attention": {"kind": "relative_bias"},
    "residual": {"kind": "pre", "final_dropout": True},
}
_T5_SIZES: dict[str, dict[str, Any]] = {
    "tiny": SIZES["tiny"],
    "mini": SIZES["mini"],
    "small": SIZES["small"] | {"num_hidden_layers": 6},
}
# ProphetNet's positions begin after the padding id's row.
_PROPHETNET: dict[str, Any] = {
    "positions": {"kind": "learned", "offset": 1},
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-5,
}

ENCODER_DECODERS: dict[str, dict[str, Any]] = {
    **{
        f"t5-{size}": {
            "kind": "encoder_decoder",
            "encoder": values | _T5,
            "decoder": {"attention": _T5["attention"]},
            "learned_padding": True,
        }
        for size, values in _T5_SIZES.items()
    },
    **{
        f"prophetnet-{size}": {"kind": "encoder_decoder", "ngram": 2, "encoder": SIZES[size] | _PROPHETNET}
        for size in ("tiny", "mini")
    },
}
