"""Interfaces of objectives: their configs, the modules that compute a loss, and those that a teacher can wrap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np
from torch import Tensor, nn

from homespun.batch import Batch, Loss, RowSeed
from homespun.config import Config
from homespun.data.corpus import Corpus
from homespun.data.loader import Collate, Order
from homespun.data.rows import PackedRows, Row, Rows
from homespun.models.config import ModelConfig
from homespun.models.model import Model


class PretrainingConfig(Config):
    """Interface of the configs of pretraining objectives, with the rows of those without a decoder.

    A config also has ``collate(tokenizer)``, the function from rows to a batch, and ``build(model, tokenizer)``, the
    `Objective`.

    Attributes:
        row_order: order of the rows of an epoch; ``bucketed`` rows have one document each, others are packed.
        max_processes: processes that can train in parallel; None: any number.
    """

    row_order: ClassVar[Order] = "shuffled"
    max_processes: ClassVar[int | None] = None

    @property
    def packs(self) -> bool:
        """True if a row may hold several documents."""
        return self.row_order != "bucketed"

    @property
    def lighter(self) -> str:
        """A setting that takes less memory, for error messages; empty if none is known."""
        return ""

    def rows(self, corpus: Corpus, documents: np.ndarray, *, length: int, seed: int) -> Rows:
        """Training rows of at most ``length`` tokens: documents packed one after the other."""
        return PackedRows(corpus, documents, length=length)

    def target_length(self, length: int) -> int:
        """Most tokens that the decoder predicts for a row of ``length``; 0: there is no decoder."""
        return 0


class Objective(nn.Module):
    """Interface of pretraining objectives: a model and the loss of a batch.

    Args:
        model: trained in place.
        config: describes ``model``.
    """

    def __init__(self, model: Model, config: ModelConfig) -> None:
        super().__init__()
        self.model, self.config = model, config

    def forward(self, batch: Batch) -> Loss:
        """Loss terms, named as in ``Batch.targets``."""
        raise NotImplementedError

    def export_model(self) -> tuple[Model, ModelConfig]:
        """Model to save after training, with its config."""
        return self.model, self.config


@dataclass(frozen=True)
class ClassifierOutput:
    """Logits of a batch and their loss.

    Attributes:
        hidden: (sequences, seq, hidden) hidden states that the head reads.
        logits: (texts, labels) float32.
        loss: terms; ``loss`` is that of the labels.
    """

    hidden: Tensor
    logits: Tensor
    loss: Loss


class HasLogits(Protocol):
    """Interface of objectives that predict labels for texts; a `torch.nn.Module`."""

    @property
    def model(self) -> Model:
        """Trained model."""

    def logits(self, batch: Batch) -> Tensor:
        """(texts, labels) float32."""

    def output(self, batch: Batch) -> ClassifierOutput:
        """Logits with hidden states and loss."""

    def export_model(self) -> tuple[Model, ModelConfig]:
        """Model to save after training, with its config."""


@dataclass(frozen=True)
class WithTargetCounts:
    """A collate that counts the targets of further terms: as many as of the term named, or of rows where none is."""

    collate: Collate
    terms: Mapping[str, str | None]

    def __call__(self, rows: Sequence[Row], row_seeds: Sequence[RowSeed]) -> Batch:
        """The batch of ``collate``."""
        batch = self.collate(rows, row_seeds)
        added = {
            name: float(batch.num_rows) if like is None else batch.targets[like] for name, like in self.terms.items()
        }
        return replace(batch, targets=batch.targets | added)
