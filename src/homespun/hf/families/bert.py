"""BERT (Devlin et al. 2019), RoBERTa (Liu et al. 2019), ELECTRA (Clark et al. 2020), DistilBERT (Sanh et al. 2019).

RoBERTa counts positions from the padding id + 1; ELECTRA has factorised embeddings; DistilBERT has no segments and no
pooler. Its ``sinusoidal_pos_embds`` only initialises the position table: positions are learned.
"""

from homespun.hf import builders
from homespun.hf.builders import (
    BERT_DEFAULTS,
    CAUSAL,
    CAUSAL_FIXED,
    CAUSAL_NAMES,
    attention_rules,
    feedforward_rules,
    gelu_masked_lm,
    module,
    norm_rules,
)
from homespun.hf.engine import Drop, Table
from homespun.hf.family import Architecture, Family, activation, classification

_NEXT_SENTENCE = Drop(r"cls\.seq_relationship\.(weight|bias)", "the head of next sentence prediction, for pretraining")
_HEAD = "cls.predictions"


def masked_lm_table(words: str) -> Table:
    """Head tied to the word embeddings ``words``."""
    return builders.masked_lm_table(
        words, f"{_HEAD}.transform.dense", f"{_HEAD}.transform.LayerNorm", f"{_HEAD}.decoder", bias=f"{_HEAD}.bias"
    )


MASKED_LM = masked_lm_table("bert.embeddings.word_embeddings") + Table(drops=(_NEXT_SENTENCE,))

BERT = Family(
    model_type="bert",
    prefix="bert.",
    table=builders.encoder_table("bert") + builders.drop_pooler("bert"),
    architectures=(
        *builders.models_with_pooler("BertModel", "bert.pooler.dense"),
        builders.language_model("BertForMaskedLM", MASKED_LM, causal=False),
        builders.language_model("BertForPreTraining", MASKED_LM, causal=False),
        builders.language_model("BertLMHeadModel", MASKED_LM, causal=True),
        builders.text_classification(
            "BertForSequenceClassification", dense="bert.pooler.dense", classifier="classifier"
        ),
        builders.token_classification("BertForTokenClassification"),
        builders.question_answering("BertForQuestionAnswering"),
    ),
    defaults=BERT_DEFAULTS | CAUSAL,
    names=CAUSAL_NAMES,
    fixed=CAUSAL_FIXED,
)


def roberta_masked_lm_table(name: str) -> Table:
    """Head of the model ``name``."""
    words = f"{name}.embeddings.word_embeddings"
    return builders.masked_lm_table(
        words, "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", bias="lm_head.bias"
    )


def roberta_table(name: str) -> Table:
    """Backbone of the model ``name``."""
    return builders.encoder_table(name, offset=builders.after_padding) + builders.drop_pooler(name)


ROBERTA = Family(
    model_type="roberta",
    prefix="roberta.",
    table=roberta_table("roberta"),
    architectures=(
        *builders.models_with_pooler("RobertaModel", "roberta.pooler.dense"),
        builders.language_model("RobertaForMaskedLM", roberta_masked_lm_table("roberta"), gelu_masked_lm, causal=False),
        builders.language_model("RobertaForCausalLM", roberta_masked_lm_table("roberta"), gelu_masked_lm, causal=True),
        builders.text_classification("RobertaForSequenceClassification", head=builders.input_dropout_classification),
        builders.token_classification("RobertaForTokenClassification"),
        builders.question_answering("RobertaForQuestionAnswering"),
    ),
    defaults=BERT_DEFAULTS | CAUSAL | {"vocab_size": 50265, "pad_token_id": 1},
    names=CAUSAL_NAMES,
    fixed=CAUSAL_FIXED,
    offset=builders.after_padding,
)


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


_LAYER = "distilbert.transformer.layer.{i}"
_MASKED_LM = builders.masked_lm_table(
    "distilbert.embeddings.word_embeddings", "vocab_transform", "vocab_layer_norm", "vocab_projector"
)

DISTILBERT = Family(
    model_type="distilbert",
    prefix="distilbert.",
    table=builders.embedding_table("distilbert", segments=False)
    + Table(
        rules=(
            *attention_rules(f"{_LAYER}.attention", "q_lin", "k_lin", "v_lin", "out_lin"),
            *feedforward_rules(f"{_LAYER}.ffn", "lin1", "lin2"),
            *norm_rules(_LAYER, "sa_layer_norm", "output_layer_norm"),
        )
    ),
    architectures=(
        builders.headless("DistilBertModel", "distilbert."),
        builders.language_model(
            "DistilBertForMaskedLM",
            _MASKED_LM,
            lambda settings: {"kind": "masked_lm", "hidden_act": activation(settings["activation"])},
        ),
        builders.text_classification(
            "DistilBertForSequenceClassification",
            dense="pre_classifier",
            classifier="classifier",
            head=classification("pooled", dropout="seq_classif_dropout", hidden_act="relu"),
        ),
        builders.token_classification("DistilBertForTokenClassification", dropout="dropout"),
        builders.question_answering("DistilBertForQuestionAnswering", dropout=0.1),
    ),
    defaults={
        "vocab_size": 30522,
        "max_position_embeddings": 512,
        "sinusoidal_pos_embds": False,
        "n_layers": 6,
        "n_heads": 12,
        "dim": 768,
        "hidden_dim": 3072,
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "activation": "gelu",
        "initializer_range": 0.02,
        "seq_classif_dropout": 0.2,
        "pad_token_id": 0,
    },
    names={
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "classifier_dropout": "seq_classif_dropout",
    },
    read=lambda settings, kind: {"type_vocab_size": 0, "layer_norm_eps": 1e-12},
)
