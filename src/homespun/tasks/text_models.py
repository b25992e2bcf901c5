"""Models of texts behind one interface: networks, linear models, and weighted averages of models.

All are stored as the ``model/`` folder of a run: a network as in `homespun.models.bundle`, a linear model as in
`homespun.linear`, an average as ``average.json`` and a folder for each member.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol, Unpack, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from homespun.config import Config, validate
from homespun.data.labels import LabelledRows, Labels
from homespun.errors import UserError
from homespun.hf.open import open_model
from homespun.inference.predict import DEFAULT_RULE, DecisionRule, probabilities
from homespun.io.atomic import atomic_path
from homespun.io.json import read_object
from homespun.linear import LinearModel, is_linear
from homespun.metrics.regression import regression_metrics
from homespun.models.bundle import ModelBundle, save_model
from homespun.models.model import Model
from homespun.ngrams import Texts
from homespun.tasks.calibration import Calibration, calibrate
from homespun.tasks.classification import Classification, measure_logits
from homespun.tasks.config import ReadOptions, stored_data, stored_task
from homespun.tasks.number_training import number_predictions, numbers_of_examples
from homespun.tasks.protocol import Measured, numbered_chunks, task_metadata
from homespun.tasks.regression import Regression
from homespun.tasks.texts import LabelledText, TextsData, labels_of, rows_of, second_texts
from homespun.text.formats import Record

AVERAGE = "average.json"
Floats = NDArray[np.float64]
_CHUNK = 4096  # records read ahead in prediction
_LEAST = 1e-7  # probability, so that logits are finite


@dataclass(frozen=True)
class Outputs:
    """Outputs of a model for some texts.

    Args:
        values: (texts, classes) logits, or (texts,) numbers.
        truncated: (texts,) a part of the text was not read.
    """

    values: Floats
    truncated: NDArray[np.bool_]


class TextModel(Protocol):
    """Classifier or regressor of texts or pairs of texts."""

    @property
    def kind(self) -> str:
        """``network``, ``linear`` or ``average``."""

    @property
    def data(self) -> TextsData:
        """Columns of the texts and of the label."""

    @property
    def labels(self) -> Labels | None:
        """Classes; ``None`` for numbers."""

    @property
    def decision(self) -> DecisionRule:
        """Temperature and thresholds of the logits."""

    @property
    def parameters(self) -> int:
        """Number of parameters."""

    def outputs(self, examples: Sequence[LabelledText]) -> Outputs:
        """Compute logits or numbers."""

    def refit(self, fit: RefitLinear) -> TextModel:
        """Return the model with its linear parts fitted on other examples."""

    def save(self, folder: Path) -> None:
        """Write the model into an existing folder."""


@runtime_checkable
class TextTask(Protocol):
    """Classification or regression of whole texts."""

    @property
    def data(self) -> TextsData: ...
    @property
    def labels(self) -> Labels | None: ...
    @property
    def decision(self) -> DecisionRule: ...

    def outputs(self, model: Model, rows: LabelledRows) -> Floats:
        """Compute (rows, classes) logits or (rows,) numbers."""

    def with_decision(self, decision: DecisionRule) -> TextTask:
        """Return a copy with another temperature and other thresholds."""

    def to_metadata(self) -> dict[str, object]:
        """Return ``task`` of the stored model."""


@dataclass(frozen=True)
class NetworkTextModel:
    """A fine-tuned network."""

    stored: ModelBundle
    task: TextTask
    kind: Literal["network"] = "network"

    @property
    def data(self) -> TextsData:
        """Columns of the texts and of the label."""
        return self.task.data

    @property
    def labels(self) -> Labels | None:
        """Classes; ``None`` for numbers."""
        return self.task.labels

    @property
    def decision(self) -> DecisionRule:
        """Temperature and thresholds of the logits."""
        return self.task.decision

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(parameter.numel() for parameter in self.stored.model.parameters())

    def outputs(self, examples: Sequence[LabelledText]) -> Outputs:
        """Compute logits or numbers."""
        rows = rows_of(examples, self.data, self.stored)
        return Outputs(self.task.outputs(self.stored.model, rows), rows.cut)

    def refit(self, fit: RefitLinear) -> NetworkTextModel:
        """Return the model itself."""
        return self

    def calibrated(self, examples: Sequence[LabelledText]) -> NetworkTextModel:
        """Return the model with temperature and thresholds chosen on validation examples."""
        values = self.outputs(examples).values
        task = self.task.with_decision(choose_decision(values, examples, self.labels))
        return NetworkTextModel(replace(self.stored, task=task.to_metadata()), task)

    def save(self, folder: Path) -> None:
        """Write the model into an existing folder."""
        stored = self.stored
        save_model(
            folder, stored.model, stored.config, stored.tokenizer, labels=self.labels, task=self.task.to_metadata()
        )


@dataclass(frozen=True)
class LinearTextModel:
    """A linear model on TF-IDF n-grams."""

    model: LinearModel
    data: TextsData
    decision: DecisionRule = DEFAULT_RULE
    kind: Literal["linear"] = "linear"

    @property
    def labels(self) -> Labels | None:
        """Classes; ``None`` for numbers."""
        return self.model.labels

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return self.model.parameters

    def outputs(self, examples: Sequence[LabelledText]) -> Outputs:
        """Compute logits or numbers."""
        return Outputs(self.model.outputs(texts_of(examples)), np.zeros(len(examples), dtype=bool))

    def refit(self, fit: RefitLinear) -> LinearTextModel:
        """Return the model fitted on other examples."""
        return fit(self)

    def save(self, folder: Path) -> None:
        """Write the model into an existing folder."""
        replace(self.model, task=_metadata(self)).save(folder)


@dataclass(frozen=True)
class AverageTextModel:
    """Weighted mean of the probabilities, or of the numbers, of several models.

    Args:
        members: models of the same classes, by name.
        weights: one a member, of sum 1.
        decision: temperature and thresholds of the logits of the mean probabilities.
    """

    members: Mapping[str, TextModel]
    weights: tuple[float, ...]
    decision: DecisionRule = DEFAULT_RULE
    kind: Literal["average"] = "average"

    @property
    def data(self) -> TextsData:
        """Columns of the texts and of the label."""
        return next(iter(self.members.values())).data

    @property
    def labels(self) -> Labels | None:
        """Classes; ``None`` for numbers."""
        return next(iter(self.members.values())).labels

    @property
    def parameters(self) -> int:
        """Number of parameters of all members."""
        return sum(member.parameters for member in self.members.values())

    def outputs(self, examples: Sequence[LabelledText]) -> Outputs:
        """Compute logits of the mean probabilities, or mean numbers."""
        found = [member.outputs(examples) for member in self.members.values()]
        truncated = np.any([one.truncated for one in found], axis=0)
        predicted = [
            to_predictions(one.values, self.labels, member.decision)
            for one, member in zip(found, self.members.values(), strict=True)
        ]
        return Outputs(average(predicted, self.weights, self.labels), truncated)

    def refit(self, fit: RefitLinear) -> AverageTextModel:
        """Return the average with its linear members fitted on other examples."""
        return replace(self, members={name: member.refit(fit) for name, member in self.members.items()})

    def save(self, folder: Path) -> None:
        """Write the model into an existing folder."""
        for name, member in self.members.items():
            (folder / name).mkdir()
            member.save(folder / name)
        described = {
            "format": 1,
            "weights": dict(zip(self.members, self.weights, strict=True)),
            "decision": self.decision.model_dump(mode="json"),
        }
        (folder / AVERAGE).write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")


RefitLinear = Callable[[LinearTextModel], LinearTextModel]
"""Fits a linear model again, on other examples."""


class _StoredDecision(Config):
    decision: DecisionRule = DEFAULT_RULE


class _StoredAverage(Config):
    format: Literal[1]
    weights: dict[str, float]
    decision: DecisionRule


def texts_of(examples: Sequence[LabelledText]) -> Texts:
    """Return the texts of examples for a linear model."""
    return Texts([example.text for example in examples], second_texts(examples))


def targets_of(examples: Sequence[LabelledText], labels: Labels | None) -> NDArray[np.int64] | Floats:
    """Return the classes or the numbers of labelled examples.

    Raises:
        UserError: an unknown label, or one that is no number.
    """
    return numbers_of_examples(examples) if labels is None else labels.encode(labels_of(examples))


def to_predictions(values: Floats, labels: Labels | None, decision: DecisionRule) -> Floats:
    """Return (texts, classes) probabilities of logits, or the (texts,) numbers as they are."""
    return values if labels is None else probabilities(values, labels, temperature=decision.temperature)


def average(predicted: Sequence[Floats], weights: Sequence[float], labels: Labels | None) -> Floats:
    """Return logits of the weighted mean of probabilities, or the weighted mean of numbers."""
    mean: Floats = np.tensordot(np.array(weights), np.stack(predicted), axes=1)
    if labels is None:
        return mean
    from scipy.special import logit

    mean = mean.clip(_LEAST, 1 - _LEAST)
    logits: Floats = logit(mean) if labels.multi_label else np.log(mean)
    return logits


def measure(model: TextModel, examples: Sequence[LabelledText]) -> Measured:
    """Evaluate a model on labelled examples, with the metrics of its task."""
    return measure_outputs(model.outputs(examples).values, examples, model.labels, model.decision)


def measure_outputs(
    values: Floats, examples: Sequence[LabelledText], labels: Labels | None, decision: DecisionRule
) -> Measured:
    """Compute the metrics of outputs, as `homespun.tasks.classification` and `homespun.tasks.regression` do."""
    if labels is not None:
        return measure_logits(values, labels.encode(labels_of(examples)), labels, decision)
    numbers = numbers_of_examples(examples)
    return Measured(regression_metrics(numbers, values), number_predictions(numbers, values))


def choose_decision(values: Floats, examples: Sequence[LabelledText], labels: Labels | None) -> DecisionRule:
    """Choose temperature and thresholds of logits on validation examples; none for numbers."""
    if labels is None:
        return DEFAULT_RULE
    return calibrate(values.astype(np.float32), labels.encode(labels_of(examples)), Calibration())[0]


def predict(model: TextModel, records: Iterable[Record], *, source: str) -> Iterator[dict[str, object]]:
    """Yield a prediction for each record, in order and in bounded memory.

    Raises:
        UserError: beginning with ``source``: a record without the columns.
    """
    for chunk in numbered_chunks(records, _CHUNK, source=source):
        texts = [model.data.texts_of(record, where=where) for where, record in chunk]
        yield from predict_examples(model, [LabelledText(text, "", second) for text, second in texts])


def predict_examples(model: TextModel, examples: Sequence[LabelledText]) -> Iterator[dict[str, object]]:
    """Yield a prediction for each text or pair: ``label``, ``probability`` and ``probabilities``, or ``number``."""
    labels, decision = model.labels, model.decision
    outputs = model.outputs(examples)
    table = to_predictions(outputs.values, labels, decision)
    for row, truncated in zip(table, outputs.truncated.tolist(), strict=True):
        if labels is None:
            yield {"number": float(row), "truncated": truncated}
            continue
        several = labels.multi_label
        best = int(row.argmax())
        yield {
            "label": labels.decode(decision.predict_labels(row) if several else best),
            "probability": None if several else float(row[best]),
            "probabilities": dict(zip(labels.names, row.tolist(), strict=True)),
            "truncated": truncated,
        }


def save_text_model(folder: Path, model: TextModel) -> None:
    """Write the ``model/`` folder atomically; an older one there is replaced."""
    with atomic_path(folder) as temporary:
        temporary.mkdir()
        model.save(temporary)


def find_text_model(run: str | Path) -> Path | None:
    """Return the folder of a linear or average model in a run, or ``None`` if there is none."""
    folder = Path(run).expanduser()
    for candidate in (folder, folder / "model"):
        if is_linear(candidate) or (candidate / AVERAGE).is_file():
            return candidate
    return None


def open_network(run: str | Path, **options: Unpack[ReadOptions]) -> NetworkTextModel:
    """Open a network as `open_text_model` does."""
    stored = open_model(run)
    task = stored_task(stored, source=str(run), **options)
    if not isinstance(task, TextTask):
        raise UserError(f"{run} neither classifies texts nor predicts a number for each")
    return NetworkTextModel(stored, task)


def open_text_model(run: str | Path, **options: Unpack[ReadOptions]) -> TextModel:
    """Open a classifier or regressor of texts: a run, a ``model/`` folder, or a Hugging Face folder or name.

    Args:
        run: the model.
        options: columns that differ from training; see `homespun.tasks.config.ReadOptions`.

    Raises:
        UserError: there is no model, it does another task, or its files are damaged.
    """
    folder = find_text_model(run)
    if folder is None:
        return open_network(run, **options)
    if is_linear(folder):
        model = LinearModel.load(folder)
        data = stored_data(model.task, source=str(run), **options)
        assert isinstance(data, TextsData)
        decided = {name: value for name, value in model.task.items() if name == "decision"}
        decision = validate(_StoredDecision, decided, source=str(folder)).decision
        return LinearTextModel(model, data if model.labels is None else data.with_labels(model.labels), decision)
    path = folder / AVERAGE
    stored_average = validate(_StoredAverage, read_object(path), source=str(path))
    names = list(stored_average.weights)
    if not names or any(Path(name).name != name or name.startswith(".") for name in names):
        raise UserError(f"{path} must name folders next to it, not {names}")
    members = {name: open_text_model(folder / name, **options) for name in names}
    if len({member.labels for member in members.values()}) > 1:
        raise UserError(f"{path}: its members have different classes; fit the model again")
    return AverageTextModel(members, tuple(stored_average.weights.values()), stored_average.decision)


def _metadata(model: LinearTextModel) -> dict[str, object]:
    kind = (Regression if model.labels is None else Classification).model_fields["kind"].default
    return task_metadata(kind, model.data) | {"decision": model.decision.model_dump(mode="json")}
