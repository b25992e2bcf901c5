"""EuroBERT (Boizard et al. 2025): a bidirectional Llama.

Masked tokens are predicted by the output embeddings alone, our head ``causal_lm``.
"""

from __future__ import annotations

from homespun.config import Tree
from homespun.errors import UserError
from homespun.hf import builders
from homespun.hf.families import llama

_POOLING = builders.Pooling({"bos": "first", "mean": "mean"})


def _check_bias(settings: Tree) -> None:
    if settings["mlp_bias"] is not False:
        raise UserError(
            "mlp_bias=True is not supported by the head for masked tokens, which then has a bias; only False"
        )


EUROBERT = llama.family(
    "eurobert",
    llama.GATED,
    builders.headless("EuroBertModel", "model."),
    *builders.causal_lm(
        "EuroBertForMaskedLM", llama.WORDS, tied_by_default=False, check=_check_bias, pipeline="fill-mask"
    ),
    builders.text_classification(
        "EuroBertForSequenceClassification",
        dense="dense",
        classifier="classifier",
        head=lambda settings: _POOLING.read(settings) | {"hidden_act": "gelu"},
        write=_POOLING.write,
    ),
    builders.token_classification("EuroBertForTokenClassification"),
    defaults={
        "vocab_size": 128256,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "pad_token_id": 128001,
        "mlp_bias": False,
        "classifier_pooling": "late",
    },
    fields={"gated_feed_forward": True},
    check=llama.check_heads,
)
