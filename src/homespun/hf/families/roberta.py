"""RoBERTa (Liu et al. 2019): BERT whose positions are counted from the padding id + 1."""

from __future__ import annotations

from homespun.config import Tree
from homespun.hf.engine import Copy, Rule, Table
from homespun.hf.families.bert import (
    CAUSAL,
    CAUSAL_FIXED,
    CAUSAL_NAMES,
    DEFAULTS,
    drop_pooler,
    encoder_table,
    gelu_masked_lm,
    language_model,
    pooler,
    pooler_notes,
    question_answering,
    token_classification,
)
from homespun.hf.family import Architecture, Family, headless
from homespun.hf.labels import classification


def count_from_padding(pad_token_id: int) -> int:
    """Position ids there are a running count of the tokens that are not padding, plus the padding id."""
    return pad_token_id + 1


def masked_lm_table(name: str) -> Table:
    """RoBERTa's head, which Longformer has too, under the family's ``name``."""
    return Table(
        rules=(
            Rule("lm_head.dense.{p}", "head.transform.{p}"),
            Rule("lm_head.layer_norm.{p}", "head.norm.{p}"),
            Rule("lm_head.bias", "head.bias"),
        ),
        copies=(
            Copy("lm_head.decoder.weight", of=f"{name}.embeddings.word_embeddings.weight"),
            Copy("lm_head.decoder.bias", of="lm_head.bias"),
        ),
        drops=(drop_pooler(name),),
    )


def classification_table(name: str) -> Table:
    """A dense layer and a classifier, beside a pooler that they do not use."""
    return Table(
        rules=(
            Rule("classifier.dense.{p}", "head.dense.{p}"),
            Rule("classifier.out_proj.{p}", "head.classifier.{p}"),
        ),
        drops=(drop_pooler(name),),
    )


def pooled_classification(settings: Tree) -> Tree:
    """Dropout before the dense layer as after it."""
    head = classification("pooled")(settings)
    return head | {"input_dropout": head["dropout"]}


ROBERTA = Family(
    model_type="roberta",
    prefix="roberta.",
    table=encoder_table("roberta", offset=count_from_padding),
    architectures=(
        headless("RobertaModel", "roberta.", drop_pooler("roberta"), notes=pooler_notes),
        pooler("RobertaModel", "roberta.pooler.dense"),
        language_model("RobertaForMaskedLM", masked_lm_table("roberta"), gelu_masked_lm),
        language_model("RobertaForCausalLM", masked_lm_table("roberta"), gelu_masked_lm, causal=True),
        Architecture(
            "RobertaForSequenceClassification",
            kind="pooled",
            table=classification_table("roberta"),
            head=pooled_classification,
            pipeline="text-classification",
        ),
        token_classification("RobertaForTokenClassification", Table(drops=(drop_pooler("roberta"),))),
        question_answering("RobertaForQuestionAnswering", Table(drops=(drop_pooler("roberta"),))),
    ),
    defaults=DEFAULTS | CAUSAL | {"vocab_size": 50265, "pad_token_id": 1},
    names=CAUSAL_NAMES,
    fixed=CAUSAL_FIXED,
    offset=count_from_padding,
)
