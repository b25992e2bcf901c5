"""Shared parts of fine-tuning objectives: new heads, class weights, cross-entropy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from homespun.batch import Batch, Loss, Term
from homespun.data.labels import Labels
from homespun.data.long_inputs import LongInputs
from homespun.errors import UserError, nearest
from homespun.models.bundle import ModelBundle
from homespun.models.composite_heads import ChunkPoolHeadConfig, LayerCount, Layers, on_layers
from homespun.models.config import HeadConfig, ModelConfig
from homespun.models.encoder import initialise
from homespun.models.heads import HeadSettings
from homespun.models.model import Model
from homespun.models.sequence_heads import SequenceHeadConfig
from homespun.objectives.protocol import ClassifierOutput, Objective
from homespun.tasks.protocol import TaskObjective, check_length
from homespun.tasks.texts import TextsData


class TextHeadSettings(Protocol):
    """Interface of objectives with a head on texts."""

    head: SequenceHeadConfig
    layers: Layers
    last_layers: LayerCount


def build_text_head(
    objective: TextHeadSettings, model: Model, config: ModelConfig, num_labels: int, long_inputs: LongInputs
) -> tuple[nn.Module, ModelConfig]:
    """Build a new head on texts, and the config of the model with it.

    The layers of ``long_inputs`` over the chunks of a text, if any, become part of the head.

    Raises:
        UserError: the head reads the first token of a causal model.
    """
    check_head(objective.head, config)
    head: SequenceHeadConfig = objective.head.model_copy(update={"num_labels": num_labels})
    chunks, layers = long_inputs.chunks, long_inputs.layers
    pooled = ChunkPoolHeadConfig(head=head, chunks=chunks, layers=layers) if layers else head
    head_config = on_layers(pooled, objective.layers, objective.last_layers)
    return _build(head_config, model, config)


def build_token_head(
    head: HeadConfig, layers: Layers, model: Model, config: ModelConfig, num_labels: int | None = None
) -> tuple[Model, ModelConfig]:
    """Build a new head on the tokens of ``model``, which is modified in place."""
    if num_labels is not None:
        head = head.model_copy(update={"num_labels": num_labels})
    built, config = _build(on_layers(head, layers), model, config)
    return Model(model.backbone, built, reader=config.reader), config


def _build(head_config: HeadSettings, model: Model, config: ModelConfig) -> tuple[nn.Module, ModelConfig]:
    head = head_config.build(model.backbone)
    initialise(head.modules(), config.backbone.initializer_range)
    return head, config.model_copy(update={"head": head_config})


def check_head(head: SequenceHeadConfig, config: ModelConfig) -> None:
    """Raise `UserError` for a head on the first token of a causal model; see `check_first_token`."""
    if head.reads_first_token:
        hint = "set objective.head.kind=last, mean, cnn or bilstm, or take the recipe classify-cnn"
        check_first_token(f"objective.head.kind={head.kind}", config, hint=hint)


def check_text_head(objective: TextHeadSettings, data: TextsData, stored: ModelBundle) -> None:
    """Raise `UserError` for texts longer than the model, and for a head on the first token of a causal model."""
    chunks = ", and read longer texts with data.truncation.kind=chunk_mean" if data.kind == "texts" else ""
    check_length("max_length", data.max_length, stored.config.backbone.max_position_embeddings, chunks)
    check_head(objective.head, stored.config)


def check_first_token(setting: str, config: ModelConfig, *, hint: str) -> None:
    """Raise `UserError` for ``setting``, which reads the first token, and a causal model; ``hint`` ends the message."""
    if not config.backbone.has_decoder and config.backbone.causal:
        raise UserError(
            f"{setting} reads [CLS], the first token, which in a causal model attends only to itself; {hint}"
        )


ClassWeight = Annotated[float, Field(gt=0)]


class ClassTraining(TaskObjective):
    """Settings of objectives on classes. Subclasses add a head."""

    frozen: bool = Field(default=False, description="train only the head")
    class_weights: Literal["balanced"] | dict[str, ClassWeight] | None = Field(
        default=None, description="weight of each class in the loss, by name; balanced: by inverse frequency"
    )
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)

    def weights(self, labels: Labels, targets: NDArray[np.int64]) -> tuple[float, ...] | None:
        """Compute the weight of each class, in the order of ``labels``, from the ``targets`` of the training rows.

        ``balanced`` is as in `balanced_weights`. In multi-label training, the positives of each label have the same
        total weight as its negatives. Classes without a weight have 1.

        Raises:
            UserError: a weight for an unknown class.
        """
        if self.class_weights is None:
            return None
        if isinstance(self.class_weights, Mapping):
            for name in self.class_weights:
                if name not in labels.names:
                    raise UserError(f"class_weights has no class {name!r}{nearest(name, labels.names)}")
            return tuple(self.class_weights.get(name, 1.0) for name in labels.names)
        if not labels.multi_label:
            return balanced_weights(targets, len(labels))
        rows, positives = len(targets), targets.sum(axis=0).clip(min=1)
        return tuple(((rows - positives) / positives).clip(min=1 / rows).tolist())


def balanced_weights(targets: NDArray[np.int64], classes: int) -> tuple[float, ...]:
    """Return ``rows / (classes * rows of the class)`` for each class of (rows,) ``targets``, as in scikit-learn."""
    return tuple((len(targets) / (classes * np.bincount(targets, minlength=classes).clip(min=1))).tolist())


def count_targets(labels: Sequence[int] | NDArray[np.int64], weights: tuple[float, ...] | None) -> dict[str, float]:
    """Return the targets of the terms of `ClassLoss` for (rows,) classes: their weight, and their number."""
    rows = float(len(labels))
    return {"loss": rows if weights is None else float(np.array(weights)[labels].sum()), "accuracy": rows}


class ClassLoss(nn.Module):
    """Cross-entropy of one class per text, sentence or token, and its accuracy.

    With class weights the mean is weighted, as in `torch.nn.CrossEntropyLoss`.

    Args:
        weights: (classes,) weights; ``None``: all 1.
        label_smoothing: as in `torch.nn.CrossEntropyLoss`.
        smooth_evaluation: apply label smoothing in evaluation mode too, as for texts and sentences but not for tokens.
    """

    class_weights: Tensor | None

    def __init__(
        self, weights: Sequence[float] | None = None, label_smoothing: float = 0.0, *, smooth_evaluation: bool = True
    ) -> None:
        super().__init__()
        self.register_buffer("class_weights", None if weights is None else torch.tensor(weights), persistent=False)
        self.label_smoothing = label_smoothing
        self.smooth_evaluation = smooth_evaluation

    def forward(self, logits: Tensor, labels: Tensor) -> Loss:
        """Compute ``loss`` and ``accuracy`` (weight 0) from (rows, classes) logits and (rows,) classes."""
        smoothing = self.label_smoothing if self.training or self.smooth_evaluation else 0.0
        loss = F.cross_entropy(logits, labels, weight=self.class_weights, label_smoothing=smoothing, reduction="sum")
        count = len(labels) if self.class_weights is None else self.class_weights[labels].sum()
        right = (logits.argmax(dim=1) == labels).sum().float()
        return Loss({"loss": Term(loss, count), "accuracy": Term(right, len(labels), weight=0.0)})

    def multi_label(self, logits: Tensor, labels: Tensor) -> Loss:
        """Compute the terms by binary cross-entropy; ``accuracy`` requires all labels of a row to be right.

        Both tensors are (rows, classes), with labels 0 and 1. Class weights are weights of the positives, as in
        `torch.nn.BCEWithLogitsLoss`.
        """
        smoothed = labels.float() * (1 - self.label_smoothing) + self.label_smoothing / 2
        loss = F.binary_cross_entropy_with_logits(logits, smoothed, pos_weight=self.class_weights, reduction="sum")
        right = ((logits > 0) == labels.bool()).all(dim=1).sum().float()
        return Loss({"loss": Term(loss, labels.numel()), "accuracy": Term(right, len(labels), weight=0.0)})


class FineTuningLoss(Objective):
    """Base of fine-tuning losses; with ``frozen`` the backbone is not trained and stays in evaluation mode."""

    def __init__(self, model: Model, config: ModelConfig, *, frozen: bool = False) -> None:
        super().__init__(model, config)
        if frozen:
            model.freeze(model.backbone)

    def export_model(self) -> tuple[Model, ModelConfig]:
        """Return the trained model, without cached features, and its config."""
        model = self.model
        reader = self.config.reader
        return Model(model.backbone, model.head, reader=reader, special_tokens=model.special_tokens), self.config


class TextLoss(FineTuningLoss, ABC):
    """Base of losses of a head on texts; implements `homespun.objectives.protocol.HasLogits`."""

    def forward(self, batch: Batch) -> Loss:
        return self.output(batch).loss

    def logits(self, batch: Batch) -> Tensor:
        """Compute (texts, labels) float32 logits."""
        return self._logits(self.model.read(batch.input_ids, batch.context), batch)

    def output(self, batch: Batch) -> ClassifierOutput:
        """Compute hidden states, logits and loss.

        Raises:
            ValueError: the batch has no labels.
        """
        if batch.labels is None:
            raise ValueError("fine-tuning needs a batch with labels")
        hidden = self.model.read(batch.input_ids, batch.context)
        logits = self._logits(hidden, batch)
        return ClassifierOutput(hidden, logits, self.compute(hidden, logits, batch, batch.labels))

    def _logits(self, hidden: Tensor, batch: Batch) -> Tensor:
        assert self.model.head is not None
        return self.model.head(hidden, batch.attention_mask, batch.chunks).float()

    @abstractmethod
    def compute(self, hidden: Tensor, logits: Tensor, batch: Batch, labels: Tensor) -> Loss:
        """Compute the loss from (sequences, seq, hidden) hidden states and (texts, labels) logits."""
