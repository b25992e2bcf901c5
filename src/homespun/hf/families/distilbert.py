"""DistilBERT (Sanh et al. 2019): BERT without segments and pooler, its settings under names of their own.

``sinusoidal_pos_embds`` says only what the table of positions begins as. What it is lies in the file, so positions are
learned ones here, whatever it says.
"""

from __future__ import annotations

from homespun.config import Tree
from homespun.hf.engine import Copy, Drop, Rule, Table
from homespun.hf.families.bert import learned_positions, question_answering, token_classification
from homespun.hf.family import Architecture, Family, activation, headless
from homespun.hf.labels import classification

_LAYER, _OWN = "distilbert.transformer.layer.{i}", "backbone.layers.{i}"


def _read(settings: Tree, kind: str | None) -> Tree:
    return {"type_vocab_size": 0, "layer_norm_eps": 1e-12}


def _pooled(settings: Tree) -> Tree:
    head = classification("pooled")(settings | {"classifier_dropout": settings["seq_classif_dropout"]})
    return head | {"hidden_act": "relu"}


def _labels(settings: Tree) -> Tree:
    # the dropout of the layers here, and no setting of its own
    return classification("token_classification")(settings | {"classifier_dropout": settings["dropout"]})


DISTILBERT = Family(
    model_type="distilbert",
    prefix="distilbert.",
    table=Table(
        rules=(
            Rule("distilbert.embeddings.word_embeddings.weight", "backbone.embeddings.words.weight"),
            learned_positions("distilbert.embeddings.position_embeddings.weight"),
            Rule("distilbert.embeddings.LayerNorm.{p}", "backbone.embeddings.norm.{p}"),
            Rule(f"{_LAYER}.attention.q_lin.{{p}}", f"{_OWN}.attention.sublayer.query.{{p}}"),
            Rule(f"{_LAYER}.attention.k_lin.{{p}}", f"{_OWN}.attention.sublayer.key.{{p}}"),
            Rule(f"{_LAYER}.attention.v_lin.{{p}}", f"{_OWN}.attention.sublayer.value.{{p}}"),
            Rule(f"{_LAYER}.attention.out_lin.{{p}}", f"{_OWN}.attention.sublayer.output.{{p}}"),
            Rule(f"{_LAYER}.sa_layer_norm.{{p}}", f"{_OWN}.attention.norm.{{p}}"),
            Rule(f"{_LAYER}.ffn.lin1.{{p}}", f"{_OWN}.feedforward.sublayer.inner.{{p}}"),
            Rule(f"{_LAYER}.ffn.lin2.{{p}}", f"{_OWN}.feedforward.sublayer.outer.{{p}}"),
            Rule(f"{_LAYER}.output_layer_norm.{{p}}", f"{_OWN}.feedforward.norm.{{p}}"),
        ),
        drops=(Drop(r"distilbert\.embeddings\.position_ids", "a constant, not a weight"),),
    ),
    architectures=(
        headless("DistilBertModel", "distilbert."),
        Architecture(
            "DistilBertForMaskedLM",
            kind="masked_lm",
            table=Table(
                rules=(
                    Rule("vocab_transform.{p}", "head.transform.{p}"),
                    Rule("vocab_layer_norm.{p}", "head.norm.{p}"),
                    Rule("vocab_projector.bias", "head.bias"),
                ),
                copies=(Copy("vocab_projector.weight", of="distilbert.embeddings.word_embeddings.weight"),),
            ),
            head=lambda settings: {"kind": "masked_lm", "hidden_act": activation(settings["activation"])},
            pipeline="fill-mask",
        ),
        Architecture(
            "DistilBertForSequenceClassification",
            kind="pooled",
            table=Table(
                rules=(
                    Rule("pre_classifier.{p}", "head.dense.{p}"),
                    Rule("classifier.{p}", "head.classifier.{p}"),
                )
            ),
            head=_pooled,
            pipeline="text-classification",
        ),
        token_classification("DistilBertForTokenClassification", head=_labels),
        question_answering("DistilBertForQuestionAnswering", dropout=0.1),
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
    read=_read,
)
