"""ALBERT (Lan et al. 2020): BERT with shared layers and factorised embeddings.

transformers projects the embeddings even if they are as wide as the layers; this projection must be the identity. It
applies dropout after the attention, homespun also after the feed-forward.
"""

from __future__ import annotations

import re
from dataclasses import replace

import torch
from torch import Tensor

from homespun.hf import builders
from homespun.hf.builders import BERT_DEFAULTS, attention_rules, feedforward_rules, module, norm_rules
from homespun.hf.engine import DefaultTensor, Drop, Table
from homespun.hf.family import Family, classification
from homespun.models.encoder import EncoderConfig

_LAYER = "albert.encoder.albert_layer_groups.{i}.albert_layers.0"
_PROJECTION = "albert.encoder.embedding_hidden_mapping_in"
_DROPOUT = "classifier_dropout_prob"
_MASKED_LM = builders.masked_lm_table(
    "albert.embeddings.word_embeddings",
    "predictions.dense",
    "predictions.LayerNorm",
    "predictions.decoder",
    bias="predictions.bias",
) + Table(drops=(Drop(r"sop_classifier\..*", "the head of sentence order prediction, for pretraining"),))


def _narrow(backbone: EncoderConfig) -> bool:
    return backbone.embedding_size not in (0, backbone.hidden_size)


def _identity(dimensions: int, backbone: EncoderConfig) -> Tensor:
    """Weight or bias of an identity projection."""
    size = backbone.hidden_size
    return torch.eye(size) if dimensions == 2 else torch.zeros(size)


def _is_identity(tensor: Tensor, backbone: EncoderConfig) -> bool:
    return torch.equal(tensor, _identity(tensor.dim(), backbone).to(tensor.dtype))


def _projection(part: str, dimensions: int) -> DefaultTensor:
    return DefaultTensor(
        f"{_PROJECTION}.{part}", lambda backbone: None if _narrow(backbone) else _identity(dimensions, backbone)
    )


_LAYERS = (
    *attention_rules(_LAYER, "attention.query", "attention.key", "attention.value", "attention.dense"),
    *feedforward_rules(_LAYER, "ffn", "ffn_output"),
    *norm_rules(_LAYER, "attention.LayerNorm", "full_layer_layer_norm"),
)

ALBERT = Family(
    model_type="albert",
    prefix="albert.",
    table=builders.embedding_table("albert")
    + builders.drop_pooler("albert")
    + Table(
        rules=(
            replace(module(_PROJECTION, "backbone.projection"), when=_narrow),
            *(
                replace(rule, stride=lambda backbone: backbone.num_hidden_layers // backbone.own_layers)
                for rule in _LAYERS
            ),
        ),
        drops=(Drop(rf"{re.escape(_PROJECTION)}\.(weight|bias)", "the identity", only=_is_identity),),
        default_tensors=(_projection("weight", 2), _projection("bias", 1)),
    ),
    architectures=(
        *builders.models_with_pooler("AlbertModel", "albert.pooler"),
        builders.language_model("AlbertForMaskedLM", _MASKED_LM),
        builders.language_model("AlbertForPreTraining", _MASKED_LM),
        builders.text_classification(
            "AlbertForSequenceClassification",
            dense="albert.pooler",
            classifier="classifier",
            head=classification("pooled", dropout=_DROPOUT),
        ),
        builders.token_classification("AlbertForTokenClassification", dropout=_DROPOUT),
        builders.question_answering("AlbertForQuestionAnswering"),
    ),
    defaults=BERT_DEFAULTS
    | {
        "embedding_size": 128,
        "num_hidden_groups": 1,
        "inner_group_num": 1,
        _DROPOUT: 0.1,
        "vocab_size": 30000,
        "hidden_size": 4096,
        "num_attention_heads": 64,
        "intermediate_size": 16384,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    },
    names={"classifier_dropout": _DROPOUT},
    write=lambda backbone: {"num_hidden_groups": backbone.own_layers},
    fixed={"inner_group_num": (None, 1)},
)
