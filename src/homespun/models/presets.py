"""Named sizes: values, not code. A config names one with ``preset`` and may change any of its fields.

BERT's smaller sizes are those of Turc et al. 2019; base and large of Devlin et al. 2019, Liu et al. 2019 and
Clark et al. 2020. The ELECTRA sizes below small are ours.
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

PRESETS: dict[str, dict[str, Any]] = {
    **{f"bert-{size}": values for size, values in _SIZES.items()},
    **{f"roberta-{size}": values | _ROBERTA for size, values in _SIZES.items()},
    **{f"electra-{size}": values for size, values in _ELECTRA.items()},
}
