"""Two-tower retrieval: one encoder reads two documents separately, a head compares their vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from homespun.batch import Batch, Loss, RowSeed
from homespun.config import Config
from homespun.data.labels import Labels
from homespun.data.rows import Row, pad
from homespun.models.config import ModelConfig
from homespun.models.encoder import initialise
from homespun.models.model import Model
from homespun.tasks.head_training import ClassLoss, check_first_token


class Retrieval(Config):
    """Classification of a pair of documents by their vectors alone (Tay et al. 2021, section 2.2.3)."""

    kind: Literal["retrieval"] = "retrieval"
    hidden_size: int = Field(default=512, ge=2, description="of the head's first layer; the second has half of it")

    def collate(self, pad_id: int, labels: Labels) -> RetrievalCollate:
        """Collate rows of two documents."""
        return RetrievalCollate(pad_id)

    def build(self, model: Model, config: ModelConfig, labels: Labels) -> RetrievalObjective:
        """Put a new head on the encoder of ``model``, which is shared, not copied; ``config`` is its config.

        Raises:
            UserError: the encoder is causal.
        """
        check_first_token("objective.kind=retrieval", config, hint="use a bidirectional one")
        head = TwoTowerHead(model.backbone.hidden_size, self.hidden_size, len(labels))
        initialise(head.modules(), config.backbone.initializer_range)
        return RetrievalObjective(Model(model.backbone, head), config)


class TwoTowerHead(nn.Module):
    """Head on the first vectors x and y of two texts: ``[x, y, x * y, x - y]``, two ReLU layers, logits.

    The first half of the rows are first texts, the second half their partners:
    (2 * pairs, seq, hidden) -> (pairs, labels).
    """

    def __init__(self, hidden_size: int, width: int, num_labels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4 * hidden_size, width),
            nn.ReLU(),
            nn.Linear(width, width // 2),
            nn.ReLU(),
            nn.Linear(width // 2, num_labels),
        )

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        first, second = hidden[:, 0].chunk(2)  # (pairs, hidden) each
        return self.layers(torch.cat([first, second, first * second, first - second], dim=1))


@dataclass(frozen=True)
class RetrievalCollate:
    """Collate rows of two documents to a `Batch` of twice as many rows: first documents, then second ones."""

    pad_id: int

    def __call__(self, rows: Sequence[Row], row_seeds: Sequence[RowSeed]) -> Batch:
        """Collate; ``labels`` are (pairs,) classes, ``row_seeds`` are not used."""
        towers = [Row(row.input_ids[row.documents == document]) for document in (0, 1) for row in rows]
        labels = torch.from_numpy(np.array([row.label for row in rows], dtype=np.int64))
        targets = {"loss": float(len(rows)), "accuracy": float(len(rows))}
        return replace(pad(towers, self.pad_id), labels=labels, targets=targets)


class RetrievalObjective(nn.Module):
    """Cross-entropy of the class of a pair, and its accuracy (weight 0)."""

    def __init__(self, model: Model, config: ModelConfig) -> None:
        super().__init__()
        self.model = model
        self.config = config
        self.loss = ClassLoss()

    def forward(self, batch: Batch) -> Loss:
        """Compute the terms ``loss`` (weight 1) and ``accuracy`` (weight 0)."""
        if batch.labels is None:
            raise ValueError("retrieval needs a batch with labels")
        logits: Tensor = self.model(batch.input_ids, **batch.context).float()  # (pairs, classes)
        return self.loss(logits, batch.labels)

    def export_model(self) -> tuple[Model, ModelConfig]:
        """Export the encoder, without the head for pairs."""
        return Model(self.model.backbone), self.config
