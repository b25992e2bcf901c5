"""What may stand around a fine-tuning objective, a teacher or an adversary, asks of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from homespun.batch import Batch, Loss, RowSeed
from homespun.data.loader import Collate
from homespun.data.rows import Row
from homespun.models.config import ModelConfig
from homespun.models.model import Model


@dataclass(frozen=True)
class ClassifierOutput:
    """What was said of a batch, and what it costs.

    Attributes:
        hidden: (sequences, seq, hidden) vectors that the head was given.
        logits: (texts, labels) float32.
        loss: whose term ``loss`` is that of the labels.
    """

    hidden: Tensor
    logits: Tensor
    loss: Loss


class HasLogits(Protocol):
    """An objective, a `torch.nn.Module`, that answers for each text."""

    @property
    def model(self) -> Model:
        """What answers."""

    def logits(self, batch: Batch) -> Tensor:
        """(texts, labels) float32, and nothing besides."""

    def output(self, batch: Batch) -> ClassifierOutput:
        """All of it."""

    def export_model(self) -> tuple[Model, ModelConfig]:
        """What is kept when training is over."""


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
