"""Presets of encoder-decoders.

The Transformer follows Vaswani et al. 2017, table 3, the hierarchical transformer the code of Liu and Lapata 2019;
BART, LED, PEGASUS, BigBird-Pegasus, T5, T5 1.1 and ProphetNet follow the released checkpoints. Sizes tiny and mini, and
ProphetNet base, are ours.
"""

from __future__ import annotations

from homespun.config import Tree
from homespun.models.presets.encoders import SIZES, SMALL, dimensions


def _two(encoder: Tree, **decoder: object) -> Tree:
    """``decoder`` has the fields that differ from the encoder."""
    return {"kind": "encoder_decoder", "encoder": encoder} | ({"decoder": decoder} if decoder else {})


_TRANSFORMER: Tree = {
    "type_vocab_size": 0,
    "hidden_act": "relu",
    "layer_norm_eps": 1e-5,
    "embedding_norm": False,
    "scale_embedding": True,
    "positions": {"kind": "sinusoidal"},
    "max_position_embeddings": 1024,
}
_TRANSFORMER_SIZES = SMALL | {
    "base": dimensions(6, 512, 8, 2048),
    "big": dimensions(6, 1024, 16, 4096) | {"hidden_dropout_prob": 0.3},
}
_BART: Tree = {
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-5,
    "positions": {"kind": "learned", "offset": 2},
    "max_position_embeddings": 1024,
}
_BART_SIZES = SMALL | {"base": dimensions(6, 768, 12, 3072), "large": dimensions(12, 1024, 16, 4096)}


def _led(longest: int, radius: int) -> Tree:
    windows = {"kind": "sparse", "patterns": [{"kind": "window", "radius": radius}]}
    return _BART | {
        "positions": {"kind": "learned"},
        "max_position_embeddings": longest,
        "attention": windows | {"global_tokens": {"first": 1, "projections": True}},
    }


_LED_SIZES = {
    "tiny": SMALL["tiny"] | _led(1024, 32),
    "mini": SMALL["mini"] | _led(4096, 64),
    "base": _BART_SIZES["base"] | _led(16384, 512),
    "large": _BART_SIZES["large"] | _led(16384, 512),
}


def _bigbird_pegasus(longest: int, block: int) -> Tree:
    return {
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-5,
        "hidden_act": "gelu_new",
        "embedding_norm": False,
        "scale_embedding": True,
        "attention_bias": False,
        "residual": {"kind": "pre"},
        "max_position_embeddings": longest,
        "attention": {
            "kind": "sparse",
            "patterns": [{"kind": "blocks", "size": block}, {"kind": "random_blocks", "size": block, "count": 3}],
            "global_tokens": {"first": 0, "block": block},
        },
    }


_BIGBIRD_PEGASUS_SIZES = {
    "tiny": SMALL["tiny"] | _bigbird_pegasus(1024, 16),
    "mini": SMALL["mini"] | _bigbird_pegasus(4096, 32),
    "large": dimensions(16, 1024, 16, 4096) | _bigbird_pegasus(4096, 64),
}
_PEGASUS: Tree = {
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-5,
    "hidden_act": "relu",
    "embedding_norm": False,
    "scale_embedding": True,
    "residual": {"kind": "pre"},
    "positions": {"kind": "sinusoidal", "halves": True},
}
_PEGASUS_SIZES = SMALL | {
    "base": dimensions(12, 768, 12, 3072),
    "large": dimensions(16, 1024, 16, 4096) | {"max_position_embeddings": 1024},
}


def _hierarchical(alone: int, together: int, **values: object) -> Tree:
    """``alone`` layers with full attention inside paragraphs, then ``together`` layers between paragraphs."""
    cycle = [{"kind": "full"}] * alone + [{"kind": "paragraphs"}] * together
    attention = {"kind": "alternating", "cycle": cycle}
    return _TRANSFORMER | values | {"num_hidden_layers": alone + together, "attention": attention}


# base has the settings of the authors' README: 8 layers, the last two between paragraphs, and a decoder of 1 layer
_HIERARCHICAL_SIZES = {
    "tiny": _hierarchical(2, 1, **dimensions(3, 128, 2, 512)),
    "mini": _hierarchical(3, 1, **dimensions(4, 256, 4, 1024)),
    "base": _hierarchical(6, 2, **dimensions(8, 256, 8, 1024)) | {"max_position_embeddings": 4096},
}
_HIERARCHICAL_DECODERS = {"tiny": 2, "mini": 3, "base": 1}
_T5: Tree = {
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
_T5_SIZES = SMALL | {
    "small": dimensions(6, 512, 8, 2048),
    "base": dimensions(12, 768, 12, 3072),
    "large": dimensions(24, 1024, 16, 4096),
    "3b": dimensions(24, 1024, 32, 16384, head_size=128),
    "11b": dimensions(24, 1024, 128, 65536, head_size=128),
}
# 1.1 was pretrained without dropout; its untied output embeddings are a setting of the head
_T5_1_1 = _T5 | {"gated_feed_forward": True, "hidden_act": "gelu_new", "hidden_dropout_prob": 0.0}
_T5_1_1_SIZES = {
    "tiny": SMALL["tiny"] | {"intermediate_size": 352},
    "mini": SMALL["mini"] | {"intermediate_size": 704},
    "small": dimensions(8, 512, 6, 1024, head_size=64),
    "base": dimensions(12, 768, 12, 2048),
    "large": dimensions(24, 1024, 16, 2816),
    "xl": dimensions(24, 2048, 32, 5120),
    "xxl": dimensions(24, 4096, 64, 10240),
}
# Positions of ProphetNet start after the row of the padding id.
_PROPHETNET: Tree = {"positions": {"kind": "learned", "offset": 1}, "type_vocab_size": 0, "layer_norm_eps": 1e-5}
_PROPHETNET_SIZES = SMALL | {"base": SIZES["base"], "large": dimensions(12, 1024, 16, 4096)}
_WITH_BIASES = {"attention": _T5["attention"]}

ENCODER_DECODERS: dict[str, Tree] = {
    **{f"transformer-{size}": _two(values | _TRANSFORMER) for size, values in _TRANSFORMER_SIZES.items()},
    **{f"bart-{size}": _two(values | _BART) for size, values in _BART_SIZES.items()},
    **{
        f"led-{size}": _two(values, positions={"kind": "learned"}, max_position_embeddings=1024)
        for size, values in _LED_SIZES.items()
    },
    **{f"bigbird-pegasus-{size}": _two(values) for size, values in _BIGBIRD_PEGASUS_SIZES.items()},
    **{
        f"t5-{size}": _two(values | _T5, **_WITH_BIASES) | {"learned_padding": True}
        for size, values in _T5_SIZES.items()
    },
    **{
        f"t5-v1.1-{size}": _two(values | _T5_1_1, **_WITH_BIASES) | {"learned_padding": True}
        for size, values in _T5_1_1_SIZES.items()
    },
    **{
        f"hierarchical-{size}": _two(
            values, num_hidden_layers=_HIERARCHICAL_DECODERS[size], max_position_embeddings=1024
        )
        for size, values in _HIERARCHICAL_SIZES.items()
    },
    **{f"pegasus-{size}": _two(values | _PEGASUS) for size, values in _PEGASUS_SIZES.items()},
    **{f"prophetnet-{size}": _two(values | _PROPHETNET) | {"ngram": 2} for size, values in _PROPHETNET_SIZES.items()},
}
