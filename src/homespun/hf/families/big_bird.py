"""BigBird (Zaheer et al. 2020), ITC: blocks that see their neighbours, random ones, and a global first and last block.

The weights are the same on both sides, the graph is not quite, in three ways of transformers' that depend on the mode
or on the other texts of a batch, which nothing here does:

- Random blocks are drawn here once, from ``seed``, and used in training and in evaluation. There training draws others,
  by the length of the batch, and evaluation has none: the first block is seen ``num_random_blocks`` times more instead.
- The last block is here the one of a text's last token, there that of the batch's last place. They are the same where
  less than a block is padded.
- Batches of at most ``(5 + 2 * num_random_blocks) * block_size`` tokens get full attention there. Here they see what
  the blocks allow, which is everything up to 4 blocks and less than that beyond.

Where a question is answered, the logits of its tokens are lowered there by a million, up to the first separator, and
the text after it is segment 1 where no segments are given. Here the caller gives them, and looks for the answer there.

Besides, dropout of the embeddings stands there before the norm, and block-sparse attention has none.
"""

from __future__ import annotations

import torch

from homespun.attention import AttentionConfig
from homespun.attention.full import FullAttentionConfig
from homespun.attention.sparse import BlocksConfig, RandomBlocksConfig, SparseAttentionConfig
from homespun.config import Tree
from homespun.errors import UserError
from homespun.hf.engine import DefaultTensor, Rule, Table
from homespun.hf.families.bert import (
    CAUSAL,
    CAUSAL_FIXED,
    CAUSAL_NAMES,
    DEFAULTS,
    MASKED_LM,
    drop_pooler,
    encoder_table,
    language_model,
    pooler,
    pooler_notes,
    token_classification,
)
from homespun.hf.family import Architecture, Family, activation, headless
from homespun.hf.labels import classification
from homespun.models.encoder import EncoderConfig

# classes that have a pooler and do not use it
_POOLER = Table(
    drops=(drop_pooler("bert"),),
    default_tensors=(
        DefaultTensor("bert.pooler.weight", lambda backbone: torch.zeros(backbone.hidden_size, backbone.hidden_size)),
        DefaultTensor("bert.pooler.bias", lambda backbone: torch.zeros(backbone.hidden_size)),
    ),
)


_LM = MASKED_LM + Table(default_tensors=_POOLER.default_tensors)


def read_blocks(settings: Tree) -> Tree:
    """The attention that ``attention_type`` and its sizes describe.

    Raises:
        UserError: there is no such type.
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
        "everywhere": {"first": 0, "block": size},
    }


def write_blocks(attention: AttentionConfig) -> Tree:
    """The settings of an attention that they can say."""
    match attention:
        case FullAttentionConfig():
            return {"attention_type": "original_full"}
        case SparseAttentionConfig(patterns=[BlocksConfig(size=size), RandomBlocksConfig(count=count)]):
            return {"block_size": size, "num_random_blocks": count}
    return {}


def block_notes(attention: AttentionConfig) -> tuple[str, ...]:
    """In what transformers' graph differs."""
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


def _graph(backbone: EncoderConfig) -> tuple[str, ...]:
    return block_notes(backbone.attention)


BIG_BIRD = Family(
    model_type="big_bird",
    prefix="bert.",
    table=encoder_table("bert"),
    architectures=(
        headless(
            "BigBirdModel",
            "bert.",
            drop_pooler("bert"),
            notes=lambda backbone: pooler_notes(backbone) + _graph(backbone),
        ),
        pooler("BigBirdModel", "bert.pooler", notes=_graph),
        language_model("BigBirdForMaskedLM", _LM, notes=_graph),
        language_model("BigBirdForPreTraining", _LM, notes=_graph),
        language_model("BigBirdForCausalLM", _LM, causal=True),
        Architecture(
            "BigBirdForSequenceClassification",
            kind="ffn",
            table=_POOLER
            + Table(
                rules=(
                    Rule("classifier.dense.{p}", "head.dense.{p}"),
                    Rule("classifier.out_proj.{p}", "head.classifier.{p}"),
                )
            ),
            head=lambda settings: classification("ffn")(settings) | {"hidden_act": activation(settings["hidden_act"])},
            pipeline="text-classification",
            notes=_graph,
        ),
        token_classification("BigBirdForTokenClassification", _POOLER, notes=_graph),
        Architecture(
            "BigBirdForQuestionAnswering",
            kind="question_answering_ffn",
            table=Table(
                rules=(
                    Rule("qa_classifier.intermediate.dense.{p}", "head.feedforward.sublayer.1.inner.{p}"),
                    Rule("qa_classifier.output.dense.{p}", "head.feedforward.sublayer.1.outer.{p}"),
                    Rule("qa_classifier.output.LayerNorm.{p}", "head.feedforward.norm.{p}"),
                    Rule("qa_classifier.qa_outputs.{p}", "head.classifier.{p}"),
                ),
                drops=(drop_pooler("bert"),),
            ),
            head=_answers,
            pipeline="question-answering",
            notes=lambda backbone: _graph(backbone) + _question_notes(backbone),
            dropout="qa_dropout",
        ),
    ),
    defaults=DEFAULTS
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
