"""ELECTRA (Clark et al. 2020): discriminator, generator and classifier over factorised embeddings."""

from homespun.hf import builders
from homespun.hf.builders import BERT_DEFAULTS, CAUSAL, CAUSAL_FIXED, CAUSAL_NAMES, gelu_masked_lm, module
from homespun.hf.engine import Table
from homespun.hf.family import Architecture, Family, activation

_GENERATOR = builders.masked_lm_table(
    "electra.embeddings.word_embeddings",
    "generator_predictions.dense",
    "generator_predictions.LayerNorm",
    "generator_lm_head",
)
_DISCRIMINATOR = (
    module("discriminator_predictions.dense", "head.dense"),
    module("discriminator_predictions.dense_prediction", "head.classifier"),
)

ELECTRA = Family(
    model_type="electra",
    prefix="electra.",
    table=builders.encoder_table("electra")
    + Table(rules=(module("electra.embeddings_project", "backbone.projection"),)),
    architectures=(
        builders.headless("ElectraModel", "electra."),
        Architecture(
            "ElectraForPreTraining",
            kind="discriminator",
            table=Table(rules=_DISCRIMINATOR),
            head=lambda settings: {"kind": "discriminator", "hidden_act": activation(settings["hidden_act"])},
        ),
        builders.language_model("ElectraForMaskedLM", _GENERATOR, gelu_masked_lm, causal=False),
        builders.language_model("ElectraForCausalLM", _GENERATOR, gelu_masked_lm, causal=True),
        builders.text_classification("ElectraForSequenceClassification", kind="ffn"),
        builders.token_classification("ElectraForTokenClassification"),
        builders.question_answering("ElectraForQuestionAnswering"),
    ),
    defaults=BERT_DEFAULTS
    | CAUSAL
    | {"embedding_size": 128, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024},
    names=CAUSAL_NAMES,
    fixed=CAUSAL_FIXED,
)
