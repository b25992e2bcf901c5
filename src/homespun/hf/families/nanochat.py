"""nanochat (Karpathy 2025): a Llama whose norms have no weights, with normalised queries and keys and squared ReLU.

The class rotates queries and keys in the opposite direction, which is ours with the halves of each head exchanged, and
normalises them afterwards, which is the same as before: a norm without weights does not depend on rotations.
"""

from __future__ import annotations

from torch import Tensor

from homespun.config import Tree
from homespun.errors import UserError
from homespun.hf.engine import Rule, Table
from homespun.hf.families.gpt2 import causal_lm
from homespun.hf.families.llama import (
    DEFAULTS,
    EMBEDDINGS,
    LAYER,
    NAMES,
    OWN,
    attention_rules,
    dropout_note,
    read,
    write,
)
from homespun.hf.family import Architecture, Family, headless
from homespun.models.encoder import EncoderConfig


def exchange_halves(tensor: Tensor, backbone: EncoderConfig) -> Tensor:
    """Rows of a projection to heads, the first half of each head after the second."""
    size = backbone.head_size or backbone.hidden_size // backbone.num_attention_heads
    if not tensor.dim() or tensor.shape[0] % size or size % 2:
        return tensor  # a wrong shape is reported with those of all tensors
    return tensor.reshape(-1, 2, size // 2, *tensor.shape[1:]).flip(1).reshape(tensor.shape)


def _uncapped(settings: Tree) -> None:
    cap = settings.get("final_logit_softcapping", 15.0)  # a null is no cap, and a missing value is the default
    if cap is not None:
        raise UserError(
            f"final_logit_softcapping={cap} is not supported by the head, only null; "
            f"open the model without its head by `homespun convert --head none`"
        )


def _causal_lm(*, tied: bool) -> Architecture:
    return causal_lm(
        "NanoChatForCausalLM",
        "model.embed_tokens",
        tied=tied,
        default=False,
        check=_uncapped,
        settings={"final_logit_softcapping": None},
        notes=dropout_note,
    )


def _read(settings: Tree, kind: str | None) -> Tree:
    return read(settings) | {
        "mlp_bias": False,
        "embedding_norm": True,
        "norm_weight": False,
        "qk_norm": True,
        "causal": True,
    }


NANOCHAT = Family(
    model_type="nanochat",
    prefix="model.",
    table=Table(
        rules=(
            EMBEDDINGS,
            *attention_rules(exchange_halves),
            Rule(f"{LAYER}.mlp.fc1.{{p}}", f"{OWN}.feedforward.sublayer.inner.{{p}}"),
            Rule(f"{LAYER}.mlp.fc2.{{p}}", f"{OWN}.feedforward.sublayer.outer.{{p}}"),
        )
    ),
    architectures=(
        headless("NanoChatModel", "model.", notes=dropout_note),
        _causal_lm(tied=True),
        _causal_lm(tied=False),
    ),
    defaults=DEFAULTS
    | {
        "vocab_size": 50304,
        "hidden_size": 768,
        "intermediate_size": 8192,
        "num_hidden_layers": 12,
        "num_attention_heads": 6,
        "hidden_act": "relu2",
        "pad_token_id": 1,
    },
    names=NAMES,
    read=_read,
    write=write,
)
