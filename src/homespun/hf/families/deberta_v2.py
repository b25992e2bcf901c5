"""DeBERTa V2 and V3 (He et al. 2021, 2023): distances in buckets, with the projections of the content.

V3 is V2 trained as ELECTRA; its ``conv_kernel_size`` is 0, the only value that is supported.
"""

from __future__ import annotations

from homespun.attention.disentangled import DisentangledAttentionConfig
from homespun.config import Tree
from homespun.hf.builders import module
from homespun.hf.engine import Table
from homespun.hf.families import deberta
from homespun.hf.families.deberta import ATTENTION, DEFAULTS, NAMES, RELATIVE, SELF, TABLE, architectures, count
from homespun.hf.family import Family
from homespun.models.encoder import EncoderConfig


def _read(settings: Tree, kind: str | None) -> Tree:
    return deberta.read(
        settings,
        position_buckets=count(settings["position_buckets"]),
        share_att_key=settings["share_att_key"],
        norm_rel_ebd="layer_norm" if "layer_norm" in str(settings["norm_rel_ebd"]).lower().split("|") else "none",
    )


def _write(backbone: EncoderConfig) -> Tree:
    attention = backbone.attention
    own = deberta.write(backbone)
    if not isinstance(attention, DisentangledAttentionConfig):
        return own
    return own | {
        "position_buckets": attention.position_buckets or -1,
        "share_att_key": attention.share_att_key,
        "norm_rel_ebd": attention.norm_rel_ebd,
    }


DEBERTA_V2 = Family(
    model_type="deberta-v2",
    prefix="deberta.",
    table=TABLE
    + Table(
        rules=(
            *(module(f"{SELF}.{part}_proj", f"{ATTENTION}.{part}") for part in ("query", "key", "value")),
            *(module(f"{SELF}.pos_{part}_proj", f"{ATTENTION}.position_{part}") for part in ("query", "key")),
            module("deberta.encoder.LayerNorm", f"{RELATIVE}.norm"),
        )
    ),
    architectures=architectures("DebertaV2"),
    defaults={
        **DEFAULTS,
        "vocab_size": 128100,
        "hidden_size": 1536,
        "num_hidden_layers": 24,
        "num_attention_heads": 24,
        "intermediate_size": 6144,
        "position_buckets": -1,
        "share_att_key": False,
        "norm_rel_ebd": "none",
    },
    names=NAMES,
    read=_read,
    write=_write,
    fixed={"conv_kernel_size": (None, 0)},
)
