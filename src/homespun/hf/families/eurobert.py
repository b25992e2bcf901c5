"""EuroBERT (Boizard et al. 2025): a Llama whose tokens see both sides.

Its masked tokens are predicted by the output embeddings alone, which is our head ``causal_lm``.
"""

from __future__ import annotations

from homespun.config import Tree
from homespun.errors import UserError
from homespun.hf.engine import Rule, Table
from homespun.hf.families.bert import token_classification
from homespun.hf.families.gpt2 import causal_lm
from homespun.hf.families.llama import (
    DEFAULTS,
    EMBEDDINGS,
    GATED,
    NAMES,
    NORMS,
    ROTATIONS,
    attention_rules,
    check_heads,
    dropout_note,
    read,
    write,
)
from homespun.hf.family import Architecture, Family, headless
from homespun.hf.labels import classification

_POOLING = {"bos": "first", "mean": "mean"}


def _without_bias(settings: Tree) -> None:
    if settings["mlp_bias"] is not False:
        raise UserError(
            "mlp_bias=True is not supported by the head for masked tokens, which then has a bias; only False"
        )


def _masked_lm(*, tied: bool) -> Architecture:
    return causal_lm(
        "EuroBertForMaskedLM",
        "model.embed_tokens",
        tied=tied,
        default=False,
        check=_without_bias,
        pipeline="fill-mask",
        notes=dropout_note,
    )


def _pooled(settings: Tree) -> Tree:
    pooling = settings["classifier_pooling"]
    if pooling not in _POOLING:
        raise UserError(f"classifier_pooling={pooling!r} is not supported, only {' and '.join(map(repr, _POOLING))}")
    return classification("pooled")(settings) | {"token": _POOLING[pooling], "hidden_act": "gelu"}


def _write_pooled(head: Tree) -> Tree:
    return {"classifier_pooling": {ours: theirs for theirs, ours in _POOLING.items()}.get(head["token"], "bos")}


def _read(settings: Tree, kind: str | None) -> Tree:
    check_heads(settings)
    return read(settings) | {"gated_feed_forward": True}


EUROBERT = Family(
    model_type="eurobert",
    prefix="model.",
    table=Table(rules=(EMBEDDINGS, *attention_rules(), *NORMS, *GATED), drops=(ROTATIONS,)),
    architectures=(
        headless("EuroBertModel", "model.", notes=dropout_note),
        _masked_lm(tied=True),
        _masked_lm(tied=False),
        Architecture(
            "EuroBertForSequenceClassification",
            kind="pooled",
            table=Table(
                rules=(Rule("dense.{p}", "head.dense.{p}"), Rule("classifier.{p}", "head.classifier.{p}")),
            ),
            head=_pooled,
            pipeline="text-classification",
            write=_write_pooled,
            notes=dropout_note,
        ),
        token_classification("EuroBertForTokenClassification", notes=dropout_note),
    ),
    defaults=DEFAULTS
    | {
        "vocab_size": 128256,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "pad_token_id": 128001,
        "mlp_bias": False,
        "classifier_pooling": "late",
    },
    names=NAMES,
    read=_read,
    write=write,
)
