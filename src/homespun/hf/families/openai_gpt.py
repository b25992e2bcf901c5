"""GPT (Radford et al. 2018): the layers of GPT-2, post-norm as BERT's.

Its tokenizer has no end of text: texts are padded with the unknown token.
"""

from __future__ import annotations

from homespun.config import Tree
from homespun.hf import builders
from homespun.hf.families import gpt2
from homespun.hf.family import Family
from homespun.models.encoder import EncoderConfig


def _read(settings: Tree, kind: str | None) -> Tree:
    # here alone, "gelu" is the tanh formula
    return gpt2.read(settings) | {"hidden_act": "gelu_new" if settings["afn"] == "gelu" else settings["afn"]}


def _write(backbone: EncoderConfig) -> Tree:
    afn = "gelu" if backbone.hidden_act == "gelu_new" else backbone.hidden_act
    return {"embd_pdrop": backbone.hidden_dropout_prob, "afn": afn}


OPENAI_GPT = Family(
    model_type="openai-gpt",
    prefix="transformer.",
    table=gpt2.table("tokens_embed", "positions_embed"),
    architectures=(
        builders.headless("OpenAIGPTModel", "transformer."),
        *builders.causal_lm("OpenAIGPTLMHeadModel", "transformer.tokens_embed", tied_by_default=True),
        builders.last_token_classification("OpenAIGPTForSequenceClassification"),
    ),
    defaults=gpt2.DEFAULTS | {"vocab_size": 40478, "n_positions": 512, "afn": "gelu"},
    names=gpt2.NAMES | {"hidden_act": "afn"},
    read=_read,
    write=_write,
    dropouts=lambda settings: ("embd_pdrop",),
)
