"""Networks for text classification and regression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, Protocol, Unpack, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from homespun.data.labels import LabelledRows, Labels
from homespun.errors import UserError
from homespun.hf.open import open_for_inference
from homespun.inference.predict import embed_rows
from homespun.metrics.calibration import DecisionRule
from homespun.models.bundle import ModelBundle, save_model
from homespun.models.model import Model
from homespun.tasks.config import stored_task
from homespun.tasks.protocol import ReadOptions
from homespun.tasks.text_outputs import Floats, Outputs, choose_decision
from homespun.tasks.texts import LabelledText, TextsData, rows_of, second_texts


@runtime_checkable
class TextTask(Protocol):
    """Interface of text classification and regression tasks."""

    @property
    def data(self) -> TextsData: ...
    @property
    def labels(self) -> Labels | None: ...
    @property
    def decision(self) -> DecisionRule: ...

    def outputs(self, model: Model, rows: LabelledRows) -> Floats:
        """Compute (rows, classes) logits or (rows,) numbers."""

    def with_decision(self, decision: DecisionRule) -> TextTask:
        """Return a copy with another decision rule."""

    def to_metadata(self) -> dict[str, object]:
        """Return ``task`` of the stored model."""


@dataclass(frozen=True)
class NetworkTextModel:
    """Fine-tuned network for text classification or regression."""

    stored: ModelBundle
    task: TextTask
    kind: Literal["network"] = "network"
    members: ClassVar[Mapping[str, NetworkTextModel]] = {}
    weights: ClassVar[tuple[float, ...]] = ()

    @classmethod
    def of(cls, stored: ModelBundle, *, source: str, **options: Unpack[ReadOptions]) -> NetworkTextModel:
        """Rebuild the task of an open model. Raises `UserError` unless it is text classification or regression."""
        task = stored_task(stored, source=source, **options)
        if not isinstance(task, TextTask):
            raise UserError(f"{source} neither classifies texts nor predicts a number for each")
        return cls(stored, task)

    @property
    def data(self) -> TextsData:
        return self.task.data

    @property
    def labels(self) -> Labels | None:
        return self.task.labels

    @property
    def decision(self) -> DecisionRule:
        return self.task.decision

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.stored.model.parameters())

    @property
    def networks(self) -> tuple[ModelBundle, ...]:
        return (self.stored,)

    def outputs(self, examples: Sequence[LabelledText]) -> Outputs:
        rows = rows_of(examples, self.data, self.stored)
        return Outputs(self.task.outputs(self.stored.model, rows), rows.cut)

    def vectors(self, examples: Sequence[LabelledText]) -> NDArray[np.float32]:
        """Compute (texts, hidden) means of the hidden states of all tokens; longer texts are truncated."""
        bundle = self.stored
        rows = LabelledRows(
            [example.text for example in examples],
            None,
            bundle.tokenizer,
            length=min(self.data.max_length, bundle.config.backbone.max_position_embeddings),
            pairs=second_texts(examples),
            segments=bundle.config.has_segments,
        )
        return embed_rows(bundle.model, rows, pad_id=bundle.tokenizer.pad_id)["mean"]

    def refit(self, fit: object) -> NetworkTextModel:
        """Return the model itself."""
        return self

    def calibrate(self, values: Floats, examples: Sequence[LabelledText]) -> NetworkTextModel:
        """Return the model with temperature and thresholds chosen by its outputs on validation examples."""
        task = self.task.with_decision(choose_decision(values, examples, self.labels))
        return NetworkTextModel(replace(self.stored, task=task.to_metadata()), task)

    def save(self, folder: Path) -> None:
        stored = self.stored
        save_model(
            folder, stored.model, stored.config, stored.tokenizer, labels=self.labels, task=self.task.to_metadata()
        )


def open_network(run: str | Path, **options: Unpack[ReadOptions]) -> NetworkTextModel:
    """Open a network as `homespun.tasks.text_models.open_text_model` does."""
    return NetworkTextModel.of(open_for_inference(run), source=str(run), **options)
