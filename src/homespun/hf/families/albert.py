"""ALBERT (Lan et al. 2020): BERT whose layers share their weights, over embeddings of a width of their own.

The embeddings pass there through a matrix even where they are as wide as the layers, and here only where they are not.
Of such models those are opened whose matrix changes nothing, and such a matrix is written. Dropout follows the
attention alone there, and the feed-forward too here.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch import Tensor

from homespun.config import Tree
from homespun.hf.engine import Copy, DefaultTensor, Drop, Rule, Table
from homespun.hf.families.bert import (
    DEFAULTS,
    drop_pooler,
    learned_positions,
    masked_lm,
    pooler,
    pooler_notes,
    question_answering,
    token_classification,
    zero_segments,
)
from homespun.hf.family import Architecture, Family, headless
from homespun.hf.labels import classification
from homespun.models.encoder import EncoderConfig

_LAYER, _OWN = "albert.encoder.albert_layer_groups.{i}.albert_layers.0", "backbone.layers.{i}"
_PROJECTION = "albert.encoder.embedding_hidden_mapping_in"
_POOLER = Table(drops=(drop_pooler("albert"),))


def _in_group(backbone: EncoderConfig) -> int:
    return backbone.num_hidden_layers // backbone.own_layers


def _layer(theirs: str, ours: str) -> Rule:
    return Rule(f"{_LAYER}.{theirs}.{{p}}", f"{_OWN}.{ours}.{{p}}", stride=_in_group)


def _narrow(backbone: EncoderConfig) -> bool:
    return backbone.embedding_size not in (0, backbone.hidden_size)


def _identity(dimensions: int, backbone: EncoderConfig) -> Tensor:
    """The matrix, or the bias, by which nothing is changed."""
    size = backbone.hidden_size
    return torch.eye(size) if dimensions == 2 else torch.zeros(size)


def _is_identity(tensor: Tensor, backbone: EncoderConfig) -> bool:
    return torch.equal(tensor, _identity(tensor.dim(), backbone).to(tensor.dtype))


def _projection(part: str, dimensions: int) -> DefaultTensor:
    return DefaultTensor(
        f"{_PROJECTION}.{part}",
        lambda backbone: None if _narrow(backbone) else _identity(dimensions, backbone),
    )


def _labels(kind: str) -> Callable[[Tree], Tree]:
    return lambda settings: classification(kind)(settings | {"classifier_dropout": settings["classifier_dropout_prob"]})


def _masked_lm(name: str) -> Architecture:
    return Architecture(
        name,
        kind="masked_lm",
        table=Table(
            rules=(
                Rule("predictions.dense.{p}", "head.transform.{p}"),
                Rule("predictions.LayerNorm.{p}", "head.norm.{p}"),
                Rule("predictions.bias", "head.bias"),
            ),
            copies=(
                Copy("predictions.decoder.weight", of="albert.embeddings.word_embeddings.weight"),
                Copy("predictions.decoder.bias", of="predictions.bias"),
            ),
            drops=(
                drop_pooler("albert"),
                Drop(r"sop_classifier\..*", "the head of the order of sentences, which is for pretraining"),
            ),
        ),
        head=masked_lm,
        pipeline="fill-mask",
    )


ALBERT = Family(
    model_type="albert",
    prefix="albert.",
    table=Table(
        rules=(
            Rule("albert.embeddings.word_embeddings.weight", "backbone.embeddings.words.weight"),
            learned_positions("albert.embeddings.position_embeddings.weight"),
            Rule("albert.embeddings.token_type_embeddings.weight", "backbone.embeddings.segments.weight"),
            Rule("albert.embeddings.LayerNorm.{p}", "backbone.embeddings.norm.{p}"),
            Rule(f"{_PROJECTION}.{{p}}", "backbone.projection.{p}", when=_narrow),
            _layer("attention.query", "attention.sublayer.query"),
            _layer("attention.key", "attention.sublayer.key"),
            _layer("attention.value", "attention.sublayer.value"),
            _layer("attention.dense", "attention.sublayer.output"),
            _layer("attention.LayerNorm", "attention.norm"),
            _layer("ffn", "feedforward.sublayer.inner"),
            _layer("ffn_output", "feedforward.sublayer.outer"),
            _layer("full_layer_layer_norm", "feedforward.norm"),
        ),
        drops=(
            Drop(r"albert\.embeddings\.(position|token_type)_ids", "a constant, not a weight"),
            Drop(rf"{re.escape(_PROJECTION)}\.(weight|bias)", "it changes nothing", only=_is_identity),
        ),
        default_tensors=(
            DefaultTensor("albert.embeddings.token_type_embeddings.weight", zero_segments),
            _projection("weight", 2),
            _projection("bias", 1),
        ),
    ),
    architectures=(
        headless("AlbertModel", "albert.", drop_pooler("albert"), notes=pooler_notes),
        pooler("AlbertModel", "albert.pooler"),
        _masked_lm("AlbertForMaskedLM"),
        _masked_lm("AlbertForPreTraining"),
        Architecture(
            "AlbertForSequenceClassification",
            kind="pooled",
            table=Table(
                rules=(
                    Rule("albert.pooler.{p}", "head.dense.{p}"),
                    Rule("classifier.{p}", "head.classifier.{p}"),
                )
            ),
            head=_labels("pooled"),
            pipeline="text-classification",
        ),
        token_classification("AlbertForTokenClassification", _POOLER, head=_labels("token_classification")),
        question_answering("AlbertForQuestionAnswering", _POOLER),
    ),
    defaults={"embedding_size": 128, "num_hidden_groups": 1, "inner_group_num": 1, "classifier_dropout_prob": 0.1}
    | DEFAULTS
    | {
        "vocab_size": 30000,
        "hidden_size": 4096,
        "num_attention_heads": 64,
        "intermediate_size": 16384,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    },
    names={"classifier_dropout": "classifier_dropout_prob"},
    write=lambda backbone: {"num_hidden_groups": backbone.own_layers},
    fixed={"inner_group_num": (None, 1)},
)
