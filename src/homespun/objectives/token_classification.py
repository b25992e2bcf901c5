"""Fine-tuning to tag words: a class for the first piece of each (Devlin et al. 2019, section 5.3)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from homespun.batch import Batch, Loss, RowSeed
from homespun.data.labels import Labels
from homespun.data.loader import Collate
from homespun.data.padding import pad
from homespun.data.rows import Row
from homespun.data.token_labels import IGNORE_INDEX
from homespun.models.config import ModelConfig
from homespun.models.model import Model
from homespun.models.scalar_mix import Layers
from homespun.models.token_heads import TokenClassificationHeadConfig
from homespun.objectives.head_training import ClassLoss, ClassTraining, build_token_head
from homespun.objectives.mlm import gather_positions


class TokenClassification(ClassTraining):
    """A tag for each word, by cross entropy over its first piece."""

    kind: Literal["tagging"] = "tagging"
    head: TokenClassificationHeadConfig = TokenClassificationHeadConfig()
    layers: Layers = "last"

    def collate(self, pad_id: int, *, weights: tuple[float, ...] | None = None) -> Collate:
        """The data side; ``weights`` as given to `build`."""
        return TokenClassificationCollator(pad_id, weights)

    def build(
        self, model: Model, config: ModelConfig, labels: Labels, *, weights: tuple[float, ...] | None = None
    ) -> TokenClassificationObjective:
        """A new head on the backbone of ``model``, which is taken over, not copied; ``config`` is its config."""
        head = self.head.model_copy(update={"num_labels": len(labels)})
        model, config = build_token_head(head, self.layers, model, config)
        loss = ClassLoss(weights, self.label_smoothing, smooth_evaluation=False)
        return TokenClassificationObjective(model, config, loss, frozen=self.frozen)


@dataclass(frozen=True)
class TokenClassificationCollator:
    """Rows whose ``label`` is (tokens,) to a `Batch` with ``positions`` and ``labels`` of the tokens that have one."""

    pad_id: int
    weights: tuple[float, ...] | None = None

    def __call__(self, rows: Sequence[Row], row_seeds: Sequence[RowSeed]) -> Batch:
        """Nothing is random here."""
        batch = pad(rows, self.pad_id)
        table = np.full(batch.input_ids.shape, IGNORE_INDEX, dtype=np.int64)
        for table_row, row in zip(table, rows, strict=True):
            if isinstance(row.label, np.ndarray):
                table_row[: len(row.label)] = row.label
        flat = table.ravel()
        positions = np.flatnonzero(flat != IGNORE_INDEX)
        labels = flat[positions]
        count = float(len(labels)) if self.weights is None else float(np.array(self.weights)[labels].sum())
        return dataclasses.replace(
            batch,
            positions=torch.from_numpy(positions),
            labels=torch.from_numpy(labels),
            targets={"loss": count, "accuracy": float(len(labels))},
        )


class TokenClassificationObjective(nn.Module):
    """Terms ``loss`` and ``accuracy`` (weight 0) over the words. The head runs only where there is a label."""

    def __init__(self, model: Model, config: ModelConfig, loss: ClassLoss, *, frozen: bool = False) -> None:
        super().__init__()
        self.model = model
        self.config = config
        self.loss = loss
        if frozen:
            self.model.freeze(self.model.backbone)

    def forward(self, batch: Batch) -> Loss:
        """The terms of `ClassLoss`."""
        if batch.labels is None or batch.positions is None:
            raise ValueError("tagging needs a batch with labels and their positions")
        assert self.model.head is not None
        hidden = self.model.read(batch.input_ids, batch.context)
        logits: Tensor = self.model.head(gather_positions(hidden, batch.positions)).float()  # (words, tags)
        terms: Loss = self.loss(logits, batch.labels)
        return terms

    def export_model(self) -> tuple[Model, ModelConfig]:
        """All of it."""
        return self.model, self.config
