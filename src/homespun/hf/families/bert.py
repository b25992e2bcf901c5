"""BERT (Devlin et al. 2019), and the encoder table that its relatives share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from homespun.config import Tree
from homespun.errors import UserError
from homespun.hf.engine import Copy, DefaultTensor, Drop, Rule, Table
from homespun.hf.family import Architecture, Family, activation, headless
from homespun.hf.labels import classification
from homespun.models.encoder import EncoderConfig
from homespun.models.positions import LearnedPositionsConfig


def learned_positions(theirs: str, *, offset: Callable[[int], int] = lambda pad_token_id: 0) -> Rule:
    """The table of positions, which begins there after ``offset`` rows and here after any number."""

    def shift(tensor: Tensor, backbone: EncoderConfig) -> Tensor:
        assert isinstance(backbone.positions, LearnedPositionsConfig)
        ours, theirs = backbone.positions.offset, offset(backbone.pad_token_id)
        if ours == theirs:
            return tensor
        unused = tensor.new_zeros(theirs, tensor.shape[1])  # rows before position 0: nothing reads them
        return torch.cat([unused, tensor[ours:]])

    return Rule(theirs, "backbone.embeddings.positions.embedding.weight", to_theirs=shift)


def encoder_table(name: str, *, offset: Callable[[int], int] = lambda pad_token_id: 0) -> Table:
    """The tensors of BERT's encoder, which many families have too, under the family's ``name``."""
    layer, own = f"{name}.encoder.layer.{{i}}", "backbone.layers.{i}"
    return Table(
        rules=(
            Rule(f"{name}.embeddings.word_embeddings.weight", "backbone.embeddings.words.weight"),
            learned_positions(f"{name}.embeddings.position_embeddings.weight", offset=offset),
            Rule(f"{name}.embeddings.token_type_embeddings.weight", "backbone.embeddings.segments.weight"),
            Rule(f"{name}.embeddings.LayerNorm.{{p}}", "backbone.embeddings.norm.{p}"),
            Rule(f"{layer}.attention.self.query.{{p}}", f"{own}.attention.sublayer.query.{{p}}"),
            Rule(f"{layer}.attention.self.key.{{p}}", f"{own}.attention.sublayer.key.{{p}}"),
            Rule(f"{layer}.attention.self.value.{{p}}", f"{own}.attention.sublayer.value.{{p}}"),
            Rule(f"{layer}.attention.output.dense.{{p}}", f"{own}.attention.sublayer.output.{{p}}"),
            Rule(f"{layer}.attention.output.LayerNorm.{{p}}", f"{own}.attention.norm.{{p}}"),
            Rule(f"{layer}.intermediate.dense.{{p}}", f"{own}.feedforward.sublayer.inner.{{p}}"),
            Rule(f"{layer}.output.dense.{{p}}", f"{own}.feedforward.sublayer.outer.{{p}}"),
            Rule(f"{layer}.output.LayerNorm.{{p}}", f"{own}.feedforward.norm.{{p}}"),
        ),
        drops=(Drop(rf"{name}\.embeddings\.(position|token_type)_ids", "a constant, not a weight"),),
        default_tensors=(DefaultTensor(f"{name}.embeddings.token_type_embeddings.weight", zero_segments),),
    )


def zero_segments(backbone: EncoderConfig) -> Tensor | None:
    """A table of one segment, of zeros, where ours has none: it is the same model."""
    if backbone.type_vocab_size:
        return None
    return torch.zeros(1, backbone.embedding_size or backbone.hidden_size)


# what transformers' BertConfig assumes
DEFAULTS = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "initializer_range": 0.02,
    "pad_token_id": 0,
}

# a family whose config.json says whether a token sees later ones
CAUSAL = {"is_decoder": False}
CAUSAL_NAMES = {"causal": "is_decoder"}
CAUSAL_FIXED = {"is_decoder": (None, True, False)}

_NO_POOLER = "transformers adds a pooler of random weights (pooler_output); last_hidden_state is this model's"


def pooler_notes(backbone: EncoderConfig) -> tuple[str, ...]:
    """What is to be known of a class that has a pooler of its own."""
    return (_NO_POOLER,)


def masked_lm(settings: Tree) -> Tree:
    """A head whose activation is that of the layers."""
    return {"kind": "masked_lm", "hidden_act": activation(settings["hidden_act"])}


def gelu_masked_lm(settings: Tree) -> Tree:
    """The same where its activation is GELU, whatever that of the layers."""
    return {"kind": "masked_lm"}


def require_is_decoder(name: str, head: Callable[[Tree], Tree], *, causal: bool) -> Callable[[Tree], Tree]:
    """The settings of a head that has one class over a causal model, and another over one that is not."""

    def read(settings: Tree) -> Tree:
        if settings["is_decoder"] != causal:
            raise UserError(f"{name} has is_decoder={causal}, and not {settings['is_decoder']!r}")
        return head(settings)

    return read


def language_model(
    name: str,
    table: Table,
    head: Callable[[Tree], Tree] = masked_lm,
    *,
    causal: bool = False,
    notes: Callable[[Any], tuple[str, ...]] = lambda backbone: (),
) -> Architecture:
    """The class that tells masked tokens, or under the same head the next one, where the layers are causal."""
    return Architecture(
        name,
        kind="masked_lm",
        table=table,
        head=require_is_decoder(name, head, causal=causal),
        pipeline="text-generation" if causal else "fill-mask",
        notes=notes,
    )


def drop_pooler(name: str) -> Drop:
    """The pooler of a model whose head does not use it."""
    return Drop(rf"{name}\.pooler\.(dense\.)?(weight|bias)", "a pooler, which this head does not use")


def pooler(
    name: str,
    dense: str,
    *,
    unsupported_fields: frozenset[str] = frozenset(),
    notes: Callable[[Any], tuple[str, ...]] = lambda backbone: (),
) -> Architecture:
    """The class without a head, opened with its pooler, whose dense layer is called ``dense``.

    It stands after the one of `headless`, which is taken where no kind of head is asked for.
    """
    prefix = dense.split(".")[0]
    heads = Drop(rf"(?!{prefix}\.).*", "of a head, and the model is opened without")
    return Architecture(
        name,
        kind="pooler",
        table=Table(rules=(Rule(f"{dense}.{{p}}", "head.dense.{p}"),), drops=(heads,)),
        head=lambda settings: {"kind": "pooler"},
        pipeline="feature-extraction",
        unsupported_fields=unsupported_fields,
        notes=notes,
    )


_labels = classification("token_classification")


def token_classification(
    name: str,
    *tables: Table,
    head: Callable[[Tree], Tree | None] = _labels,
    unsupported_fields: frozenset[str] = frozenset(),
    notes: Callable[[Any], tuple[str, ...]] = lambda backbone: (),
) -> Architecture:
    """Dropout and a linear layer over every token; ``tables`` say what else the class has."""
    return Architecture(
        name,
        kind="token_classification",
        table=sum(tables, Table(rules=(Rule("classifier.{p}", "head.classifier.{p}"),))),
        head=head,
        pipeline="token-classification",
        unsupported_fields=unsupported_fields,
        notes=notes,
    )


def question_answering(
    name: str,
    *tables: Table,
    dropout: float = 0.0,
    unsupported_fields: frozenset[str] = frozenset(),
    notes: Callable[[Any], tuple[str, ...]] = lambda backbone: (),
) -> Architecture:
    """A linear layer over every token, to start and end; ``tables`` say what else the class has.

    Dropout before it is what config.json has as ``qa_dropout``, or ``dropout``.
    """
    return Architecture(
        name,
        kind="question_answering",
        table=sum(tables, Table(rules=(Rule("qa_outputs.{p}", "head.classifier.{p}"),))),
        head=lambda settings: {"kind": "question_answering", "dropout": settings.get("qa_dropout", dropout)},
        pipeline="question-answering",
        unsupported_fields=unsupported_fields,
        notes=notes,
        dropout="qa_dropout",
    )


_NEXT_SENTENCE = Drop(r"cls\.seq_relationship\.(weight|bias)", "the next-sentence head, which is for pretraining")
MASKED_LM = Table(
    rules=(
        Rule("cls.predictions.transform.dense.{p}", "head.transform.{p}"),
        Rule("cls.predictions.transform.LayerNorm.{p}", "head.norm.{p}"),
        Rule("cls.predictions.bias", "head.bias"),
    ),
    copies=(
        Copy("cls.predictions.decoder.weight", of="bert.embeddings.word_embeddings.weight"),
        Copy("cls.predictions.decoder.bias", of="cls.predictions.bias"),
    ),
    drops=(drop_pooler("bert"), _NEXT_SENTENCE),
)


BERT = Family(
    model_type="bert",
    prefix="bert.",
    table=encoder_table("bert"),
    architectures=(
        headless("BertModel", "bert.", drop_pooler("bert"), notes=pooler_notes),
        pooler("BertModel", "bert.pooler.dense"),
        language_model("BertForMaskedLM", MASKED_LM),
        language_model("BertForPreTraining", MASKED_LM),
        language_model("BertLMHeadModel", MASKED_LM, causal=True),
        Architecture(
            "BertForSequenceClassification",
            kind="pooled",
            table=Table(
                rules=(
                    Rule("bert.pooler.dense.{p}", "head.dense.{p}"),
                    Rule("classifier.{p}", "head.classifier.{p}"),
                )
            ),
            head=classification("pooled"),
            pipeline="text-classification",
        ),
        token_classification("BertForTokenClassification", Table(drops=(drop_pooler("bert"),))),
        question_answering("BertForQuestionAnswering", Table(drops=(drop_pooler("bert"),))),
    ),
    defaults=DEFAULTS | CAUSAL,
    names=CAUSAL_NAMES,
    fixed=CAUSAL_FIXED,
)
