"""Encoders, by size.

BERT's smaller sizes are those of Turc et al. 2019; base and large of Devlin et al. 2019, Liu et al. 2019 and
Clark et al. 2020; ALBERT's base of Lan et al. 2020. The sizes of ELECTRA below small and of ALBERT below base are ours,
and so are the sizes of the long-input models but for base.
"""

from __future__ import annotations

from homespun.config import Tree
from homespun.models.presets.sizes import SIZES

_ROBERTA: Tree = {
    "positions": {"kind": "learned", "offset": 2},
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
}
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

# What makes each long-input model itself, beside its size. BigBird's and Longformer's numbers are those of the papers.
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
# The numbers of the released checkpoints; V3's small has base's width.
_DEBERTA: Tree = {"positions": {"kind": "none"}, "type_vocab_size": 0, "layer_norm_eps": 1e-7}
_DEBERTA_V1 = _DEBERTA | {"attention": {"kind": "disentangled", "key_bias": False}}
_DEBERTA_V3 = _DEBERTA | {
    "attention": {
        "kind": "disentangled",
        "position_buckets": 256,
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
    },
}
# The dilated BERT of Bierling 2024, section 5.3; docs/pretraining.md says which of its symbols is which key.
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
