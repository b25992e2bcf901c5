"""Named sizes: values, not code. A config names one with ``preset`` and may change any of its fields.

BERT's smaller sizes are those of Turc et al. 2019; base and large of Devlin et al. 2019, Liu et al. 2019 and
Clark et al. 2020; ALBERT's base of Lan et al. 2020. The sizes of ELECTRA below small and of ALBERT below base are ours,
and so are the sizes of the long-input models but for base.
"""

from __future__ import annotations

from typing import Any

_SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 512},
    "mini": {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024},
    "small": {"num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048},
    "base": {"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
    "large": {"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096},
}
_ROBERTA: dict[str, Any] = {
    "positions": {"kind": "learned", "offset": 2},
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
}
_ELECTRA: dict[str, dict[str, Any]] = {
    "tiny": _SIZES["tiny"] | {"num_hidden_layers": 3, "embedding_size": 64},
    "mini": _SIZES["mini"] | {"embedding_size": 128},
    "small": _SIZES["mini"] | {"num_hidden_layers": 12, "embedding_size": 128},
    "base": _SIZES["base"] | {"embedding_size": 768},
    "large": _SIZES["large"] | {"embedding_size": 1024},
}
_ALBERT: dict[str, dict[str, Any]] = {
    size: _SIZES[size] | {"num_hidden_groups": 1, "embedding_size": width, "hidden_act": "gelu_new"}
    for size, width in (("tiny", 64), ("mini", 128), ("base", 128))
}

# What makes each long-input model itself, beside its size. BigBird's and Longformer's numbers are those of the papers.
_SPARSE: dict[str, dict[str, Any]] = {
    "longformer": _ROBERTA
    | {
        "max_position_embeddings": 4096,
        "attention": {
            "kind": "sparse",
            "patterns": [{"kind": "window", "radius": 256}],
            "everywhere": {"first": 1, "projections": True},
        },
    },
    "big_bird": {
        "max_position_embeddings": 4096,
        "hidden_act": "gelu_new",
        "attention": {
            "kind": "sparse",
            "patterns": [{"kind": "blocks", "size": 64}, {"kind": "random_blocks", "size": 64, "count": 3}],
            "everywhere": {"first": 0, "block": 64},
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
_DEBERTA: dict[str, Any] = {"positions": {"kind": "none"}, "type_vocab_size": 0, "layer_norm_eps": 1e-7}
_DEBERTA_V1 = _DEBERTA | {"attention": {"kind": "disentangled", "key_bias": False}}
_DEBERTA_V3 = _DEBERTA | {
    "attention": {
        "kind": "disentangled",
        "position_buckets": 256,
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
    },
}
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
    "tiny": _SIZES["tiny"],
    "mini": _SIZES["mini"],
    "small": _SIZES["small"] | {"num_hidden_layers": 6},
}
# ProphetNet's positions begin after the padding id's row.
_PROPHETNET: dict[str, Any] = {
    "positions": {"kind": "learned", "offset": 1},
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-5,
}
# Document 000, section 5.3: the set {W, D, r, N_seq, N_heads, N_blocks, d_model} is the window (twice the radius), the
# dilation, `residual`, `max_position_embeddings`, `num_attention_heads`, `num_hidden_layers` and `hidden_size` here;
# G_size, the generator's width, is ELECTRA's `generator_size`.
_DILATED: dict[str, Any] = _SIZES["mini"] | {
    "num_hidden_layers": 12,
    "max_position_embeddings": 128,
    "positions": {"kind": "sinusoidal"},
    "attention": {
        "kind": "sparse",
        "patterns": [{"kind": "window", "radius": 32, "dilation": 2}],
        "everywhere": {"first": 1},
    },
}

PRESETS: dict[str, dict[str, Any]] = {
    **{f"bert-{size}": values for size, values in _SIZES.items()},
    **{f"roberta-{size}": values | _ROBERTA for size, values in _SIZES.items()},
    **{f"electra-{size}": values for size, values in _ELECTRA.items()},
    **{f"albert-{size}": values for size, values in _ALBERT.items()},
    **{f"{name}-{size}": _SIZES[size] | parts for name, parts in _SPARSE.items() for size in ("mini", "base")},
    **{f"deberta-{size}": _SIZES[size] | _DEBERTA_V1 for size in ("mini", "base")},
    "deberta-v3-mini": _SIZES["mini"] | _DEBERTA_V3,
    "deberta-v3-small": _SIZES["base"] | {"num_hidden_layers": 6} | _DEBERTA_V3,
    "deberta-v3-base": _SIZES["base"] | _DEBERTA_V3,
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
        f"prophetnet-{size}": {"kind": "encoder_decoder", "ngram": 2, "encoder": _SIZES[size] | _PROPHETNET}
        for size in ("tiny", "mini")
    },
    "dilated-bert-small": _DILATED,
    "reversible-dilated-bert-small": _DILATED | {"residual": {"kind": "reversible", "streams": "split"}},
}
