"""Labelled texts, and classifying them: one label a text, or several."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from homespun.baselines import majority, tfidf
from homespun.config import validate
from homespun.data.labels import LabelledRows, Labels, get_text, read_labelled_texts
from homespun.data.long_inputs import TRUNCATE, LongInputs
from homespun.errors import UserError
from homespun.inference.decision_rule import DEFAULT_RULE, DecisionRule
from homespun.inference.predict import Predictor, predict_logits, probabilities
from homespun.metrics.calibration import measure_calibration, row_losses
from homespun.metrics.classification import classification_metrics, classify
from homespun.models.bundle import ModelBundle
from homespun.models.model import Model
from homespun.models.scalar_mix import kind_of_head
from homespun.objectives.classification import Classification
from homespun.objectives.head_training import check_head
from homespun.tasks.files import paths
from homespun.tasks.protocol import Lesson, Measured, Task, Tuned, check_length
from homespun.tasks.regression import RatingsTask, RegressionTask
from homespun.tasks.texts import (
    LabelledText,
    TextsData,
    labels_of,
    predicted_in_parts,
    rows_of,
    seconds_of,
    shown,
    whole_pairs,
)
from homespun.tasks.tuning import Tuning, decide
from homespun.training.validation import EvalResult


class LabelledData(TextsData):
    """Labelled texts, and how to read them."""

    missing = "which labelled texts? give data.train=FILE, with data.text=COLUMN and data.label=COLUMN"

    kind: Literal["texts"] = "texts"
    text: str | list[str] = Field(default="text", description="column of the text; several are joined with a space")
    multi_label: bool = Field(default=False, description="a text may have several labels, or none")
    separator: str | None = Field(
        default=None, min_length=1, description="between the labels of one text; a comma where not given"
    )
    long_inputs: LongInputs = Field(default=TRUNCATE, description="what is read of a text longer than that")

    def read_files(self, inputs: Sequence[str]) -> list[LabelledText]:
        """The texts of any files."""
        texts, found = read_labelled_texts(
            inputs,
            text=self.text,
            label=self.label,
            columns=self.columns,
            encoding=self.encoding,
            multi_label=self.multi_label,
            separator=self.separator,
        )
        labels: Sequence[str | tuple[str, ...]] = found
        return [LabelledText(text, label) for text, label in zip(texts, labels, strict=True)]

    def task(self, objective: Any, stored: ModelBundle, training: Sequence[Any]) -> Task[Any, Any]:
        """What the objective learns from them: classes, numbers, ratings.

        Raises:
            UserError: another objective, texts longer than the model, nothing to tell apart, or a head that reads the
                first token of a causal model.
        """
        return task_on_texts(self, objective, stored, training)

    def stored_task(self, stored: ModelBundle, *, source: str) -> Task[Any, Any]:
        """The task that the model was fine-tuned for."""
        several = stored.labels is not None and stored.labels.multi_label and not stored.task.get("learned")
        return stored_task_on_texts(self.model_copy(update={"multi_label": several}), stored, source=source)

    def texts_of(self, record: Mapping[str, Any], *, where: str) -> tuple[str, str | None]:
        """The text of a record, which is no pair."""
        return get_text(record, paths(self.text), where=where), None

    def to_metadata(self, *without: str) -> dict[str, Any]:
        """Whether a text has several labels is stored with the labels."""
        return super().to_metadata("multi_label", *without)

    def rename_columns(self, text: Sequence[str], label: str | None) -> dict[str, Any]:
        """``text`` are the columns of the text, ``label`` that of the label."""
        return {"text": list(text) if text else self.text, "label": label or self.label}


class ClassificationTask:
    """Labels for texts, or for pairs of them; see `homespun.tasks.protocol.Task`."""

    measures = ("accuracy", "macro_f1", "log_loss", "roc_auc")

    def __init__(
        self, data: TextsData, labels: Labels, stored: ModelBundle, *, decision: DecisionRule = DEFAULT_RULE
    ) -> None:
        self.decision = decision
        self.data = data
        self.labels = labels
        self.stored = stored
        self.tokenizer = stored.tokenizer

    @classmethod
    def of(
        cls, data: TextsData, objective: Classification, stored: ModelBundle, training: Sequence[LabelledText]
    ) -> ClassificationTask:
        """For the classes of the training."""
        several = any(isinstance(example.label, tuple) for example in training[:1])
        return cls(data, Labels.collect(labels_of(training), multi_label=several), stored)

    @classmethod
    def again(cls, data: TextsData, stored: ModelBundle, *, source: str) -> ClassificationTask:
        """Classification as the model was fine-tuned for it."""
        if stored.labels is None or "length" not in stored.task:
            raise UserError(
                f"{source} is not a classifier; fine-tune it first: homespun finetune classify ... --from {source}"
            )
        if stored.config.head is not None and kind_of_head(stored.config.head) == "token_classification":
            raise UserError(
                f"{source} labels tokens, and texts are labelled here; homespun.load gives the logits of its tokens"
            )
        decision = stored.task.get("decision")
        if decision is None:
            return cls(data, stored.labels, stored)
        found = validate(DecisionRule, decision, source=source)
        if found.thresholds is not None and len(found.thresholds) != len(stored.labels):
            raise UserError(
                f"{source} has {len(found.thresholds)} thresholds for {len(stored.labels)} labels; it was altered, "
                f"fine-tune it again"
            )
        return cls(data, stored.labels, stored, decision=found)

    def strata(self, examples: Sequence[LabelledText]) -> NDArray[np.int64]:
        """The classes."""
        return self.labels.encode(labels_of(examples))

    def texts(self, examples: Sequence[LabelledText]) -> list[str]:
        """The texts, or both of a pair."""
        return shown(examples)

    def rows(self, examples: Sequence[LabelledText]) -> LabelledRows:
        """A row a text or pair."""
        return rows_of(examples, self.data, self.stored, names=self.labels)

    def lesson(self, objective: Classification, stored: ModelBundle, training: LabelledRows) -> Lesson:
        """A new head on the encoder."""
        assert training.targets is not None
        weights = objective.weights(self.labels, training.targets)
        module: Any = objective.build(
            copy.deepcopy(stored.model),
            stored.config,
            self.labels,
            weights=weights,
            long_inputs=self.data.long_inputs,
        )
        module = objective.wrap(module, self.tokenizer, self.labels)
        collate = objective.collate(self.tokenizer.pad_id, self.labels, weights=weights)
        rows = whole_pairs(training, training.one_sided)

        def tune(validation: LabelledRows, tuning: Tuning, batch_size: int) -> Tuned:
            return self.tuned(module.model, validation, tuning, batch_size=batch_size)

        return Lesson(module, module.model, rows, collate, module.export_model, tune)

    def tuned(self, model: Model, validation: LabelledRows, tuning: Tuning, *, batch_size: int) -> Tuned:
        """The same with its logits read as is best for the validation texts."""
        assert validation.targets is not None
        logits = predict_logits(model, validation, pad_id=self.tokenizer.pad_id, batch_size=batch_size)
        decision, told = decide(logits, validation.targets, tuning)
        return Tuned(type(self)(self.data, self.labels, self.stored, decision=decision), told)

    def validate(self, lesson: Lesson, rows: LabelledRows, *, batch_size: int) -> EvalResult:
        """The log loss and the metrics."""
        metrics = self.measure(lesson.model, rows, batch_size=batch_size).metrics
        plain = {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}
        return EvalResult(metrics["log_loss"], {"loss": metrics["log_loss"]}, plain)

    def measure(self, model: Model, rows: LabelledRows, *, batch_size: int) -> Measured:
        """`classification_metrics` and how far it is off (`calibration`); of each text the probability of every class,
        and the ``loss``."""
        assert rows.targets is not None
        logits = predict_logits(model, rows, pad_id=self.tokenizer.pad_id, batch_size=batch_size)
        temperature = self.decision.temperature
        table = probabilities(logits, self.labels, temperature=temperature)
        predicted = classify(table, self.labels, self.decision.thresholds)
        metrics = classification_metrics(self.labels, rows.targets, predicted, probabilities=table)
        values = logits.astype(np.float64)
        off = measure_calibration(values, rows.targets, temperature)
        metrics |= {"ece": off["after"]["ece"], "calibration": off}
        losses = row_losses(values / temperature, rows.targets)
        said = self._said(rows.targets, predicted)
        return Measured(
            metrics,
            [
                row | {"probability": p, "loss": loss}
                for row, p, loss in zip(said, table.tolist(), losses.tolist(), strict=True)
            ],
        )

    def _said(self, truth: NDArray[np.int64], predicted: NDArray[np.int64]) -> list[dict[str, Any]]:
        return [
            {"truth": self.labels.decode(true), "predicted": self.labels.decode(told)}
            for true, told in zip(truth, predicted, strict=True)
        ]

    def baselines(self, training: Sequence[LabelledText], test: Sequence[LabelledText]) -> dict[str, Measured]:
        """The majority class, and TF-IDF with a linear model."""
        learned, truth = self.strata(training), self.strata(test)
        texts, unseen = ([example.text for example in part] for part in (training, test))
        pair, other = seconds_of(training), seconds_of(test)
        seconds = None if pair is None or other is None else (pair, other)
        made = {
            "majority": majority(learned, truth, self.labels),
            "tfidf": tfidf(texts, learned, unseen, truth, self.labels, seconds=seconds),
        }
        return {name: Measured(line.metrics, self._said(truth, line.predicted)) for name, line in made.items()}

    def facts(self) -> dict[str, Any]:
        """Classes, and how long texts are read."""
        return {"labels": list(self.labels.names), "long_inputs": self.data.long_inputs.kind}

    def describe(self) -> dict[str, Any]:
        """How the texts are read."""
        told = {"kind": "classification", "data": self.data.kind} | self.data.to_metadata()
        return told if self.decision == DEFAULT_RULE else told | {"decision": self.decision.model_dump(mode="json")}

    def predict(self, model: Model, records: Iterable[Mapping[str, Any]], *, source: str) -> Iterator[dict[str, Any]]:
        """Label, probability, and that of every class."""
        predictor = Predictor(
            model,
            self.tokenizer,
            self.labels,
            length=self.data.length,
            long_inputs=self.data.long_inputs,
            decision=self.decision,
        )
        for part in predicted_in_parts(records, self.data, source=source):
            yield from map(asdict, predictor.predict_rows(rows_of(part, self.data, self.stored)))


_TASKS: dict[str, Any] = {"classification": ClassificationTask, "regression": RegressionTask, "ratings": RatingsTask}


def task_on_texts(data: TextsData, objective: Any, stored: ModelBundle, training: Sequence[Any]) -> Task[Any, Any]:
    """What an objective learns from labelled texts, or pairs.

    Raises:
        UserError: as in `LabelledData.task`.
    """
    data.check_objective(objective)
    chunks = ", and read longer texts with data.long_inputs.kind=chunk_mean" if data.kind == "texts" else ""
    check_length("length", data.length, stored.config.backbone.max_position_embeddings, chunks)
    check_head(objective.head, stored.config)
    made: Task[Any, Any] = _TASKS[objective.kind].of(data, objective, stored, training)
    return made


def stored_task_on_texts(data: TextsData, stored: ModelBundle, *, source: str) -> Task[Any, Any]:
    """The same of a fine-tuned model; what tells of no objective is a classifier, or nothing of the kind."""
    kind = stored.task.get("kind", "classification")
    made: Task[Any, Any] = _TASKS.get(kind, ClassificationTask).again(data, stored, source=source)
    return made
