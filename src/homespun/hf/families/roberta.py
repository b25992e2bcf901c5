"""RoBERTa (Liu et al. 2019): BERT whose positions are counted from the padding id + 1."""

from __future__ import annotations

from homespun.config import Tree
from homespun.hf.convert import Copy, Drop, Rule, Table
from homespun.hf.families.bert import DEFAULTS, encoder_table, no_pooler
from homespun.hf.family import Architecture, Family, headless
from homespun.hf.labels import classification

_POOLER = Drop(r"roberta\.pooler\.dense\.(weight|bias)", "a pooler, which this head does not use")


def _offset(pad_token_id: int) -> int:
    # position ids are a running count of the tokens that are not padding, plus the padding id
    return pad_token_id + 1


def _classification(settings: Tree) -> Tree:
    head = classification("pooled")(settings)
    return head | {"input_dropout": head["dropout"]}


ROBERTA = Family(
    model_type="roberta",
    prefix="roberta.",
    table=encoder_table("roberta", offset=_offset),
    architectures=(
        Architecture(
            "RobertaModel",
            kind=None,
            table=Table(drops=(_POOLER, Drop(r"(?!roberta\.).*", "of a head, and the model is opened without"))),
            head=headless,
            pipeline="feature-extraction",
            notes=no_pooler,
        ),
        Architecture(
            "RobertaForMaskedLM",
            kind="masked_lm",
            table=Table(
                rules=(
                    Rule("lm_head.dense.{p}", "head.transform.{p}"),
                    Rule("lm_head.layer_norm.{p}", "head.norm.{p}"),
                    Rule("lm_head.bias", "head.bias"),
                ),
                copies=(
                    Copy("lm_head.decoder.weight", of="roberta.embeddings.word_embeddings.weight"),
                    Copy("lm_head.decoder.bias", of="lm_head.bias"),
                ),
                drops=(_POOLER,),
            ),
            head=lambda settings: {"kind": "masked_lm"},
            pipeline="fill-mask",
        ),
        Architecture(
            "RobertaForSequenceClassification",
            kind="pooled",
            table=Table(
                rules=(
                    Rule("classifier.dense.{p}", "head.dense.{p}"),
                    Rule("classifier.out_proj.{p}", "head.classifier.{p}"),
                ),
                drops=(_POOLER,),
            ),
            head=_classification,
            pipeline="text-classification",
        ),
    ),
    defaults=DEFAULTS | {"vocab_size": 50265, "pad_token_id": 1},
    offset=_offset,
)
