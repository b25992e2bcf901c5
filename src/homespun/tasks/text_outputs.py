"""Outputs of text models: probabilities, averages, metrics and decisions, without torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from homespun.data.labels import Labels
from homespun.errors import UserError
from homespun.metrics.calibration import DEFAULT_RULE, DecisionRule, measure_calibration, probabilities, row_losses
from homespun.metrics.classification import classification_metrics, classify
from homespun.metrics.regression import regression_metrics
from homespun.ngrams import Texts
from homespun.tasks.calibration import Calibration, calibrate
from homespun.tasks.protocol import Measured
from homespun.tasks.texts import LabelledText, labels_of, second_texts

Floats = NDArray[np.float64]
_LEAST = 1e-7  # probability, so that logits are finite


@dataclass(frozen=True)
class Outputs:
    """Outputs of a model for a sequence of texts."""

    values: Floats  # (texts, classes) logits, or (texts,) numbers
    truncated: NDArray[np.bool_]  # (texts,) True if a part of the text was not read


def texts_of(examples: Sequence[LabelledText]) -> Texts:
    """Return the texts of examples for a linear model."""
    return Texts([example.text for example in examples], second_texts(examples))


def targets_of(examples: Sequence[LabelledText], labels: Labels | None) -> NDArray[np.int64] | Floats:
    """Return the (examples,) classes or numbers of labelled examples, or (examples, classes) 0 and 1 if multi-label.

    Raises:
        UserError: a label is unknown or not a number.
    """
    return numbers_of_examples(examples) if labels is None else labels.encode(labels_of(examples))


def to_predictions(values: Floats, labels: Labels | None, decision: DecisionRule) -> Floats:
    """Convert logits to (texts, classes) probabilities; (texts,) numbers are unchanged."""
    return values if labels is None else probabilities(values, labels, temperature=decision.temperature)


def output_predictions(outputs: Outputs, labels: Labels | None, decision: DecisionRule) -> Iterator[dict[str, object]]:
    """Yield ``truncated`` of each text, with ``label``, ``probability`` and ``probabilities``, or with ``number``."""
    table, truncated = to_predictions(outputs.values, labels, decision), outputs.truncated.tolist()
    if labels is None:
        yield from ({"number": number, "truncated": cut} for number, cut in zip(table.tolist(), truncated, strict=True))
        return
    predicted = classify(table, labels, decision.thresholds)
    for row, given, cut in zip(table, predicted, truncated, strict=True):
        yield {
            "label": labels.decode(given),
            "probability": None if labels.multi_label else float(row.max()),
            "probabilities": dict(zip(labels.names, row.tolist(), strict=True)),
            "truncated": cut,
        }


def average(predicted: Sequence[Floats], weights: Sequence[float], labels: Labels | None) -> Floats:
    """Compute logits of the weighted mean of probabilities, or the weighted mean of numbers."""
    mean: Floats = np.tensordot(np.array(weights), np.stack(predicted), axes=1)
    if labels is None:
        return mean
    from scipy.special import logit

    mean = mean.clip(_LEAST, 1 - _LEAST)
    return logit(mean) if labels.multi_label else np.log(mean)


def numbers_of_examples(examples: Sequence[LabelledText]) -> NDArray[np.float64]:
    """Parse the labels as (examples,) numbers.

    Raises:
        UserError: a label is not a finite number, or a text has several labels.
    """
    numbers = np.empty(len(examples))
    for index, example in enumerate(examples):
        if isinstance(example.label, tuple):
            raise UserError(
                "data.multi_label=true gives several labels a text, but regression needs one number; leave it out"
            )
        try:
            numbers[index] = float(example.label)
        except ValueError:
            numbers[index] = math.nan
        if not math.isfinite(numbers[index]):
            raise UserError(
                f"{example.location(index)} has label {example.label!r}, which is no number; correct it, or name "
                f"another column"
            )
    return numbers


def measure_outputs(
    values: Floats, examples: Sequence[LabelledText], labels: Labels | None, decision: DecisionRule
) -> Measured:
    """Compute the metrics of outputs."""
    if labels is not None:
        return measure_logits(values, labels.encode(labels_of(examples)), labels, decision)
    numbers = numbers_of_examples(examples)
    return Measured(regression_metrics(numbers, values), number_predictions(numbers, values))


def choose_decision(values: Floats, examples: Sequence[LabelledText], labels: Labels | None) -> DecisionRule:
    """Choose temperature and thresholds of logits on validation examples; neutral for numbers."""
    if labels is None:
        return DEFAULT_RULE
    return calibrate(values.astype(np.float32), labels.encode(labels_of(examples)), Calibration())[0]


def measure_logits(
    logits: NDArray[np.float64], truth: NDArray[np.int64], labels: Labels, decision: DecisionRule
) -> Measured:
    """Compute `classification_metrics`, ``calibration``, and predictions with ``probability`` and ``loss``.

    ``logits`` are (texts, classes), ``truth`` (texts,) classes, or (texts, classes) zeros and ones.
    """
    temperature = decision.temperature
    table = probabilities(logits, labels, temperature=temperature)
    predicted = classify(table, labels, decision.thresholds)
    metrics = classification_metrics(labels, truth, predicted, probabilities=table)
    errors = measure_calibration(logits, truth, temperature)
    metrics |= {"ece": errors["after"]["ece"], "calibration": errors}
    losses = row_losses(logits / temperature, truth)
    predictions = class_predictions(truth, predicted, labels)
    for prediction, row, loss in zip(predictions, table.tolist(), losses.tolist(), strict=True):
        prediction |= {"probability": row, "loss": loss}
    return Measured(metrics, predictions)


def class_predictions(
    truth: NDArray[np.int64], predicted: NDArray[np.int64], labels: Labels
) -> list[dict[str, object]]:
    """Return the names of the true and predicted class, or classes, of each text."""
    return [
        {"truth": labels.decode(right), "predicted": labels.decode(given)}
        for right, given in zip(truth, predicted, strict=True)
    ]


def number_predictions(truth: NDArray[np.float64], predicted: NDArray[np.float64]) -> list[dict[str, object]]:
    """Return an object for each number; ``score`` is the negative absolute error if the truth is known."""
    return [
        {"truth": number, "predicted": prediction, "score": -abs(number - prediction)}
        if np.isfinite(number)
        else {"truth": None, "predicted": prediction}
        for number, prediction in zip(truth.tolist(), predicted.tolist(), strict=True)
    ]
