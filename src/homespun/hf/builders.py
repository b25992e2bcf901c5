"""Rules and classes that several families share: a family gives the names in its files.

Modules are named without ``.weight`` and ``.bias``, layers with ``{i}`` for their number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from homespun.attention import AlternatingAttentionConfig, AttentionConfig
from homespun.config import Tree
from homespun.errors import UserError
from homespun.hf.engine import Change, Copy, DefaultTensor, Drop, Rule, Table, unchanged
from homespun.hf.family import Architecture, Defaults, Fixed, Notes, activation, no_notes
from homespun.hf.labels import classification
from homespun.models.encoder import EncoderConfig

LAYER = "backbone.layers.{i}"
Head = Callable[[Tree], Tree]

# BertConfig
BERT_DEFAULTS: Defaults = {
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
# families of causal and bidirectional models
CAUSAL: Defaults = {"is_decoder": False}
CAUSAL_NAMES = {"causal": "is_decoder"}
CAUSAL_FIXED: Fixed = {"is_decoder": (None, True, False)}

_CONSTANT = "a constant, not a weight"
NO_POOLER = "transformers adds a pooler of random weights (pooler_output); last_hidden_state is this model's"


def module(theirs: str, ours: str, to_ours: Change = unchanged, to_theirs: Change = unchanged) -> Rule:
    """Rule for the weight and the bias of a module."""
    return Rule(f"{theirs}.{{p}}", f"{ours}.{{p}}", to_ours, to_theirs)


def attention_rules(
    theirs: str,
    query: str,
    key: str,
    value: str,
    output: str,
    *,
    ours: str = "attention",
    rotated: Change = unchanged,
    norm: str | None = None,
) -> tuple[Rule, ...]:
    """Projections of a layer's attention ``ours``, and its ``norm``.

    ``rotated``, its own inverse, changes queries and keys.
    """
    own = f"{LAYER}.{ours}.sublayer"
    return (
        module(f"{theirs}.{query}", f"{own}.query", rotated, rotated),
        module(f"{theirs}.{key}", f"{own}.key", rotated, rotated),
        module(f"{theirs}.{value}", f"{own}.value"),
        module(f"{theirs}.{output}", f"{own}.output"),
        *((module(norm, f"{LAYER}.{ours}.norm"),) if norm else ()),
    )


def feedforward_rules(theirs: str, inner: str, outer: str, gate: str | None = None) -> tuple[Rule, ...]:
    """Linear layers of a feed-forward; with ``gate``, the gated one."""
    own = f"{LAYER}.feedforward.sublayer"
    rules = (module(f"{theirs}.{inner}", f"{own}.inner"), module(f"{theirs}.{outer}", f"{own}.outer"))
    return rules if gate is None else (*rules, module(f"{theirs}.{gate}", f"{own}.gate"))


def norm_rules(layer: str, attention: str, feedforward: str) -> tuple[Rule, ...]:
    """Norms of the two sublayers."""
    return (
        module(f"{layer}.{attention}", f"{LAYER}.attention.norm"),
        module(f"{layer}.{feedforward}", f"{LAYER}.feedforward.norm"),
    )


def no_offset(pad_token_id: int) -> int:
    """Position 0 is the first row of the table."""
    return 0


def after_padding(pad_token_id: int) -> int:
    """Position 0 is the row after that of the padding id (RoBERTa, ProphetNet)."""
    return pad_token_id + 1


def learned_positions(theirs: str, *, offset: Callable[[int], int] = no_offset) -> Rule:
    """Position table; ``offset`` rows stand before position 0 in their files, and any number in ours."""

    def shift(tensor: Tensor, backbone: EncoderConfig) -> Tensor:
        ours, theirs = backbone.positions.rows_before, offset(backbone.pad_token_id)
        if ours == theirs:
            return tensor
        unused = tensor.new_zeros(theirs, tensor.shape[1])  # never read
        return torch.cat([unused, tensor[ours:]])

    return Rule(theirs, "backbone.embeddings.positions.embedding.weight", to_theirs=shift)


def zero_segments(backbone: EncoderConfig) -> Tensor | None:
    """Embedding of one segment, zero, for a model without segments."""
    return None if backbone.type_vocab_size else torch.zeros(1, backbone.embedding_size or backbone.hidden_size)


def embedding_table(name: str, *, offset: Callable[[int], int] = no_offset, segments: bool = True) -> Table:
    """BERT's embeddings in the model ``name``."""
    theirs, ours = f"{name}.embeddings", "backbone.embeddings"
    own_segments = Rule(f"{theirs}.token_type_embeddings.weight", f"{ours}.segments.weight")
    return Table(
        rules=(
            Rule(f"{theirs}.word_embeddings.weight", f"{ours}.words.weight"),
            learned_positions(f"{theirs}.position_embeddings.weight", offset=offset),
            *[own_segments] * segments,
            module(f"{theirs}.LayerNorm", f"{ours}.norm"),
        ),
        drops=(Drop(rf"{name}\.embeddings\.(position|token_type)_ids", _CONSTANT),),
        default_tensors=(DefaultTensor(f"{theirs}.token_type_embeddings.weight", zero_segments),) * segments,
    )


def encoder_table(name: str, *, offset: Callable[[int], int] = no_offset) -> Table:
    """BERT's encoder in the model ``name``."""
    layer = f"{name}.encoder.layer.{{i}}"
    return embedding_table(name, offset=offset) + Table(
        rules=(
            *attention_rules(f"{layer}.attention", "self.query", "self.key", "self.value", "output.dense"),
            *feedforward_rules(layer, "intermediate.dense", "output.dense"),
            *norm_rules(layer, "attention.output.LayerNorm", "output.LayerNorm"),
        )
    )


def drop_pooler(name: str) -> Table:
    """Drop of a pooler that the opened class does not use."""
    return Table(drops=(Drop(rf"{name}\.pooler\.(dense\.)?(weight|bias)", "a pooler, which this head does not use"),))


def annotated(
    *architectures: Architecture, notes: Notes = no_notes, unsupported_fields: frozenset[str] = frozenset()
) -> tuple[Architecture, ...]:
    """The classes with further ``notes`` and ``unsupported_fields``."""

    def with_notes(own: Notes) -> Notes:
        return lambda backbone: (*own(backbone), *notes(backbone))

    return tuple(
        replace(a, notes=with_notes(a.notes), unsupported_fields=a.unsupported_fields | unsupported_fields)
        for a in architectures
    )


def headless(name: str, prefix: str, *drops: Drop, notes: Notes = no_notes) -> Architecture:
    """The class without a head; tensors outside ``prefix`` and those of ``drops`` are dropped."""
    heads = Drop(rf"(?!{re.escape(prefix)}).*", "of a head, and the model is opened without")
    return Architecture(
        name,
        kind=None,
        table=Table(drops=(*drops, heads)),
        head=lambda settings: None,
        pipeline="feature-extraction",
        notes=notes,
    )


def models_with_pooler(name: str, dense: str) -> tuple[Architecture, ...]:
    """The class without a head, opened without its pooler (the default) and with it; ``dense`` is its linear layer."""
    prefix = f"{dense.partition('.')[0]}."
    pooler = replace(headless(name, prefix), kind="pooler", head=lambda settings: {"kind": "pooler"}, notes=no_notes)
    rules = Table(rules=(module(dense, "head.dense"),))
    return headless(name, prefix, notes=lambda backbone: (NO_POOLER,)), replace(pooler, table=rules + pooler.table)


def masked_lm(settings: Tree) -> Tree:
    """Head with the activation of the layers."""
    return {"kind": "masked_lm", "hidden_act": activation(settings["hidden_act"])}


def gelu_masked_lm(settings: Tree) -> Tree:
    """Head with GELU."""
    return {"kind": "masked_lm"}


def masked_lm_table(words: str, transform: str, norm: str, decoder: str, *, bias: str | None = None) -> Table:
    """Dense layer, norm, and a decoder tied to ``words``; ``bias``: the decoder's, if it is stored elsewhere too."""
    bias, copy = bias or f"{decoder}.bias", f"{decoder}.bias"
    return Table(
        rules=(module(transform, "head.transform"), module(norm, "head.norm"), Rule(bias, "head.bias")),
        copies=(Copy(f"{decoder}.weight", of=f"{words}.weight"), *[Copy(copy, of=bias)] * (copy != bias)),
    )


def require_is_decoder(name: str, head: Head, *, causal: bool) -> Head:
    """``head`` of a class for causal models only, or for bidirectional ones."""

    def read(settings: Tree) -> Tree:
        if settings["is_decoder"] != causal:
            raise UserError(f"{name} has is_decoder={causal}, and not {settings['is_decoder']!r}")
        return head(settings)

    return read


def language_model(name: str, table: Table, head: Head = masked_lm, *, causal: bool | None = None) -> Architecture:
    """Masked language model; if ``causal`` is given, config.json must agree, and a causal one predicts next tokens."""
    return Architecture(
        name,
        kind="masked_lm",
        table=table,
        head=head if causal is None else require_is_decoder(name, head, causal=causal),
        pipeline="text-generation" if causal else "fill-mask",
    )


def causal_lm(
    name: str,
    words: str,
    *,
    tied_by_default: bool,
    check: Callable[[Tree], None] = lambda settings: None,
    settings: Tree | None = None,
    pipeline: str = "text-generation",
) -> tuple[Architecture, ...]:
    """Output embeddings alone: the class with tied and with untied ones.

    Args:
        name: the class.
        words: its word embeddings.
        tied_by_default: without ``tie_word_embeddings`` in config.json.
        check: raises `UserError` for a head that is not supported.
        settings: further settings of config.json to write.
        pipeline: as in `Architecture`.
    """

    def build(tied: bool) -> Architecture:
        def head(tree: Tree) -> Tree:
            check(tree)
            return {"kind": "causal_lm", "tie_word_embeddings": tied}

        def fits(tree: Tree) -> bool:
            given = tree.get("tie_word_embeddings")
            return (tied_by_default if given is None else given is not False) == tied

        output = "lm_head.weight"
        copy, rule = Copy(output, of=f"{words}.weight"), Rule(output, "head.words.weight")
        return Architecture(
            name,
            kind="causal_lm",
            table=Table(copies=(copy,)) if tied else Table(rules=(rule,)),
            head=head,
            pipeline=pipeline,
            fits=fits,
            write=lambda head: {"tie_word_embeddings": tied} | (settings or {}),
        )

    return build(True), build(False)


def text_classification(
    name: str,
    *tables: Table,
    kind: str = "pooled",
    dense: str = "classifier.dense",
    classifier: str = "classifier.out_proj",
    head: Head | None = None,
    write: Head = lambda head: {},
) -> Architecture:
    """Dense layer and classifier over one vector a text; ``tables`` hold further tensors of the class."""
    own = Table(rules=(module(dense, "head.dense"), module(classifier, "head.classifier")))
    return Architecture(
        name,
        kind=kind,
        table=sum(tables, own),
        head=head or classification(kind),
        pipeline="text-classification",
        write=write,
    )


@dataclass(frozen=True)
class Pooling:
    """Setting ``classifier_pooling``: the vector that is classified; ``tokens`` has our names by theirs."""

    tokens: Mapping[str, str]

    def read(self, settings: Tree) -> Tree:
        """Settings of a head of kind ``pooled``.

        Raises:
            UserError: an unknown pooling.
        """
        pooling = settings["classifier_pooling"]
        if pooling not in self.tokens:
            names = " and ".join(map(repr, self.tokens))
            raise UserError(f"classifier_pooling={pooling!r} is not supported, only {names}")
        return classification("pooled", token=self.tokens[pooling])(settings)

    def write(self, head: Tree) -> Tree:
        """The setting of a head; the first one for other tokens."""
        names = {ours: theirs for theirs, ours in self.tokens.items()}
        return {"classifier_pooling": names.get(head["token"], next(iter(self.tokens)))}


def input_dropout_classification(settings: Tree) -> Tree:
    """Head with the same dropout before the dense layer and after it."""
    head = classification("pooled")(settings)
    return head | {"input_dropout": head["dropout"]}


def last_token_classification(name: str) -> Architecture:
    """Linear layer over the last token, without dropout in transformers."""

    def head(settings: Tree) -> Tree:
        return classification("last")(settings | {"classifier_dropout": settings.get("classifier_dropout") or 0.0})

    return Architecture(
        name,
        kind="last",
        table=Table(rules=(Rule("score.weight", "head.classifier.weight"),)),
        head=head,
        pipeline="text-classification",
    )


def token_classification(name: str, *tables: Table, dropout: str = "classifier_dropout") -> Architecture:
    """Dropout and a linear layer over each token; ``tables`` hold further tensors of the class."""
    return Architecture(
        name,
        kind="token_classification",
        table=sum(tables, Table(rules=(module("classifier", "head.classifier"),))),
        head=classification("token_classification", dropout=dropout),
        pipeline="token-classification",
    )


def question_answering(name: str, *, dropout: float = 0.0) -> Architecture:
    """Linear layer over each token: start and end; ``dropout``: without ``qa_dropout`` in config.json."""
    return Architecture(
        name,
        kind="question_answering",
        table=Table(rules=(module("qa_outputs", "head.classifier"),)),
        head=lambda settings: {"kind": "question_answering", "dropout": settings.get("qa_dropout", dropout)},
        pipeline="question-answering",
        dropout="qa_dropout",
    )


def alternating_attention(layers: Sequence[Tree]) -> Tree:
    """Attention with the shortest cycle of those of the ``layers``."""
    cycle = next(
        layers[:size]
        for size in range(1, len(layers) + 1)
        if all(layer == layers[index % size] for index, layer in enumerate(layers))
    )
    return {"kind": "alternating", "cycle": [*cycle]} if cycle[1:] else cycle[0]


def layer_attentions(backbone: EncoderConfig) -> list[AttentionConfig]:
    """Attention of each layer."""
    attention = backbone.attention
    cycle = attention.cycle if isinstance(attention, AlternatingAttentionConfig) else [attention]
    return [cycle[layer % len(cycle)] for layer in range(backbone.num_hidden_layers)]


def pad_or_eos(settings: Tree) -> object:
    """Padding token; for models without one, the end of text."""
    if settings["pad_token_id"] is not None:
        return settings["pad_token_id"]
    end, size = settings.get("eos_token_id", 50256), settings["vocab_size"]
    return end if isinstance(end, int) and isinstance(size, int) and 0 <= end < size else 0
