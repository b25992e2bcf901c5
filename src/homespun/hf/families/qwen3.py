"""Qwen3 (Yang et al. 2025): Llama with norms of the queries and keys of each head."""

from __future__ import annotations

from homespun.config import Tree
from homespun.errors import UserError
from homespun.hf.builders import LAYER, module
from homespun.hf.engine import Table
from homespun.hf.families import llama

_THEIRS, _OURS = f"{llama.LAYERS}.self_attn", f"{LAYER}.attention.sublayer"
_QK_NORMS = Table(
    rules=(module(f"{_THEIRS}.q_norm", f"{_OURS}.query_norm"), module(f"{_THEIRS}.k_norm", f"{_OURS}.key_norm"))
)


def _check_layer_types(settings: Tree) -> None:
    types = settings.get("layer_types")
    if types is not None and (not isinstance(types, list) or {*map(str, types)} - {"full_attention"}):
        raise UserError(f"layer_types={types!r} is not supported, only 'full_attention' for each layer")


QWEN3 = llama.family(
    "qwen3",
    llama.GATED + _QK_NORMS,
    *llama.decoder_classes("Qwen3"),
    defaults={
        "vocab_size": 151936,
        "intermediate_size": 22016,
        "head_dim": 128,
        "max_position_embeddings": 32768,
    },
    fields={"gated_feed_forward": True, "mlp_bias": False, "qk_norm": True, "causal": True},
    check=_check_layer_types,
    fixed={"use_sliding_window": (None, False)},
)
