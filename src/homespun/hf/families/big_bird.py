"""BigBird (Zaheer et al. 2020), ITC: windows of blocks, random blocks, and a global first and last block.

The weights are the same on both sides. The attention of transformers depends on the mode and on the batch:

- Random blocks are drawn here once, from ``seed``. transformers draws others in training, by the length of the batch,
  and none in evaluation: it counts the first block ``num_random_blocks`` times more.
- The global last block is here that of the last token of a text, there that of the batch.
- Batches of at most ``(5 + 2 * num_random_blocks) * block_size`` tokens get full attention there, here up to 4 blocks.

`BigBirdForQuestionAnswering` lowers the logits of the question by a million, up to the first separator, and makes the
text after it segment 1. Here the caller gives segments, and searches them for the answer. Dropout of the embeddings
stands before the norm there, and block-sparse attention has none.
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
from homespun.hf.family import Architecture, Family, activation
from homespun.hf.labels import classification
from homespun.models.encoder import EncoderConfig

# for classes that have a pooler and do not use it
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
            f"unknown attention_type {settings['attention_type']!r}; there are block_sparse and original_full"
        )
    size = settings["block_size"]
    patterns = [{"kind": "blocks"}, {"kind": "random_blocks", "count": settings["num_random_blocks"]}]
    return {
        "kind": "sparse",
        "patterns": [pattern | {"size": size} for pattern in patterns],
        "global_tokens": {"first": 0, "block": size},
    }


def write_blocks(attention: AttentionConfig) -> Tree:
    """Settings of a full attention, or of blocks."""
    match attention:
        case FullAttentionConfig():
            return {"attention_type": "original_full"}
        case SparseAttentionConfig(patterns=[BlocksConfig(size=size), RandomBlocksConfig(count=count)]):
            return {"block_size": size, "num_random_blocks": count}
    return {}


def block_notes(attention: AttentionConfig) -> tuple[str, ...]:
    """Notes on the differences of attention in transformers."""
    settings = write_blocks(attention)
    if "num_random_blocks" not in settings:
        return ()
    size, count = settings["block_size"], settings["num_random_blocks"]
    grid = (
        f"batches of at most {(5 + 2 * count) * size} tokens get full attention in transformers, which is more than "
        f"this model sees beyond {4 * size}; and its global last block is that of the batch, padding counted"
    )
    random = (
        "the random blocks are not those that this model was trained with: transformers draws others in training, "
        "and in evaluation sees the first block in their place"
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
        "transformers lowers the logits of the question, up to the first separator, by a million, and makes the text "
        "after it segment 1 where no token_type_ids are given; this model does neither by itself",
    )


def _read(settings: Tree, kind: str | None) -> Tree:
    if settings["is_decoder"] and settings["attention_type"] != "original_full":
        raise UserError(
            f"is_decoder=True with attention_type={settings['attention_type']!r} is causal in short batches alone "
            f"there; only original_full is supported, write that"
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
        "seed": 0,  # of ours alone, which draws the random blocks again when it reads what it has written
        "use_bias": True,
        "rescale_embeddings": False,
    },
    names=CAUSAL_NAMES,
    read=_read,
    write=lambda backbone: write_blocks(FullAttentionConfig() if backbone.causal else backbone.attention),
    fixed=CAUSAL_FIXED | {"use_bias": (None, True), "rescale_embeddings": (None, False)},
)
