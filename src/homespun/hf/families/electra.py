"""ELECTRA (Clark et al. 2020): discriminator, generator and classifier over embeddings of a width of their own."""

from __future__ import annotations

from homespun.hf.engine import Copy, Rule, Table
from homespun.hf.families.bert import (
    CAUSAL,
    CAUSAL_FIXED,
    CAUSAL_NAMES,
    DEFAULTS,
    encoder_table,
    gelu_masked_lm,
    language_model,
    question_answering,
    token_classification,
)
from homespun.hf.family import Architecture, Family, activation, headless
from homespun.hf.labels import classification

_GENERATOR = Table(
    rules=(
        Rule("generator_predictions.dense.{p}", "head.transform.{p}"),
        Rule("generator_predictions.LayerNorm.{p}", "head.norm.{p}"),
        Rule("generator_lm_head.bias", "head.bias"),
    ),
    copies=(Copy("generator_lm_head.weight", of="electra.embeddings.word_embeddings.weight"),),
)


ELECTRA = Family(
    model_type="electra",
    prefix="electra.",
    table=encoder_table("electra") + Table(rules=(Rule("electra.embeddings_project.{p}", "backbone.projection.{p}"),)),
    architectures=(
        headless("ElectraModel", "electra."),
        Architecture(
            "ElectraForPreTraining",
            kind="discriminator",
            table=Table(
                rules=(
                    Rule("discriminator_predictions.dense.{p}", "head.dense.{p}"),
                    Rule("discriminator_predictions.dense_prediction.{p}", "head.classifier.{p}"),
                )
            ),
            head=lambda settings: {"kind": "discriminator", "hidden_act": activation(settings["hidden_act"])},
        ),
        language_model("ElectraForMaskedLM", _GENERATOR, gelu_masked_lm),
        language_model("ElectraForCausalLM", _GENERATOR, gelu_masked_lm, causal=True),
        Architecture(
            "ElectraForSequenceClassification",
            kind="ffn",
            table=Table(
                rules=(
                    Rule("classifier.dense.{p}", "head.dense.{p}"),
                    Rule("classifier.out_proj.{p}", "head.classifier.{p}"),
                )
            ),
            head=classification("ffn"),
            pipeline="text-classification",
        ),
        token_classification("ElectraForTokenClassification"),
        question_answering("ElectraForQuestionAnswering"),
    ),
    defaults={"embedding_size": 128}
    | DEFAULTS
    | CAUSAL
    | {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024},
    names=CAUSAL_NAMES,
    fixed=CAUSAL_FIXED,
)
