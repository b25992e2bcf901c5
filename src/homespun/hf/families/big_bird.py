"""BigBird (Zaheer et al. 2020), ITC: windows of blocks, random blocks, and a global first and last block.

The weights are equal, but the attention of transformers depends on the mode and on the batch:

- Random blocks: homespun draws them once from ``seed``. transformers draws others in training, by the length of the
  batch, and none in evaluation, where it counts the first block ``num_random_blocks`` more times.
- Global last block: homespun takes that of the last token of a text, transformers that of the batch.
- Full attention: transformers uses it for up to ``(5 + 2 * num_random_blocks) * block_size`` tokens, homespun for up to
  4 blocks.

`BigBirdForQuestionAnswering` subtracts a million from the logits of the question, and makes the text after it segment
1. In homespun the caller passes segments, and searches the text for the answer. transformers applies the dropout of the
embeddings before the norm, and no dropout in block-sparse attention.
"""

from __future__ import annotations

import torch

from homespun.attention import AttentionConfig
from homespun.attention.full import FullAttentionConfig
from homespun.attention.sparse import BlocksConfig, RandomBlocksConfig, SparseAttentionConfig
from homespun.config import Tree
from homespun.errors import UserError
from homespun.hf import builders
from homespun.hf.builders import BERT_DEFAULTS, CAUSAL, CAUSAL_FIXED, CAUSAL_NAMES, annotated, module
from homespun.hf.engine import DefaultTensor, Table
from homespun.hf.families.bert import MASKED_LM
from homespun.hf.family import Architecture, Family, activation, classification
from homespun.models.encoder import EncoderConfig

# of classes with an unused pooler
_POOLER = Table(
    default_tensors=(
        DefaultTensor("bert.pooler.weight", lambda backbone: torch.zeros(backbone.hidden_size, backbone.hidden_size)),
        DefaultTensor("bert.pooler.bias", lambda backbone: torch.zeros(backbone.hidden_size)),
    )
)


def read_blocks(settings: Tree) -> Tree:
    """Attention of ``attention_type``.

    Raises:
        UserError: an unknown type.
    """
    if settings["attention_type"] == "original_full":
        return {"kind": "full"}
    if settings["attention_type"] != "block_sparse":
        raise UserError(
            f"attention_type={settings['attention_type']!r} is not supported, only block_sparse and original_full"
        )
    size = settings["block_size"]
    patterns = [{"kind": "blocks"}, {"kind": "random_blocks", "count": settings["num_random_blocks"]}]
    return {
        "kind": "sparse",
        "patterns": [pattern | {"size": size} for pattern in patterns],
        "global_tokens": {"first": 0, "block": size},
    }


def write_blocks(attention: AttentionConfig) -> Tree:
    """Settings of a full or block-sparse attention."""
    match attention:
        case FullAttentionConfig():
            return {"attention_type": "original_full"}
        case SparseAttentionConfig(patterns=[BlocksConfig(size=size), RandomBlocksConfig(count=count)]):
            return {"block_size": size, "num_random_blocks": count}
    return {}


def block_notes(attention: AttentionConfig) -> tuple[str, ...]:
    """Notes on differences of the attention in transformers."""
    settings = write_blocks(attention)
    if "num_random_blocks" not in settings:
        return ()
    size, count = settings["block_size"], settings["num_random_blocks"]
    grid = (
        f"transformers uses full attention for batches of at most {(5 + 2 * count) * size} tokens, this model for at "
        f"most {4 * size}; its global last block is that of the batch, including padding"
    )
    random = (
        "transformers does not use the random blocks of this model: it draws others in training, and uses the first "
        "block instead in evaluation"
    )
    return grid, random


def _answers(settings: Tree) -> Tree:
    return {
        "kind": "question_answering_ffn",
        "intermediate_size": settings["intermediate_size"],
        "hidden_act": activation(settings["hidden_act"]),
        "dropout": settings.get("qa_dropout", settings["hidden_dropout_prob"]),
    }


def _question_notes(backbone: EncoderConfig) -> tuple[str, ...]:
    return (
        "transformers subtracts a million from the logits of the question, up to the first separator, and makes the "
        "text after it segment 1 if there are no token_type_ids; this model does neither",
    )


def _read(settings: Tree, kind: str | None) -> Tree:
    if settings["is_decoder"] and settings["attention_type"] != "original_full":
        raise UserError(
            f"is_decoder=True with attention_type={settings['attention_type']!r} is not supported, because it is "
            f"causal only for short batches; set attention_type to original_full"
        )
    return {"attention": read_blocks(settings)}


_QA = "qa_classifier"

BIG_BIRD = Family(
    model_type="big_bird",
    prefix="bert.",
    table=builders.encoder_table("bert") + builders.drop_pooler("bert"),
    architectures=(
        *annotated(
            *builders.models_with_pooler("BigBirdModel", "bert.pooler"),
            builders.language_model("BigBirdForMaskedLM", MASKED_LM + _POOLER, causal=False),
            builders.language_model("BigBirdForPreTraining", MASKED_LM + _POOLER, causal=False),
            builders.text_classification(
                "BigBirdForSequenceClassification",
                _POOLER,
                kind="ffn",
                head=lambda settings: classification("ffn", hidden_act=activation(settings["hidden_act"]))(settings),
            ),
            builders.token_classification("BigBirdForTokenClassification", _POOLER),
            Architecture(
                "BigBirdForQuestionAnswering",
                kind="question_answering_ffn",
                table=Table(
                    rules=(
                        module(f"{_QA}.intermediate.dense", "head.feedforward.sublayer.1.inner"),
                        module(f"{_QA}.output.dense", "head.feedforward.sublayer.1.outer"),
                        module(f"{_QA}.output.LayerNorm", "head.feedforward.norm"),
                        module(f"{_QA}.qa_outputs", "head.classifier"),
                    )
                ),
                head=_answers,
                pipeline="question-answering",
                notes=_question_notes,
                dropout="qa_dropout",
            ),
            notes=lambda backbone: block_notes(backbone.attention),
        ),
        builders.language_model("BigBirdForCausalLM", MASKED_LM + _POOLER, causal=True),
    ),
    defaults=BERT_DEFAULTS
    | CAUSAL
    | {
        "vocab_size": 50358,
        "hidden_act": "gelu_new",
        "max_position_embeddings": 4096,
        "attention_type": "block_sparse",
        "block_size": 64,
        "num_random_blocks": 3,
        "seed": 0,  # seed of the random blocks, which only homespun stores
        "use_bias": True,
        "rescale_embeddings": False,
    },
    names=CAUSAL_NAMES,
    read=_read,
    write=lambda backbone: write_blocks(FullAttentionConfig() if backbone.causal else backbone.attention),
    fixed=CAUSAL_FIXED | {"use_bias": (None, True), "rescale_embeddings": (None, False)},
)
