"""GPT-2 (Radford et al. 2019): causal, normalised before the sublayers, embeddings not at all, one tied head.

A GPT has no padding token of its own: where config.json names none, it is the end of text, with which texts are padded
and which is learned as an input all the same.

Dropout of the embeddings, ``embd_pdrop``, is another number there; here it is that of the layers, ``resid_pdrop``.

A text is classified by its last token: the last real one here, there the last that is not the padding token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from homespun.config import Tree
from homespun.hf.engine import Copy, Drop, Rule, Table
from homespun.hf.families.bert import learned_positions, question_answering, token_classification
from homespun.hf.family import Architecture, Family, headless
from homespun.hf.labels import classification
from homespun.models.encoder import EncoderConfig

_OWN = "backbone.layers.{i}"

# what the configs of both GPTs assume, where it is the same, and our names for it
DEFAULTS = {
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.1,
    "layer_norm_epsilon": 1e-5,
    "initializer_range": 0.02,
    "pad_token_id": None,
}
NAMES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "hidden_dropout_prob": "resid_pdrop",
    "attention_probs_dropout_prob": "attn_pdrop",
    "layer_norm_eps": "layer_norm_epsilon",
}


def transpose(tensor: Tensor, backbone: EncoderConfig) -> Tensor:
    """A matrix there is (in, out), and (out, in) here; a bias is the same."""
    return tensor.T if tensor.dim() == 2 else tensor


def layer_rules(words: str, positions: str) -> tuple[Rule, ...]:
    """Embeddings of these names, and the layers of both GPTs; queries, keys and values are one matrix there."""

    def matrix(theirs: str, *ours: str) -> Rule:
        names = tuple(f"{_OWN}.{name}.{{p}}" for name in ours)
        return Rule(f"transformer.h.{{i}}.{theirs}.{{p}}", names, transpose, transpose)

    return (
        Rule(f"transformer.{words}.weight", "backbone.embeddings.words.weight"),
        learned_positions(f"transformer.{positions}.weight"),
        matrix("attn.c_attn", *(f"attention.sublayer.{part}" for part in ("query", "key", "value"))),
        matrix("attn.c_proj", "attention.sublayer.output"),
        Rule("transformer.h.{i}.ln_1.{p}", f"{_OWN}.attention.norm.{{p}}"),
        matrix("mlp.c_fc", "feedforward.sublayer.inner"),
        matrix("mlp.c_proj", "feedforward.sublayer.outer"),
        Rule("transformer.h.{i}.ln_2.{p}", f"{_OWN}.feedforward.norm.{{p}}"),
    )


CAUSAL_MASK = Drop(r"transformer\.h\.\d+\.attn\.(bias|masked_bias)", "the order of time, not a weight")


def decoder(settings: Tree) -> Tree:
    """What both GPTs are, beside plain values."""
    width = settings["n_embd"]
    return {
        "type_vocab_size": 0,
        "embedding_norm": False,
        "causal": True,
        "intermediate_size": 4 * width if isinstance(width, int) else width,
        "pad_token_id": padding(settings),
    }


def padding(settings: Tree) -> object:
    """The padding token, or what ends a text where config.json names none."""
    if settings["pad_token_id"] is not None:
        return settings["pad_token_id"]
    end, size = settings.get("eos_token_id", 50256), settings["vocab_size"]
    return end if isinstance(end, int) and isinstance(size, int) and 0 <= end < size else 0


def causal_lm(
    name: str,
    words: str,
    *,
    tied: bool,
    default: bool = True,
    check: Callable[[Tree], None] = lambda settings: None,
    settings: Tree | None = None,
    pipeline: str = "text-generation",
    notes: Callable[[Any], tuple[str, ...]] = lambda backbone: (),
) -> Architecture:
    """The class that predicts the next token, with its word embeddings or, where they are not tied, with others.

    Args:
        name: the class.
        words: name of the word embeddings there.
        tied: whether the output embeddings are the word embeddings.
        default: whether they are where config.json has no ``tie_word_embeddings``.
        check: raises `UserError` where config.json describes a head that ours cannot be.
        settings: what config.json says of such a head besides.
        pipeline, notes: as in `Architecture`.
    """
    tied_table = Table(copies=(Copy("lm_head.weight", of=f"{words}.weight"),))

    def head(tree: Tree) -> Tree:
        check(tree)
        return {"kind": "causal_lm", "tie_word_embeddings": tied}

    def fits(tree: Tree) -> bool:
        given = tree.get("tie_word_embeddings")
        return (default if given is None else given is not False) == tied

    return Architecture(
        name,
        kind="causal_lm",
        table=tied_table if tied else Table(rules=(Rule("lm_head.weight", "head.words.weight"),)),
        head=head,
        pipeline=pipeline,
        fits=fits,
        write=lambda head: {"tie_word_embeddings": tied, **(settings or {})},
        notes=notes,
    )


def last_token(name: str, *, notes: Callable[[Any], tuple[str, ...]] = lambda backbone: ()) -> Architecture:
    """The class that classifies a text by its last token; it has no dropout, and ours what config.json says of one."""

    def head(settings: Tree) -> Tree:
        return classification("last")(settings | {"classifier_dropout": settings.get("classifier_dropout") or 0.0})

    return Architecture(
        name,
        kind="last",
        table=Table(rules=(Rule("score.weight", "head.classifier.weight"),)),
        head=head,
        pipeline="text-classification",
        notes=notes,
    )


def _read(settings: Tree, kind: str | None) -> Tree:
    fields = decoder(settings) | {"residual": {"kind": "pre", "scaled_initialisation": True}}
    return fields if settings["n_inner"] is None else fields | {"intermediate_size": settings["n_inner"]}


GPT2 = Family(
    model_type="gpt2",
    prefix="transformer.",
    table=Table(
        rules=(*layer_rules("wte", "wpe"), Rule("transformer.ln_f.{p}", "backbone.final_norm.{p}")),
        drops=(CAUSAL_MASK,),
    ),
    architectures=(
        headless("GPT2Model", "transformer."),
        causal_lm("GPT2LMHeadModel", "transformer.wte", tied=True),
        causal_lm("GPT2LMHeadModel", "transformer.wte", tied=False),
        last_token("GPT2ForSequenceClassification"),
        token_classification("GPT2ForTokenClassification"),
        question_answering("GPT2ForQuestionAnswering"),
    ),
    defaults=DEFAULTS
    | {
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_inner": None,
        "activation_function": "gelu_new",
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
    },
    names=NAMES | {"hidden_act": "activation_function", "intermediate_size": "n_inner"},
    read=_read,
    write=lambda backbone: {"embd_pdrop": backbone.hidden_dropout_prob},
    fixed={"scale_attn_weights": (None, True), "scale_attn_by_inverse_layer_idx": (None, False)},
    dropouts=lambda settings: ("embd_pdrop",),
)
