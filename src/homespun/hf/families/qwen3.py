"""Qwen3 (Yang et al. 2025): a Llama that normalises the queries and keys of each head."""

from __future__ import annotations

from homespun.config import Tree
from homespun.errors import UserError
from homespun.hf.engine import Rule, Table
from homespun.hf.families.llama import (
    DEFAULTS,
    EMBEDDINGS,
    GATED,
    LAYER,
    NAMES,
    NORMS,
    OWN,
    ROTATIONS,
    attention_rules,
    decoder_classes,
    read,
    write,
)
from homespun.hf.family import Family

_QK_NORMS = (
    Rule(f"{LAYER}.self_attn.q_norm.{{p}}", f"{OWN}.attention.sublayer.query_norm.{{p}}"),
    Rule(f"{LAYER}.self_attn.k_norm.{{p}}", f"{OWN}.attention.sublayer.key_norm.{{p}}"),
)


def _read(settings: Tree, kind: str | None) -> Tree:
    types = settings.get("layer_types")
    if types is not None and (not isinstance(types, list) or {*map(str, types)} - {"full_attention"}):
        raise UserError(f"layer_types={types!r} is not supported, only 'full_attention' for each layer")
    own = {"gated_feed_forward": True, "mlp_bias": False, "qk_norm": True, "causal": True}
    return read(settings) | own


QWEN3 = Family(
    model_type="qwen3",
    prefix="model.",
    table=Table(rules=(EMBEDDINGS, *attention_rules(), *_QK_NORMS, *NORMS, *GATED), drops=(ROTATIONS,)),
    architectures=decoder_classes("Qwen3"),
    defaults=DEFAULTS
    | {
        "vocab_size": 151936,
        "intermediate_size": 22016,
        "head_dim": 128,
        "max_position_embeddings": 32768,
    },
    names=NAMES,
    read=_read,
    write=write,
    fixed={"use_sliding_window": (None, False)},
)
