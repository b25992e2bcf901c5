"""Shared by the fine-tuning objectives: a new head on a pretrained model, class weights, and the loss of one class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from homespun.batch import Loss, Term
from homespun.config import Config
from homespun.data.labels import Labels
from homespun.data.long_inputs import LongInputs
from homespun.errors import UserError, nearest
from homespun.models.chunk_pool import ChunkPoolHeadConfig
from homespun.models.config import HeadConfig, ModelConfig
from homespun.models.encoder import initialise
from homespun.models.encoder_decoder import EncoderDecoderConfig
from homespun.models.last_layers import LayerCount
from homespun.models.model import Model
from homespun.models.scalar_mix import Layers, on_layers
from homespun.models.sequence_heads import SequenceHeadConfig, reads_first


class HasTextHead(Protocol):
    """Objective with a head on whole texts."""

    head: SequenceHeadConfig
    layers: Layers
    last_layers: LayerCount


def build_text_head(
    objective: HasTextHead, model: Model, config: ModelConfig, num_labels: int, long_inputs: LongInputs
) -> tuple[nn.Module, ModelConfig]:
    """Build a new head on whole texts, and the config of the model with it.

    Layers over the chunks of long texts, where ``long_inputs`` has any, become part of the head.

    Raises:
        UserError: the head reads the first token, and the model is causal.
    """
    check_head(objective.head, config)
    own: SequenceHeadConfig = objective.head.model_copy(update={"num_labels": num_labels})
    chunks, above = long_inputs.chunks, long_inputs.layers
    pooled = ChunkPoolHeadConfig(head=own, chunks=chunks, layers=above) if above else own
    head_config = on_layers(pooled, objective.layers, objective.last_layers)
    return _build(head_config, model, config)


def build_token_head(head: HeadConfig, layers: Layers, model: Model, config: ModelConfig) -> tuple[Model, ModelConfig]:
    """Put a new head on the tokens of ``model``, which is taken over, not copied; ``config`` is its config."""
    built, config = _build(on_layers(head, layers), model, config)
    return Model(model.backbone, built, reader=config.reader), config


def _build(head_config: HeadConfig, model: Model, config: ModelConfig) -> tuple[nn.Module, ModelConfig]:
    head = head_config.build(model.backbone)
    initialise(head.modules(), config.backbone.initializer_range)
    return head, config.model_copy(update={"head": head_config})


def check_head(head: SequenceHeadConfig, config: ModelConfig) -> None:
    """Whether what a head goes by can say anything of a text.

    Raises:
        UserError: see `check_first_token`.
    """
    if reads_first(head):
        way_out = "set objective.head.kind=last, mean, cnn or bilstm, or take the recipe classify-cnn"
        check_first_token(f"objective.head.kind={head.kind}", config, way_out=way_out)


def check_first_token(what: str, config: ModelConfig, *, way_out: str) -> None:
    """Whether the vector of the first token can say anything of a text.

    Raises:
        UserError: it cannot, as the stack is causal: no other token is read there.
    """
    if not isinstance(config.backbone, EncoderDecoderConfig) and config.backbone.causal:
        raise UserError(
            f"{what} goes by the vector of [CLS], the first token, where a causal model has read nothing of the text; "
            f"{way_out}"
        )


ClassWeight = Annotated[float, Field(gt=0)]


class ClassTraining(Config):
    """Settings of objectives that learn classes; a subclass adds its head."""

    frozen: bool = Field(default=False, description="train the head alone; the encoder stays as it is")
    class_weights: Literal["balanced"] | dict[str, ClassWeight] | None = Field(
        default=None, description="weight of each class in the loss, by name; balanced: by inverse frequency"
    )
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)

    def weights(self, labels: Labels, targets: NDArray[np.int64]) -> tuple[float, ...] | None:
        """The weight of each class, in the order of ``labels``; ``targets`` are those of the training rows.

        ``balanced`` gives every class the same say, ``rows / (classes * rows of the class)`` as scikit-learn does;
        of several labels a text, each label's positives weigh as much as its negatives. Classes not named weigh 1.

        Raises:
            UserError: a weight for a class that is not there.
        """
        if self.class_weights is None:
            return None
        if isinstance(self.class_weights, Mapping):
            for name in self.class_weights:
                if name not in labels.names:
                    raise UserError(f"class_weights has no class {name!r}{nearest(name, labels.names)}")
            return tuple(self.class_weights.get(name, 1.0) for name in labels.names)
        rows, classes = len(targets), len(labels)
        if labels.multi_label:
            positives = targets.sum(axis=0).clip(min=1)
            return tuple(((rows - positives) / positives).clip(min=1 / rows).tolist())
        counts = np.bincount(targets, minlength=classes).clip(min=1)
        return tuple((rows / (classes * counts)).tolist())


class ClassLoss(nn.Module):
    """Cross-entropy of one class per text, sentence or token, with the accuracy.

    With class weights the mean is a weighted one, as in `torch.nn.CrossEntropyLoss`.

    Args:
        weights: (classes,) weights; ``None``: all alike.
        label_smoothing: as in `torch.nn.CrossEntropyLoss`.
        smooth_evaluation: smooth in evaluation mode too. Objectives differ: those of texts and of sentences do, that of
            tags does not.
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
        """Terms ``loss`` and ``accuracy`` (weight 0) of (rows, classes) logits and (rows,) classes."""
        smoothing = self.label_smoothing if self.training or self.smooth_evaluation else 0.0
        loss = F.cross_entropy(logits, labels, weight=self.class_weights, label_smoothing=smoothing, reduction="sum")
        count = len(labels) if self.class_weights is None else self.class_weights[labels].sum()
        right = (logits.argmax(dim=1) == labels).sum().float()
        return Loss({"loss": Term(loss, count), "accuracy": Term(right, len(labels), weight=0.0)})

    def multi_label(self, logits: Tensor, labels: Tensor) -> Loss:
        """The terms of (rows, classes) zeros and ones, by binary cross-entropy; ``accuracy``: the whole row is right.

        Class weights are those of the positives, as in `torch.nn.BCEWithLogitsLoss`.
        """
        smooth = labels.float() * (1 - self.label_smoothing) + self.label_smoothing / 2
        loss = F.binary_cross_entropy_with_logits(logits, smooth, pos_weight=self.class_weights, reduction="sum")
        right = ((logits > 0) == labels.bool()).all(dim=1).sum().float()
        return Loss({"loss": Term(loss, labels.numel()), "accuracy": Term(right, len(labels), weight=0.0)})
