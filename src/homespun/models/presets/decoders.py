"""The GPT family, by size: one causal stack.

GPT's size is that of Radford et al. 2018, GPT-2's four of Radford et al. 2019, GPT-3's eight of Brown et al. 2020,
table 2.1. Its XL is printed there with 24 heads of 128 in a stream of 2048, and its 13B with 40 of 128 in one of 5140:
16 heads, and a stream of 5120, are what heads of 128 make of them, and the parameters printed beside agree. Tiny and
mini are ours.
"""

from __future__ import annotations

from homespun.config import Tree
from homespun.models.presets.sizes import SIZES

_GPT: Tree = {
    "causal": True,
    "type_vocab_size": 0,
    "embedding_norm": False,
    "layer_norm_eps": 1e-5,
    "hidden_act": "gelu_new",
    "max_position_embeddings": 512,
}
_GPT2: Tree = _GPT | {
    "max_position_embeddings": 1024,
    "residual": {"kind": "pre", "scaled_initialisation": True},
}
# The paper has its bands "as in the Sparse Transformer" and does not say how wide; 256 is ours.
_GPT3: Tree = _GPT2 | {
    "max_position_embeddings": 2048,
    "attention": {
        "kind": "alternating",
        "cycle": [{"kind": "full"}, {"kind": "sparse", "patterns": [{"kind": "band", "width": 256}]}],
    },
}


def _size(layers: int, width: int, heads: int) -> Tree:
    return {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
    }


_SMALL: dict[str, Tree] = {"tiny": SIZES["tiny"], "mini": SIZES["mini"]}
_GPT2_SIZES = _SMALL | {
    "small": SIZES["base"],
    "medium": SIZES["large"],
    "large": _size(36, 1280, 20),
    "xl": _size(48, 1600, 25),
}
_GPT3_SIZES = _SMALL | {
    "small": SIZES["base"],
    "medium": SIZES["large"],
    "large": _size(24, 1536, 16),
    "xl": _size(24, 2048, 16),
    "2.7b": _size(32, 2560, 32),
    "6.7b": _size(32, 4096, 32),
    "13b": _size(40, 5120, 40),
    "175b": _size(96, 12288, 96),
}

DECODERS: dict[str, Tree] = {
    **{f"gpt-{size}": _SMALL[size] | _GPT for size in _SMALL},
    "gpt-base": SIZES["base"] | _GPT,
    **{f"gpt2-{size}": values | _GPT2 for size, values in _GPT2_SIZES.items()},
    **{f"gpt3-{size}": values | _GPT3 for size, values in _GPT3_SIZES.items()},
}
