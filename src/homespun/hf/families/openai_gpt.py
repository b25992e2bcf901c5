"""GPT (Radford et al. 2018): GPT-2's layers normalised after the sum, as BERT's are.

Its own tokenizer names no end of text either: it pads with what is unknown.
"""

from __future__ import annotations

from homespun.config import Tree
from homespun.hf.engine import Table
from homespun.hf.families.gpt2 import CAUSAL_MASK, DEFAULTS, NAMES, causal_lm, decoder, last_token, layer_rules
from homespun.hf.family import Family, headless
from homespun.models.encoder import EncoderConfig


def _read(settings: Tree, kind: str | None) -> Tree:
    # what they call gelu is the tanh formula here alone
    return decoder(settings) | {"hidden_act": "gelu_new" if settings["afn"] == "gelu" else settings["afn"]}


def _write(backbone: EncoderConfig) -> Tree:
    afn = "gelu" if backbone.hidden_act == "gelu_new" else backbone.hidden_act
    return {"embd_pdrop": backbone.hidden_dropout_prob, "afn": afn}


OPENAI_GPT = Family(
    model_type="openai-gpt",
    prefix="transformer.",
    table=Table(rules=layer_rules("tokens_embed", "positions_embed"), drops=(CAUSAL_MASK,)),
    architectures=(
        headless("OpenAIGPTModel", "transformer."),
        causal_lm("OpenAIGPTLMHeadModel", "transformer.tokens_embed", tied=True),
        causal_lm("OpenAIGPTLMHeadModel", "transformer.tokens_embed", tied=False),
        last_token("OpenAIGPTForSequenceClassification"),
    ),
    defaults=DEFAULTS | {"vocab_size": 40478, "n_positions": 512, "afn": "gelu"},
    names=NAMES | {"hidden_act": "afn"},
    read=_read,
    write=_write,
    dropouts=lambda settings: ("embd_pdrop",),
)
