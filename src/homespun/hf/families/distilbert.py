"""DistilBERT (Sanh et al. 2019): BERT without segments and pooler.

``sinusoidal_pos_embds`` is an initialisation of the position table, which is in the files: positions are learned here.
"""

from homespun.hf import builders
from homespun.hf.builders import attention_rules, feedforward_rules, norm_rules
from homespun.hf.engine import Table
from homespun.hf.family import Family, activation
from homespun.hf.labels import classification

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
