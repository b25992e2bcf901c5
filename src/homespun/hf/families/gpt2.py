"""GPT-2 (Radford et al. 2019): causal, pre-norm, without a norm of the embeddings; GPT (2018): the same, post-norm.

Without a padding token in config.json, texts are padded with the end of text, or for GPT with the unknown token.
``embd_pdrop`` becomes ``resid_pdrop``. homespun classifies texts by the last token of the attention mask, transformers
by the last token that is not the padding token.
"""

from __future__ import annotations

from torch import Tensor

from homespun.config import Tree
from homespun.hf import builders
from homespun.hf.builders import LAYER, module
from homespun.hf.engine import Drop, Rule, Table
from homespun.hf.family import Defaults, Family
from homespun.models.encoder import EncoderConfig

# of GPT and GPT-2
DEFAULTS: Defaults = {
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
    """Transpose a matrix; a bias is unchanged."""
    return tensor.T if tensor.dim() == 2 else tensor


def table(words: str, positions: str) -> Table:
    """Embeddings with these names, and layers; queries, keys and values are one matrix."""

    def matrix(hf_name: str, *names: str) -> Rule:
        patterns = tuple(f"{LAYER}.{name}.{{p}}" for name in names)
        return Rule(f"transformer.h.{{i}}.{hf_name}.{{p}}", patterns, transpose, transpose)

    return Table(
        rules=(
            Rule(f"transformer.{words}.weight", "backbone.embeddings.words.weight"),
            builders.learned_positions(f"transformer.{positions}.weight"),
            matrix("attn.c_attn", *(f"attention.sublayer.{part}" for part in ("query", "key", "value"))),
            matrix("attn.c_proj", "attention.sublayer.output"),
            matrix("mlp.c_fc", "feedforward.sublayer.inner"),
            matrix("mlp.c_proj", "feedforward.sublayer.outer"),
            *builders.norm_rules("transformer.h.{i}", "ln_1", "ln_2"),
        ),
        drops=(Drop(r"transformer\.h\.\d+\.attn\.(bias|masked_bias)", "the causal mask, not a weight"),),
    )


def read(settings: Tree) -> Tree:
    """Fields of GPT and GPT-2 that are not copied from config.json."""
    width = settings["n_embd"]
    return {
        "type_vocab_size": 0,
        "embedding_norm": False,
        "causal": True,
        "intermediate_size": 4 * width if isinstance(width, int) else width,
        "pad_token_id": builders.pad_or_eos(settings),
    }


def _read(settings: Tree, kind: str | None) -> Tree:
    fields = read(settings) | {"residual": {"kind": "pre", "scaled_initialisation": True}}
    return fields if settings["n_inner"] is None else fields | {"intermediate_size": settings["n_inner"]}


GPT2 = Family(
    model_type="gpt2",
    prefix="transformer.",
    table=table("wte", "wpe") + Table(rules=(module("transformer.ln_f", "backbone.final_norm"),)),
    architectures=(
        builders.headless("GPT2Model", "transformer."),
        *builders.causal_lm("GPT2LMHeadModel", "transformer.wte", tied_by_default=True),
        builders.last_token_classification("GPT2ForSequenceClassification"),
        builders.token_classification("GPT2ForTokenClassification"),
        builders.question_answering("GPT2ForQuestionAnswering"),
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


def _read_gpt(settings: Tree, kind: str | None) -> Tree:
    # "gelu" is the tanh approximation in this family
    return read(settings) | {"hidden_act": "gelu_new" if settings["afn"] == "gelu" else settings["afn"]}


def _write_gpt(backbone: EncoderConfig) -> Tree:
    afn = "gelu" if backbone.hidden_act == "gelu_new" else backbone.hidden_act
    return {"embd_pdrop": backbone.hidden_dropout_prob, "afn": afn}


OPENAI_GPT = Family(
    model_type="openai-gpt",
    prefix="transformer.",
    table=table("tokens_embed", "positions_embed"),
    architectures=(
        builders.headless("OpenAIGPTModel", "transformer."),
        *builders.causal_lm("OpenAIGPTLMHeadModel", "transformer.tokens_embed", tied_by_default=True),
        builders.last_token_classification("OpenAIGPTForSequenceClassification"),
    ),
    defaults=DEFAULTS | {"vocab_size": 40478, "n_positions": 512, "afn": "gelu"},
    names=NAMES | {"hidden_act": "afn"},
    read=_read_gpt,
    write=_write_gpt,
    dropouts=lambda settings: ("embd_pdrop",),
)
