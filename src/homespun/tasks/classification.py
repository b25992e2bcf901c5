"""Classification of texts and of pairs of texts, single-label or multi-label."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from homespun.baselines import majority, tfidf
from homespun.batch import Batch, Loss, RowSeed
from homespun.config import Count, validate
from homespun.data.labels import LabelledRows, Labels
from homespun.data.loader import Collate
from homespun.data.long_inputs import TRUNCATE, LongInputs, pad_chunks
from homespun.data.rows import Row
from homespun.errors import UserError
from homespun.inference.predict import predict_logits
from homespun.metrics.calibration import DEFAULT_RULE, DecisionRule
from homespun.metrics.classification import check_memory
from homespun.models.bundle import ModelBundle
from homespun.models.composite_heads import LayerCount, Layers, num_mixed_layers
from homespun.models.config import ModelConfig
from homespun.models.feature_cache import CachedEncoder
from homespun.models.model import Model
from homespun.models.sequence_heads import FeedForwardHeadConfig, SequenceHeadConfig
from homespun.objectives import adversarial
from homespun.objectives.adversarial import Adversary, check_not_frozen
from homespun.objectives.clm import AuxiliaryLM, WithNextTokenCounts
from homespun.objectives.distillation import LabelDistillation, LabelTeacher
from homespun.objectives.protocol import WithTargetCounts
from homespun.tasks.calibration import Calibration, calibrate
from homespun.tasks.head_training import (
    ClassLoss,
    ClassTraining,
    TextLoss,
    build_text_head,
    check_text_head,
    count_targets,
)
from homespun.tasks.protocol import CalibratedTask, Measured, TrainingSetup, task_metadata
from homespun.tasks.text_outputs import Outputs, class_predictions, measure_logits, output_predictions
from homespun.tasks.texts import (
    TEXT_COUNTS,
    TEXT_KINDS,
    LabelledText,
    TextsData,
    labels_of,
    readable_texts,
    rows_of,
    rows_without,
    second_texts_of_parts,
    unlabelled_rows,
)
from homespun.text.formats import Record
from homespun.text.tokenizer import Tokenizer


class Classification(ClassTraining):
    """Classification by cross-entropy, or by binary cross-entropy of each label if `Labels.multi_label`.

    The default head is ELECTRA's: it is better than a linear layer if the pretraining did not train [CLS], and costs
    little. ``frozen`` trains only the head; the encoder is then in evaluation mode.
    """

    data_kinds = TEXT_KINDS
    description = "classification"
    count_titles = TEXT_COUNTS
    metrics = ("accuracy", "macro_f1", "weighted_f1", "log_loss", "f1", "roc_auc", "pr_auc", "micro_f1", "ece")

    kind: Literal["classification"] = "classification"
    head: SequenceHeadConfig = FeedForwardHeadConfig()
    auxiliary_lm: float = Field(default=0.0, ge=0, description="weight of the language modelling loss (GPT: 0.5)")
    last_layers: LayerCount = 1
    layers: Layers = "last"
    cache: str = Field(default="", description="frozen: folder for hidden states in float16, computed once; or none")
    cache_size: Annotated[Count, Field(gt=0)] = Field(default=8_000_000_000, description="bytes of the cache, like 2G")
    teacher: LabelTeacher | None = Field(default=None, description="a classifier for distillation")
    adversarial: Adversary | None = Field(default=None, description="adversarial training (SiFT)")

    @model_validator(mode="after")
    def _check_settings(self) -> Classification:
        check_not_frozen(self.adversarial, frozen=self.frozen)
        last_only = self.last_layers == 1 and self.layers == "last"
        if self.teacher is not None and self.teacher.cosine and not last_only:
            raise ValueError("teacher.cosine compares last layers; set last_layers=1, or teacher.cosine=0")
        if self.cache and not self.frozen:
            raise ValueError("cache needs a frozen encoder; set frozen=true, or leave cache out")
        if self.auxiliary_lm and (self.frozen or not last_only):
            raise ValueError("auxiliary_lm trains all layers and reads the last; leave out frozen and last_layers")
        return self

    def task(self, data: TextsData, stored: ModelBundle, training: Sequence[LabelledText]) -> ClassificationTask:
        check_text_head(self, data, stored)
        labels = Labels.collect(labels_of(training), multi_label=data.multi_label)
        check_memory(labels, len(training))
        return ClassificationTask(data, labels, stored)

    @classmethod
    def task_from_metadata(cls, data: TextsData, stored: ModelBundle, *, source: str) -> ClassificationTask:
        """Rebuild the task of a fine-tuned model, with its calibrated decision rule."""
        labels = stored.labels
        if labels is None or "max_length" not in stored.task:
            raise UserError(
                f"{source} is not a classifier; fine-tune it first: homespun finetune classify ... --from {source}"
            )
        if stored.config.head is not None and stored.config.head.task_kind == "token_classification":
            raise UserError(
                f"{source} is a token classifier, not a text classifier; homespun.load returns the logits of its tokens"
            )
        data = data.with_labels(labels)
        decision = validate(DecisionRule, stored.task.get("decision") or {}, source=source)
        if decision.thresholds is not None and len(decision.thresholds) != len(labels):
            raise UserError(
                f"{source} has {len(decision.thresholds)} thresholds for {len(labels)} labels; fine-tune it again"
            )
        return ClassificationTask(data, labels, stored, decision=decision)

    def collate(self, pad_id: int, labels: Labels, *, weights: tuple[float, ...] | None = None) -> Collate:
        """Build the collate; ``weights`` as in `build`."""
        collate: Collate = ClassificationCollator(pad_id, labels.multi_label, weights)
        if self.auxiliary_lm:
            collate = WithNextTokenCounts(collate)
        more = {} if self.teacher is None else dict(self.teacher.terms)
        if self.adversarial is not None:
            more[adversarial.TERM] = self.adversarial.like
        return WithTargetCounts(collate, more) if more else collate

    def wrap(self, loss: ClassificationLoss, tokenizer: Tokenizer, labels: Labels) -> ClassificationModule:
        """Wrap the loss for adversarial training and distillation, if configured."""
        wrapped: ClassificationLoss | adversarial.AdversarialObjective = loss
        if self.adversarial is not None:
            distance = adversarial.binary_symmetric_kl if labels.multi_label else adversarial.symmetric_kl
            wrapped = adversarial.AdversarialObjective(wrapped, self.adversarial, distance)
        return wrapped if self.teacher is None else self.teacher.wrap(wrapped, tokenizer, labels)

    def build(
        self,
        model: Model,
        config: ModelConfig,
        labels: Labels,
        *,
        weights: tuple[float, ...] | None = None,
        long_inputs: LongInputs = TRUNCATE,
    ) -> ClassificationLoss:
        """Build a new head on the encoder of ``model``, which is modified in place.

        The layers of ``long_inputs`` over the chunks of a text, if any, become part of the head.

        Raises:
            UserError: the head reads the first token of a causal model.
        """
        auxiliary = AuxiliaryLM.of(model, config, self.auxiliary_lm) if self.auxiliary_lm else None
        head, config = build_text_head(self, model, config, len(labels), long_inputs)
        reader = config.reader
        if self.cache and not any(parameter.is_meta for parameter in model.parameters()):  # without weights: a check
            count = self.last_layers if self.layers == "last" else num_mixed_layers(model.backbone)
            width = count * model.backbone.hidden_size
            reader = CachedEncoder.of(
                reader, model.backbone, config.backbone, self.cache, width=width, limit=self.cache_size
            )
        return ClassificationLoss(
            Model(model.backbone, head, reader=reader),
            config,
            ClassLoss(weights, self.label_smoothing),
            multi_label=labels.multi_label,
            frozen=self.frozen,
            auxiliary=auxiliary,
        )


@dataclass(frozen=True)
class ClassificationCollator:
    """Collate labelled rows, padded to the longest sequence; deterministic."""

    pad_id: int
    multi_label: bool
    weights: tuple[float, ...] | None = None

    def __call__(self, rows: Sequence[Row], row_seeds: Sequence[RowSeed]) -> Batch:
        """Build a batch whose ``labels`` are (texts,) classes, or (texts, classes) zeros and ones."""
        labels = np.array([row.label for row in rows], dtype=np.int64)
        targets = count_targets(labels, None if self.multi_label else self.weights)
        if self.multi_label:
            targets["loss"] = float(labels.size)
        return replace(pad_chunks(rows, self.pad_id), labels=torch.from_numpy(labels), targets=targets)


class ClassificationLoss(TextLoss):
    """Compute the `ClassLoss` of each text, and the term ``causal`` of an auxiliary language model.

    ``accuracy`` (weight 0) is the share of texts with the right class, or with all labels right at a threshold of 0.5.
    """

    def __init__(
        self,
        model: Model,
        config: ModelConfig,
        loss: ClassLoss,
        *,
        multi_label: bool = False,
        frozen: bool = False,
        auxiliary: AuxiliaryLM | None = None,
    ) -> None:
        super().__init__(model, config, frozen=frozen)
        self.loss = loss
        self.multi_label = multi_label
        self.auxiliary = auxiliary

    def compute(self, hidden: Tensor, logits: Tensor, batch: Batch, labels: Tensor) -> Loss:
        loss: Loss = (self.loss.multi_label if self.multi_label else self.loss)(logits, labels)
        if self.auxiliary is None:
            return loss
        return Loss(loss.terms | {"causal": self.auxiliary(hidden, batch)})


ClassificationModule = ClassificationLoss | adversarial.AdversarialObjective | LabelDistillation


class ClassificationTask:
    """Labels for texts or pairs of texts; see `homespun.tasks.protocol.Task`."""

    reported_metrics = ("accuracy", "macro_f1", "log_loss", "roc_auc")

    def __init__(
        self, data: TextsData, labels: Labels, stored: ModelBundle, *, decision: DecisionRule = DEFAULT_RULE
    ) -> None:
        self.decision = decision
        self.data = data
        self.labels = labels
        self.stored = stored
        self.tokenizer = stored.tokenizer

    def stratify_by(self, examples: Sequence[LabelledText]) -> NDArray[np.int64]:
        return self.labels.encode(labels_of(examples))

    def texts(self, examples: Sequence[LabelledText]) -> list[str]:
        return readable_texts(examples)

    def rows(self, examples: Sequence[LabelledText]) -> LabelledRows:
        return rows_of(examples, self.data, self.stored, names=self.labels)

    def training_setup(self, objective: Classification, stored: ModelBundle, training: LabelledRows) -> TrainingSetup:
        assert training.targets is not None
        weights = objective.weights(self.labels, training.targets[~training.one_sided])
        model, long_inputs = copy.deepcopy(stored.model), self.data.truncation
        loss = objective.build(model, stored.config, self.labels, weights=weights, long_inputs=long_inputs)
        module = objective.wrap(loss, self.tokenizer, self.labels)
        rows = rows_without(training, training.one_sided)
        if isinstance(module, LabelDistillation):  # the teacher may have segments that the student lacks
            rows = rows_without(training.with_segments(), training.one_sided)
            module.teacher.check_length(min(self.data.max_length, int(rows.lengths.max())))
        return TrainingSetup(
            module,
            rows,
            objective.collate(self.tokenizer.pad_id, self.labels, weights=weights),
            loss_from_metrics=lambda metrics: float(metrics["log_loss"]),
            calibrate=partial(self._calibrated, module.model),
        )

    def _calibrated(
        self, model: Model, validation: LabelledRows, settings: Calibration, batch_size: int
    ) -> CalibratedTask:
        assert validation.targets is not None
        logits = predict_logits(model, validation, pad_id=self.tokenizer.pad_id, batch_size=batch_size)
        decision, result = calibrate(logits, validation.targets, settings)
        return CalibratedTask(self.with_decision(decision), result)

    def measure(self, model: Model, rows: LabelledRows, *, batch_size: int) -> Measured:
        """Compute `classification_metrics` and ``calibration``.

        A prediction has the probabilities of all classes and its ``loss``.
        """
        assert rows.targets is not None
        check_memory(self.labels, len(rows), evaluated=True)
        return measure_logits(self.outputs(model, rows, batch_size), rows.targets, self.labels, self.decision)

    def outputs(self, model: Model, rows: LabelledRows, batch_size: int = 32) -> NDArray[np.float64]:
        """Compute (rows, classes) logits."""
        return predict_logits(model, rows, pad_id=self.tokenizer.pad_id, batch_size=batch_size).astype(np.float64)

    def with_decision(self, decision: DecisionRule) -> ClassificationTask:
        """Return a copy with another decision rule."""
        return ClassificationTask(self.data, self.labels, self.stored, decision=decision)

    def baselines(self, training: Sequence[LabelledText], test: Sequence[LabelledText]) -> dict[str, Measured]:
        """Evaluate the majority class, and TF-IDF with a linear classifier."""
        train_targets, test_targets = self.stratify_by(training), self.stratify_by(test)
        train_texts, test_texts = ([example.text for example in part] for part in (training, test))
        seconds = second_texts_of_parts(training, test)
        baselines = {
            "majority": majority(train_targets, test_targets, self.labels),
            "tfidf": tfidf(train_texts, train_targets, test_texts, test_targets, self.labels, seconds=seconds),
        }
        return {
            name: Measured(baseline.metrics, class_predictions(test_targets, baseline.predicted, self.labels))
            for name, baseline in baselines.items()
        }

    def result_fields(self) -> dict[str, object]:
        return {"labels": list(self.labels.names), "long_inputs": self.data.truncation.kind}

    def to_metadata(self) -> dict[str, object]:
        decision = {} if self.decision == DEFAULT_RULE else {"decision": self.decision.model_dump(mode="json")}
        return task_metadata("classification", self.data) | decision

    def predict(
        self, model: Model, records: Iterable[Record], *, source: str, first: int = 1
    ) -> Iterator[dict[str, object]]:
        """Yield the label, its probability, and the probability of each class."""
        for rows in unlabelled_rows(records, self.data, self.stored, source=source, first=first):
            yield from output_predictions(Outputs(self.outputs(model, rows), rows.cut), self.labels, self.decision)
