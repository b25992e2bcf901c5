"""Fine-tuning to classify texts: an objective whose labels come from people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from homespun.batch import Batch, Loss, RowSeed
from homespun.config import Count
from homespun.data.labels import Labels
from homespun.data.loader import Collate
from homespun.data.long_inputs import TRUNCATE, LongInputs, pad_chunks
from homespun.data.rows import Row
from homespun.models.config import ModelConfig
from homespun.models.feature_cache import CachedEncoder
from homespun.models.last_layers import LayerCount
from homespun.models.model import Model
from homespun.models.scalar_mix import Layers, num_mixed_layers
from homespun.models.sequence_heads import FeedForwardHeadConfig, SequenceHeadConfig
from homespun.objectives import adversarial
from homespun.objectives.adversarial import (
    AdversarialObjective,
    Adversary,
    binary_symmetric_kl,
    check_not_frozen,
    symmetric_kl,
)
from homespun.objectives.auxiliary_lm import TERM, AuxiliaryLM, WithNextTokenCounts
from homespun.objectives.distillation import LabelTeacher
from homespun.objectives.head_training import ClassLoss, ClassTraining, build_text_head
from homespun.objectives.protocol import ClassifierOutput, HasLogits, WithTargetCounts
from homespun.text.tokenizer import Tokenizer


class Classification(ClassTraining):
    """One label a text by cross entropy, or several by a binary cross entropy each (as the `Labels` say).

    The head is ELECTRA's by default: it beats a bare linear layer on [CLS] where the [CLS] of the pretrained encoder
    was never trained, and costs next to nothing. ``frozen`` trains the head alone, on an encoder in evaluation mode.
    """

    kind: Literal["classification"] = "classification"
    head: SequenceHeadConfig = FeedForwardHeadConfig()
    auxiliary_lm: float = Field(
        default=0.0, ge=0, description="weight of a causal model's own loss beside (GPT: 0.5); 0: there is none"
    )
    last_layers: LayerCount = 1
    layers: Layers = "last"
    cache: str = Field(
        default="",
        description="frozen: folder for the encoder's vectors, computed once for all epochs, seeds and heads; "
        "rounded to float16. Nowhere where not given",
    )
    cache_size: Annotated[Count, Field(gt=0)] = Field(
        default=8_000_000_000, description="bytes that they may take there, such as 2G"
    )
    teacher: LabelTeacher | None = Field(default=None, description="a classifier to learn from beside the labels")
    adversarial: Adversary | None = Field(default=None, description="texts are perturbed besides (SiFT)")

    @model_validator(mode="after")
    def _check_wrappers(self) -> Classification:
        check_not_frozen(self.adversarial, frozen=self.frozen)
        if self.teacher is not None and self.teacher.cosine and (self.last_layers > 1 or self.layers != "last"):
            raise ValueError("teacher.cosine compares last layers; set last_layers=1, or teacher.cosine=0")
        return self

    @model_validator(mode="after")
    def _cached_if_frozen(self) -> Classification:
        if self.cache and not self.frozen:
            raise ValueError("cache is for the vectors of a frozen encoder; set frozen=true, or leave cache out")
        return self

    @model_validator(mode="after")
    def _check_auxiliary_lm(self) -> Classification:
        if self.auxiliary_lm and (self.frozen or self.last_layers > 1 or self.layers != "last"):
            raise ValueError(
                "auxiliary_lm trains the whole model and reads its last layer; leave out frozen and last_layers"
            )
        return self

    def collate(self, pad_id: int, labels: Labels, *, weights: tuple[float, ...] | None = None) -> Collate:
        """The data side; ``weights`` as given to `build`."""
        collate: Collate = ClassificationCollator(pad_id, labels.multi_label, weights)
        if self.auxiliary_lm:
            collate = WithNextTokenCounts(collate)
        more = {} if self.teacher is None else dict(self.teacher.terms)
        if self.adversarial is not None:
            more[adversarial.TERM] = self.adversarial.like
        return WithTargetCounts(collate, more) if more else collate

    def wrap(self, objective: ClassificationObjective, tokenizer: Tokenizer, labels: Labels) -> Any:
        """What `build` gave, with an adversary and a teacher where there are any: a module that is `HasLogits`.

        Raises:
            UserError: a teacher that cannot be opened, or that does not fit.
        """
        wrapped: HasLogits = objective
        if self.adversarial is not None:
            distance = binary_symmetric_kl if labels.multi_label else symmetric_kl
            wrapped = AdversarialObjective(wrapped, self.adversarial, distance)
        return wrapped if self.teacher is None else self.teacher.wrap(wrapped, tokenizer, labels)

    def build(
        self,
        model: Model,
        config: ModelConfig,
        labels: Labels,
        *,
        weights: tuple[float, ...] | None = None,
        long_inputs: LongInputs = TRUNCATE,
    ) -> ClassificationObjective:
        """A new head on the encoder of ``model``, which is taken over, not copied; ``config`` is its config.

        ``long_inputs`` is how the texts are read: its layers over chunks, where it has any, become part of the head.

        Raises:
            UserError: the head goes by the first token, and the stack is causal.
        """
        auxiliary = AuxiliaryLM.of(model, config, self.auxiliary_lm) if self.auxiliary_lm else None
        head, config = build_text_head(self, model, config, len(labels), long_inputs)
        reader = config.reader
        if self.cache:
            count = self.last_layers if self.layers == "last" else num_mixed_layers(model.backbone)
            width = count * model.backbone.hidden_size
            reader = CachedEncoder.of(
                reader, model.backbone, config.backbone, self.cache, width=width, limit=self.cache_size
            )
        return ClassificationObjective(
            Model(model.backbone, head, reader=reader),
            config,
            multi_label=labels.multi_label,
            frozen=self.frozen,
            weights=weights,
            label_smoothing=self.label_smoothing,
            auxiliary=auxiliary,
        )


@dataclass(frozen=True)
class ClassificationCollator:
    """Labelled rows -> a `Batch` padded to its longest sequence. Nothing is random here."""

    pad_id: int
    multi_label: bool
    weights: tuple[float, ...] | None = None

    def __call__(self, rows: Sequence[Row], row_seeds: Sequence[RowSeed]) -> Batch:
        """``labels`` are (texts,) classes, or (texts, classes) zeros and ones."""
        labels = torch.from_numpy(np.array([row.label for row in rows], dtype=np.int64))
        if self.multi_label:
            count = float(labels.numel())
        elif self.weights is None:
            count = float(len(rows))
        else:
            count = sum(self.weights[label] for label in labels.tolist())
        targets = {"loss": count, "accuracy": float(len(rows))}
        return replace(pad_chunks(rows, self.pad_id), labels=labels, targets=targets)


class ClassificationObjective(nn.Module):
    """`ClassLoss` of each text, over one class or over several.

    The term ``accuracy`` is reported only: the share of texts whose class, or whose whole set of labels (those above a
    probability of one half), is right.
    """

    def __init__(
        self,
        model: Model,
        config: ModelConfig,
        *,
        multi_label: bool = False,
        frozen: bool = False,
        weights: Sequence[float] | None = None,
        label_smoothing: float = 0.0,
        auxiliary: AuxiliaryLM | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.config = config
        self.multi_label = multi_label
        self.loss = ClassLoss(weights, label_smoothing)
        self.auxiliary = auxiliary
        if frozen:
            self.model.freeze(self.model.backbone)

    def forward(self, batch: Batch) -> Loss:
        """Terms ``loss`` (weight 1) and ``accuracy`` (weight 0), and ``causal`` with an auxiliary language model."""
        return self.output(batch).loss

    def output(self, batch: Batch) -> ClassifierOutput:
        """The loss, and what it is made of."""
        if batch.labels is None:
            raise ValueError("classification needs a batch with labels")
        hidden = self.model.read(batch.input_ids, batch.context)
        logits = self._logits(hidden, batch)
        loss: Loss = (self.loss.multi_label if self.multi_label else self.loss)(logits, batch.labels)
        if self.auxiliary is not None:
            loss = Loss(loss.terms | {TERM: self.auxiliary(hidden, batch)})
        return ClassifierOutput(hidden, logits, loss)

    def logits(self, batch: Batch) -> Tensor:
        """(texts, classes) float32."""
        return self._logits(self.model.read(batch.input_ids, batch.context), batch)

    def _logits(self, hidden: Tensor, batch: Batch) -> Tensor:
        assert self.model.head is not None
        logits: Tensor = self.model.head(hidden, batch.attention_mask, batch.chunks).float()
        return logits

    def export_model(self) -> tuple[Model, ModelConfig]:
        """The classifier, which is the whole of what was trained; it remembers no vectors."""
        return Model(self.model.backbone, self.model.head, reader=self.config.reader), self.config
