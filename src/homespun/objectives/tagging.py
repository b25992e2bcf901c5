"""Fine-tuning to tag words: a class for the first piece of each (Devlin et al. 2019, section 5.3)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from homespun.batch import Batch, Draw, Loss, Term
from homespun.config import Config
from homespun.data.labelled import Labels
from homespun.data.loader import Collate
from homespun.data.padding import pad
from homespun.data.rows import Row
from homespun.data.tagged import NONE
from homespun.models.config import ModelConfig
from homespun.models.encoder import initialise
from homespun.models.model import Model
from homespun.models.scalar_mix import Layers, on_layers
from homespun.models.token_heads import TokenClassificationHeadConfig
from homespun.objectives.masked import at
from homespun.objectives.supervised import Classification, ClassWeight


class Tagging(Config):
    """A tag for each word, by cross entropy over its first piece."""

    kind: Literal["tagging"] = "tagging"
    head: TokenClassificationHeadConfig = TokenClassificationHeadConfig()
    frozen: bool = Field(default=False, description="train the head alone; the encoder stays as it is")
    layers: Layers = "last"
    class_weights: Literal["balanced"] | dict[str, ClassWeight] | None = Field(
        default=None, description="weight of each tag in the loss, by name; balanced: by inverse frequency"
    )
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)

    def weights(self, labels: Labels, targets: NDArray[np.int64]) -> tuple[float, ...] | None:
        """The weight of each tag, as those of the classes of texts; ``targets`` are (words,) of the training.

        Raises:
            UserError: a weight for a tag that is not there.
        """
        return Classification(class_weights=self.class_weights).weights(labels, targets)

    def collate(self, pad_id: int, *, weights: tuple[float, ...] | None = None) -> Collate:
        """The data side; ``weights`` as given to `build`."""
        return TaggingCollate(pad_id, weights)

    def build(
        self, model: Model, config: ModelConfig, labels: Labels, *, weights: tuple[float, ...] | None = None
    ) -> TaggingObjective:
        """A new head on the backbone of ``model``, which is taken over, not copied; ``config`` is its config."""
        own = on_layers(self.head.model_copy(update={"num_labels": len(labels)}), self.layers)
        head = own.build(model.backbone)
        initialise(head.modules(), config.backbone.initializer_range)
        config = config.model_copy(update={"head": own})
        return TaggingObjective(
            Model(model.backbone, head, reader=config.reader),
            config,
            frozen=self.frozen,
            weights=weights,
            label_smoothing=self.label_smoothing,
        )


@dataclass(frozen=True)
class TaggingCollate:
    """Rows whose ``label`` is (tokens,) to a `Batch` with ``positions`` and ``labels`` of the tokens that have one."""

    pad_id: int
    weights: tuple[float, ...] | None = None

    def __call__(self, rows: Sequence[Row], draws: Sequence[Draw]) -> Batch:
        """Nothing is random here."""
        batch = pad(rows, self.pad_id)
        table = np.full(batch.input_ids.shape, NONE, dtype=np.int64)
        for place, row in zip(table, rows, strict=True):
            if isinstance(row.label, np.ndarray):
                place[: len(row.label)] = row.label
        flat = table.ravel()
        positions = np.flatnonzero(flat != NONE)
        labels = flat[positions]
        count = float(len(labels)) if self.weights is None else float(np.array(self.weights)[labels].sum())
        return dataclasses.replace(
            batch,
            positions=torch.from_numpy(positions),
            labels=torch.from_numpy(labels),
            targets={"loss": count, "accuracy": float(len(labels))},
        )


class TaggingObjective(nn.Module):
    """Terms ``loss`` and ``accuracy`` (weight 0) over the words. The head runs only where there is a label."""

    class_weights: Tensor | None

    def __init__(
        self,
        model: Model,
        config: ModelConfig,
        *,
        frozen: bool = False,
        weights: Sequence[float] | None = None,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        self.model = model
        self.config = config
        self.label_smoothing = label_smoothing
        self.register_buffer("class_weights", None if weights is None else torch.tensor(weights), persistent=False)
        if frozen:
            self.model.freeze(self.model.backbone)

    def forward(self, batch: Batch) -> Loss:
        """With class weights the mean is a weighted one, as in `torch.nn.CrossEntropyLoss`."""
        if batch.labels is None or batch.positions is None:
            raise ValueError("tagging needs a batch with labels and their positions")
        assert self.model.head is not None
        hidden = self.model.read(batch.input_ids, batch.context)
        logits: Tensor = self.model.head(at(hidden, batch.positions)).float()  # (words, tags)
        labels = batch.labels
        smoothing = self.label_smoothing if self.training else 0.0
        loss = F.cross_entropy(logits, labels, weight=self.class_weights, label_smoothing=smoothing, reduction="sum")
        count = len(labels) if self.class_weights is None else self.class_weights[labels].sum()
        right = (logits.argmax(dim=1) == labels).sum().float()
        return Loss({"loss": Term(loss, count), "accuracy": Term(right, len(labels), weight=0.0)})

    def export_model(self) -> tuple[Model, ModelConfig]:
        """All of it."""
        return self.model, self.config
