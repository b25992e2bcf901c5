"""Rules and classes shared by several families.

Module names omit ``.weight`` and ``.bias``; ``{i}`` stands for the number of a layer.
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
from homespun.hf.family import Architecture, Defaults, Fixed, Notes, activation, classification, no_notes
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

DROPPED_HEAD = "a head, and the model is opened without it"
NO_POOLER = "transformers adds a pooler with random weights (pooler_output); last_hidden_state is unaffected"


def module(hf_name: str, name: str, from_hf: Change = unchanged, to_hf: Change = unchanged) -> Rule:
    """Build the rule of the weight and the bias of a module."""
    return Rule(f"{hf_name}.{{p}}", f"{name}.{{p}}", from_hf, to_hf)


def attention_rules(
    prefix: str,
    query: str,
    key: str,
    value: str,
    output: str,
    *,
    sublayer: str = "attention",
    rotated: Change = unchanged,
    norm: str | None = None,
) -> tuple[Rule, ...]:
    """Build the rules of the projections of the attention ``sublayer``, and of its ``norm``.

    ``rotated`` changes queries and keys, and is its own inverse.
    """
    attention = f"{LAYER}.{sublayer}.sublayer"
    return (
        module(f"{prefix}.{query}", f"{attention}.query", rotated, rotated),
        module(f"{prefix}.{key}", f"{attention}.key", rotated, rotated),
        module(f"{prefix}.{value}", f"{attention}.value"),
        module(f"{prefix}.{output}", f"{attention}.output"),
        *((module(norm, f"{LAYER}.{sublayer}.norm"),) if norm else ()),
    )


def feedforward_rules(prefix: str, inner: str, outer: str, gate: str | None = None) -> tuple[Rule, ...]:
    """Build the rules of the linear layers of a feed-forward, gated with ``gate``."""
    names = {"inner": inner, "outer": outer} | ({} if gate is None else {"gate": gate})
    return tuple(module(f"{prefix}.{name}", f"{LAYER}.feedforward.sublayer.{part}") for part, name in names.items())


def norm_rules(layer: str, attention: str, feedforward: str) -> tuple[Rule, ...]:
    """Build the rules of the norms of the two sublayers."""
    return (
        module(f"{layer}.{attention}", f"{LAYER}.attention.norm"),
        module(f"{layer}.{feedforward}", f"{LAYER}.feedforward.norm"),
    )


def no_offset(pad_token_id: int) -> int:
    """Return the number of rows before position 0: none."""
    return 0


def after_padding(pad_token_id: int) -> int:
    """Return the number of rows before position 0, which is after the padding id (RoBERTa, ProphetNet)."""
    return pad_token_id + 1


def learned_positions(hf_name: str, *, offset: Callable[[int], int] = no_offset) -> Rule:
    """Build the rule of a position table with ``offset`` rows before position 0 in Hugging Face, any number here."""

    def shift(tensor: Tensor, backbone: EncoderConfig) -> Tensor:
        rows_before, hf_rows_before = backbone.positions.rows_before, offset(backbone.pad_token_id)
        if rows_before == hf_rows_before:
            return tensor
        return torch.cat([tensor.new_zeros(hf_rows_before, tensor.shape[1]), tensor[rows_before:]])

    return Rule(hf_name, "backbone.embeddings.positions.embedding.weight", to_hf=shift)


def zero_segments(backbone: EncoderConfig) -> Tensor | None:
    """Return a zero embedding of one segment, for a model without segments."""
    return None if backbone.type_vocab_size else torch.zeros(1, backbone.embedding_size or backbone.hidden_size)


def embedding_table(name: str, *, offset: Callable[[int], int] = no_offset, segments: bool = True) -> Table:
    """Build the table of BERT's embeddings in the model ``name``."""
    prefix = f"{name}.embeddings"
    segment_table = f"{prefix}.token_type_embeddings.weight"
    return Table(
        rules=(
            Rule(f"{prefix}.word_embeddings.weight", "backbone.embeddings.words.weight"),
            learned_positions(f"{prefix}.position_embeddings.weight", offset=offset),
            *[Rule(segment_table, "backbone.embeddings.segments.weight")] * segments,
            module(f"{prefix}.LayerNorm", "backbone.embeddings.norm"),
        ),
        drops=(Drop(rf"{name}\.embeddings\.(position|token_type)_ids", "a constant, not a weight"),),
        default_tensors=(DefaultTensor(segment_table, zero_segments),) * segments,
    )


def encoder_table(name: str, *, offset: Callable[[int], int] = no_offset) -> Table:
    """Build the table of BERT's encoder in the model ``name``."""
    layer = f"{name}.encoder.layer.{{i}}"
    return embedding_table(name, offset=offset) + Table(
        rules=(
            *attention_rules(f"{layer}.attention", "self.query", "self.key", "self.value", "output.dense"),
            *feedforward_rules(layer, "intermediate.dense", "output.dense"),
            *norm_rules(layer, "attention.output.LayerNorm", "output.LayerNorm"),
        )
    )


def drop_pooler(name: str) -> Table:
    """Drop the pooler of the model ``name``, which other classes use."""
    return Table(drops=(Drop(rf"{name}\.pooler\.(dense\.)?(weight|bias)", "a pooler, which this head does not use"),))


def annotated(
    *architectures: Architecture, notes: Notes = no_notes, unsupported_fields: frozenset[str] = frozenset()
) -> tuple[Architecture, ...]:
    """Add ``notes`` and ``unsupported_fields`` to the classes."""

    def with_notes(first: Notes) -> Notes:
        return lambda backbone: (*first(backbone), *notes(backbone))

    return tuple(
        replace(a, notes=with_notes(a.notes), unsupported_fields=a.unsupported_fields | unsupported_fields)
        for a in architectures
    )


def headless(name: str, prefix: str, *drops: Drop, notes: Notes = no_notes) -> Architecture:
    """Build a class without a head, which drops tensors outside ``prefix`` and those of ``drops``."""
    heads = Drop(rf"(?!{re.escape(prefix)}).*", DROPPED_HEAD)
    return Architecture(
        name,
        kind=None,
        table=Table(drops=(*drops, heads)),
        head=lambda settings: None,
        pipeline="feature-extraction",
        notes=notes,
    )


def models_with_pooler(name: str, dense: str) -> tuple[Architecture, ...]:
    """Build the classes without a head, without pooler (the default) and with it; ``dense`` is the pooler's layer."""
    prefix = f"{dense.partition('.')[0]}."
    pooler = replace(headless(name, prefix), kind="pooler", head=lambda settings: {"kind": "pooler"}, notes=no_notes)
    rules = Table(rules=(module(dense, "head.dense"),))
    return headless(name, prefix, notes=lambda backbone: (NO_POOLER,)), replace(pooler, table=rules + pooler.table)


def masked_lm(settings: Tree) -> Tree:
    """Return the settings of a head with the activation of the layers."""
    return {"kind": "masked_lm", "hidden_act": activation(settings["hidden_act"])}


def gelu_masked_lm(settings: Tree) -> Tree:
    """Return the settings of a head with GELU."""
    return {"kind": "masked_lm"}


def masked_lm_table(words: str, transform: str, norm: str, decoder: str, *, bias: str | None = None) -> Table:
    """Build the table of dense layer, norm, and decoder tied to ``words``.

    ``bias`` is the second name of the decoder's bias, if any.
    """
    bias, copy = bias or f"{decoder}.bias", f"{decoder}.bias"
    return Table(
        rules=(module(transform, "head.transform"), module(norm, "head.norm"), Rule(bias, "head.bias")),
        copies=(Copy(f"{decoder}.weight", of=f"{words}.weight"), *[Copy(copy, of=bias)] * (copy != bias)),
    )


def require_is_decoder(name: str, head: Head, *, causal: bool) -> Head:
    """Restrict ``head`` to causal or to bidirectional models."""

    def read(settings: Tree) -> Tree:
        if settings["is_decoder"] != causal:
            raise UserError(f"is_decoder={settings['is_decoder']!r} is not supported by {name}, only {causal}")
        return head(settings)

    return read


def language_model(name: str, table: Table, head: Head = masked_lm, *, causal: bool | None = None) -> Architecture:
    """Build a masked language model, or with ``causal`` a class whose config.json must have this ``is_decoder``."""
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
    """Build a causal language model: the classes with tied and with untied output embeddings.

    Args:
        name: class.
        words: word embeddings.
        tied_by_default: default of ``tie_word_embeddings`` in config.json.
        check: raises `UserError` for a head that is not supported.
        settings: further settings to write to config.json.
        pipeline: as in `Architecture`.
    """

    def build(tied: bool) -> Architecture:
        def head(tree: Tree) -> Tree:
            check(tree)
            return {"kind": "causal_lm", "tie_word_embeddings": tied}

        def fits(tree: Tree) -> bool:
            setting = tree.get("tie_word_embeddings")
            return (tied_by_default if setting is None else setting is not False) == tied

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
    """Build a dense layer and classifier over one vector per text; ``tables`` have further tensors of the class."""
    table = Table(rules=(module(dense, "head.dense"), module(classifier, "head.classifier")))
    return Architecture(
        name,
        kind=kind,
        table=sum(tables, table),
        head=head or classification(kind),
        pipeline="text-classification",
        write=write,
    )


@dataclass(frozen=True)
class Pooling:
    """Setting ``classifier_pooling``: the vector to classify; ``tokens`` maps its values to those of homespun."""

    tokens: Mapping[str, str]

    def read(self, settings: Tree) -> Tree:
        """Return the settings of a head of kind ``pooled``.

        Raises:
            UserError: an unknown pooling.
        """
        pooling = settings["classifier_pooling"]
        if pooling not in self.tokens:
            names = " and ".join(map(repr, self.tokens))
            raise UserError(f"classifier_pooling={pooling!r} is not supported, only {names}")
        return classification("pooled", token=self.tokens[pooling])(settings)

    def write(self, head: Tree) -> Tree:
        """Setting of config.json for a head; the first value if none is equal."""
        values = (value for value, token in self.tokens.items() if token == head["token"])
        return {"classifier_pooling": next(values, next(iter(self.tokens)))}


def input_dropout_classification(settings: Tree) -> Tree:
    """Return the settings of a head with the same dropout before and after the dense layer."""
    head = classification("pooled")(settings)
    return head | {"input_dropout": head["dropout"]}


def last_token_classification(name: str) -> Architecture:
    """Build a linear layer over the last token, without dropout."""

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
    """Build dropout and a linear layer over each token; ``tables`` have further tensors of the class."""
    return Architecture(
        name,
        kind="token_classification",
        table=sum(tables, Table(rules=(module("classifier", "head.classifier"),))),
        head=classification("token_classification", dropout=dropout),
        pipeline="token-classification",
    )


def question_answering(name: str, *, dropout: float = 0.0) -> Architecture:
    """Build a linear layer over each token, for start and end; ``dropout`` is the default of ``qa_dropout``."""
    return Architecture(
        name,
        kind="question_answering",
        table=Table(rules=(module("qa_outputs", "head.classifier"),)),
        head=lambda settings: {"kind": "question_answering", "dropout": settings.get("qa_dropout", dropout)},
        pipeline="question-answering",
        dropout="qa_dropout",
    )


def alternating_attention(layers: Sequence[Tree]) -> Tree:
    """Return alternating attention with the shortest cycle that gives the attention of the ``layers``."""
    cycle = next(
        layers[:size]
        for size in range(1, len(layers) + 1)
        if all(layer == layers[index % size] for index, layer in enumerate(layers))
    )
    return {"kind": "alternating", "cycle": [*cycle]} if cycle[1:] else cycle[0]


def layer_attentions(backbone: EncoderConfig) -> list[AttentionConfig]:
    """Return the attention config of each layer."""
    attention = backbone.attention
    cycle = attention.cycle if isinstance(attention, AlternatingAttentionConfig) else [attention]
    return [cycle[layer % len(cycle)] for layer in range(backbone.num_hidden_layers)]


def pad_or_eos(settings: Tree) -> object:
    """Return the padding token, or the end of text for models without one."""
    if settings["pad_token_id"] is not None:
        return settings["pad_token_id"]
    end, size = settings.get("eos_token_id", 50256), settings["vocab_size"]
    return end if isinstance(end, int) and isinstance(size, int) and 0 <= end < size else 0
