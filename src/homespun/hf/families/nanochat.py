"""nanochat (Karpathy 2025): Llama with norms without weights, also of queries and keys, and squared ReLU.

transformers rotates queries and keys in the opposite direction, which is ours with the halves of each head exchanged.
It normalises them afterwards, which is the same as before: a norm without weights does not depend on rotations.
"""

from __future__ import annotations

from torch import Tensor

from homespun.config import Tree
from homespun.errors import UserError
from homespun.hf import builders
from homespun.hf.engine import Table
from homespun.hf.families import llama
from homespun.models.encoder import EncoderConfig


def exchange_halves(tensor: Tensor, backbone: EncoderConfig) -> Tensor:
    """Exchange the halves of each head in the rows of a projection."""
    size = backbone.head_size or backbone.hidden_size // backbone.num_attention_heads
    if not tensor.dim() or tensor.shape[0] % size or size % 2:
        return tensor  # a wrong shape is reported with those of all tensors
    return tensor.reshape(-1, 2, size // 2, *tensor.shape[1:]).flip(1).reshape(tensor.shape)


def _check_cap(settings: Tree) -> None:
    cap = settings.get("final_logit_softcapping", 15.0)  # null is no cap, a missing value the default
    if cap is not None:
        raise UserError(
            f"final_logit_softcapping={cap} is not supported by the head, only null; "
            f"open the model without its head by `homespun convert --head none`"
        )


NANOCHAT = llama.family(
    "nanochat",
    Table(
        rules=(
            *llama.backbone_rules(exchange_halves),
            *builders.feedforward_rules(f"{llama.LAYERS}.mlp", "fc1", "fc2"),
        )
    ),
    builders.headless("NanoChatModel", "model."),
    *builders.causal_lm(
        "NanoChatForCausalLM",
        llama.WORDS,
        tied_by_default=False,
        check=_check_cap,
        settings={"final_logit_softcapping": None},
    ),
    defaults={
        "vocab_size": 50304,
        "hidden_size": 768,
        "intermediate_size": 8192,
        "num_hidden_layers": 12,
        "num_attention_heads": 6,
        "hidden_act": "relu2",
        "pad_token_id": 1,
    },
    fields={
        "mlp_bias": False,
        "embedding_norm": True,
        "norm_weight": False,
        "qk_norm": True,
        "causal": True,
    },
    check=lambda settings: None,
)
