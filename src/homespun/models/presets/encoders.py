"""Presets of single stacks: encoders, and the GPT family of causal decoders.

Sources of the sizes: Turc et al. 2019 for smaller BERT models; Devlin et al. 2019, Liu et al. 2019 and Clark et al.
2020 for base and large; Lan et al. 2020 for ALBERT base; Radford et al. 2018 for GPT, Radford et al. 2019 for GPT-2,
Brown et al. 2020, table 2.1, for GPT-3, with heads of 128 in XL and 13B, whose printed heads and widths disagree. Other
tiny, mini and small sizes are our own.
"""

from __future__ import annotations

from homespun.config import Tree


def dimensions(layers: int, width: int, heads: int = 0, inner: int = 0, **others: int | float) -> Tree:
    """Size fields of a stack; by default heads of 64 and an intermediate size of four times the width."""
    return {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads or width // 64,
        "intermediate_size": inner or 4 * width,
    } | others


SIZES: dict[str, Tree] = {
    "tiny": dimensions(2, 128),
    "mini": dimensions(4, 256),
    "small": dimensions(4, 512),
    "base": dimensions(12, 768),
    "large": dimensions(24, 1024),
}
"""Sizes of BERT, shared by other families."""
SMALL: dict[str, Tree] = {name: SIZES[name] for name in ("tiny", "mini")}

_ROBERTA: Tree = {"positions": {"kind": "learned", "offset": 2}, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
_ELECTRA: dict[str, Tree] = {
    "tiny": SIZES["tiny"] | {"num_hidden_layers": 3, "embedding_size": 64},
    "mini": SIZES["mini"] | {"embedding_size": 128},
    "small": SIZES["mini"] | {"num_hidden_layers": 12, "embedding_size": 128},
    "base": SIZES["base"] | {"embedding_size": 768},
    "large": SIZES["large"] | {"embedding_size": 1024},
}
_ALBERT: dict[str, Tree] = {
    size: SIZES[size] | {"num_hidden_groups": 1, "embedding_size": width, "hidden_act": "gelu_new"}
    for size, width in (("tiny", 64), ("mini", 128), ("base", 128))
}

# Long-input models; the numbers of BigBird and Longformer are those of the papers.
_SPARSE: dict[str, Tree] = {
    "longformer": _ROBERTA
    | {
        "max_position_embeddings": 4096,
        "attention": {
            "kind": "sparse",
            "patterns": [{"kind": "window", "radius": 256}],
            "global_tokens": {"first": 1, "projections": True},
        },
    },
    "big_bird": {
        "max_position_embeddings": 4096,
        "hidden_act": "gelu_new",
        "attention": {
            "kind": "sparse",
            "patterns": [{"kind": "blocks", "size": 64}, {"kind": "random_blocks", "size": 64, "count": 3}],
            "global_tokens": {"first": 0, "block": 64},
        },
    },
    "blockbert": {
        "max_position_embeddings": 1024,
        "attention": {"kind": "sparse", "patterns": [{"kind": "permuted_blocks", "blocks": 2, "shifts": [0, 1]}]},
    },
    "linformer": {
        "max_position_embeddings": 4096,
        "attention": {"kind": "linformer", "k": 256, "sharing": "layerwise"},
    },
    "performer": {"max_position_embeddings": 4096, "attention": {"kind": "performer", "num_features": 256}},
    "reformer": {
        "max_position_embeddings": 4096,
        "type_vocab_size": 0,
        "embedding_norm": False,
        "hidden_act": "relu",
        "residual": {"kind": "reversible", "streams": "copy"},
        "attention": {"kind": "alternating", "cycle": [{"kind": "local"}, {"kind": "lsh"}]},
    },
}
# As in the released checkpoints; V3 small has the width of base.
_DEBERTA: Tree = {"positions": {"kind": "none"}, "type_vocab_size": 0, "layer_norm_eps": 1e-7}
_DEBERTA_V1 = _DEBERTA | {"attention": {"kind": "disentangled", "key_bias": False}}
_DEBERTA_V3 = _DEBERTA | {
    "attention": {"kind": "disentangled", "position_buckets": 256, "share_att_key": True, "norm_rel_ebd": "layer_norm"}
}
# Bierling 2024, section 5.3; docs/sizes.md maps its symbols to keys.
_DILATED: Tree = SIZES["mini"] | {
    "num_hidden_layers": 12,
    "max_position_embeddings": 128,
    "positions": {"kind": "sinusoidal"},
    "attention": {
        "kind": "sparse",
        "patterns": [{"kind": "window", "radius": 32, "dilation": 2}],
        "global_tokens": {"first": 1},
    },
}

ENCODERS: dict[str, Tree] = {
    **{f"bert-{size}": values for size, values in SIZES.items()},
    **{f"roberta-{size}": values | _ROBERTA for size, values in SIZES.items()},
    **{f"electra-{size}": values for size, values in _ELECTRA.items()},
    **{f"albert-{size}": values for size, values in _ALBERT.items()},
    **{f"{name}-{size}": SIZES[size] | parts for name, parts in _SPARSE.items() for size in ("mini", "base")},
    **{f"deberta-{size}": SIZES[size] | _DEBERTA_V1 for size in ("mini", "base")},
    "deberta-v3-mini": SIZES["mini"] | _DEBERTA_V3,
    "deberta-v3-small": SIZES["base"] | {"num_hidden_layers": 6} | _DEBERTA_V3,
    "deberta-v3-base": SIZES["base"] | _DEBERTA_V3,
    "dilated-bert-small": _DILATED,
    "reversible-dilated-bert-small": _DILATED | {"residual": {"kind": "reversible", "streams": "split"}},
}


_GPT: Tree = {
    "causal": True,
    "type_vocab_size": 0,
    "embedding_norm": False,
    "layer_norm_eps": 1e-5,
    "hidden_act": "gelu_new",
    "max_position_embeddings": 512,
}
_GPT2: Tree = _GPT | {"max_position_embeddings": 1024, "residual": {"kind": "pre", "scaled_initialisation": True}}
# The paper does not give the width of bands; 256 is ours.
_GPT3: Tree = _GPT2 | {
    "max_position_embeddings": 2048,
    "attention": {
        "kind": "alternating",
        "cycle": [{"kind": "full"}, {"kind": "sparse", "patterns": [{"kind": "band", "width": 256}]}],
    },
}


_GPT2_SIZES = SMALL | {
    "small": SIZES["base"],
    "medium": SIZES["large"],
    "large": dimensions(36, 1280),
    "xl": dimensions(48, 1600),
}
_GPT3_SIZES = SMALL | {
    "small": SIZES["base"],
    "medium": SIZES["large"],
    "large": dimensions(24, 1536, 16),
    "xl": dimensions(24, 2048, 16),
    "2.7b": dimensions(32, 2560, 32),
    "6.7b": dimensions(32, 4096, 32),
    "13b": dimensions(40, 5120, 40),
    "175b": dimensions(96, 12288, 96),
}

DECODERS: dict[str, Tree] = {
    **{f"gpt-{size}": SMALL[size] | _GPT for size in SMALL},
    "gpt-base": SIZES["base"] | _GPT,
    **{f"gpt2-{size}": values | _GPT2 for size, values in _GPT2_SIZES.items()},
    **{f"gpt3-{size}": values | _GPT3 for size, values in _GPT3_SIZES.items()},
}
