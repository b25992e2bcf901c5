"""Teacher forcing of a decoder, shared by BART, T5, PEGASUS, ProphetNet and fine-tuning on pairs of texts.

A pretraining objective differs from another in its `Corruption`, the function from a row to a source and a target.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import torch

from homespun.batch import Batch, Loss, RowSeed
from homespun.data.corpus import Corpus
from homespun.data.padding import pad
from homespun.data.rows import Row
from homespun.data.sentence_rows import SentenceRows
from homespun.errors import UserError
from homespun.models.config import ModelConfig
from homespun.models.heads import CausalLMHeadConfig
from homespun.models.model import Model
from homespun.objectives.decoder_loss import EQUAL_WEIGHTS, StreamWeights, decoder_loss
from homespun.objectives.protocol import Objective


class Corruption(Protocol):
    """Function from a row to the ids that the encoder reads and those that the decoder predicts."""

    def __call__(self, row: Row, generator: torch.Generator) -> tuple[np.ndarray, np.ndarray]:
        """(source,) and (target,) ids; the token that ends the row ends both."""


@dataclasses.dataclass(frozen=True)
class CorruptionCollator:
    """Collate: rows are corrupted one by one.

    Attributes:
        pad_id: fills sources and targets.
        start_id: token that the decoder reads first.
        corrupt: from a row to its source and its target.
    """

    pad_id: int
    start_id: int
    corrupt: Corruption

    def __call__(self, rows: Sequence[Row], row_seeds: Sequence[RowSeed]) -> Batch:
        """Rows to a batch."""
        pairs = [self.corrupt(row, row_seed.generator()) for row, row_seed in zip(rows, row_seeds, strict=True)]
        sources = pad([Row(source) for source, _ in pairs], self.pad_id)
        targets = [target for _, target in pairs]
        return add_decoder_inputs(sources, targets, start_id=self.start_id, pad_id=self.pad_id)


def sentence_rows(corpus: Corpus, documents: np.ndarray, *, length: int) -> SentenceRows:
    """Rows of complete sentences of one document, where the corpus knows them, with special tokens.

    T5's, PEGASUS's and ProphetNet's tokenizers put nothing before a text, those trained here ``[CLS]``.
    """
    before = corpus.tokenizer.template[0][:1]
    begin_id = before[0] if before else None
    return SentenceRows(corpus, documents, length=length, begin_id=begin_id, end_id=corpus.tokenizer.sep_id)


def add_decoder_inputs(batch: Batch, targets: Sequence[np.ndarray], *, start_id: int, pad_id: int) -> Batch:
    """The batch of sources with what the decoder reads and writes.

    Args:
        batch: the sources.
        targets: (target,) ids for each row, the end token included: the labels.
        start_id: what the decoder reads first; after it come the labels but for the last.
        pad_id: fills the decoder's rows.
    """
    lengths = np.array([len(target) for target in targets])
    shape = len(targets), int(lengths.max())
    ids = np.full(shape, pad_id, dtype=np.int64)
    for row, target in zip(ids, targets, strict=True):
        row[0] = start_id
        row[1 : len(target)] = target[:-1]
    keep = np.arange(shape[1]) < lengths[:, None]
    count = float(lengths.sum())
    return dataclasses.replace(
        batch,
        decoder_input_ids=torch.from_numpy(ids),
        decoder_attention_mask=None if keep.all() else torch.from_numpy(keep),
        positions=torch.from_numpy(np.flatnonzero(keep)),
        labels=torch.from_numpy(np.concatenate(targets).astype(np.int64)),
        targets={"seq2seq": count, "seq2seq_accuracy": count},
    )


def build_seq2seq_config(
    model: ModelConfig,
    kind: str,
    *,
    tokens: Mapping[str, int | None] | None = None,
    head: CausalLMHeadConfig | None = None,
) -> ModelConfig:
    """An encoder with a decoder under a language model's head, its own where it has one.

    Args:
        model: what is to write.
        kind: of the objective, for its name in errors.
        tokens: what its texts begin and end with, by the names in `NAMED_TOKENS`; others stay as they are.
        head: what it gets where it has none; by default one over the words that it reads.

    Raises:
        UserError: the backbone is one stack.
    """
    if not model.backbone.has_decoder:
        raise UserError(
            f"objective {kind} needs an encoder with a decoder, and this model is one stack; take one such as "
            f"model.preset=bart-mini, or objective clm for a causal stack"
        )
    own = model.head if isinstance(model.head, CausalLMHeadConfig) else None
    backbone = model.backbone.model_copy(update=dict(tokens or {}))
    return ModelConfig(backbone=backbone, head=own or head or CausalLMHeadConfig())


class Seq2SeqObjective(Objective):
    """Terms ``seq2seq`` and its accuracy. Keeps the model with its language model's head."""

    def __init__(self, model: Model, config: ModelConfig, streams: StreamWeights = EQUAL_WEIGHTS) -> None:
        super().__init__(model, config)
        self.streams = streams

    def forward(self, batch: Batch) -> Loss:
        """Decoder loss; see `homespun.objectives.decoder_loss.decoder_loss`."""
        source = self.model.backbone.encode(batch.input_ids, **batch.context)
        return Loss(decoder_loss(self.model, source, batch, self.streams))
