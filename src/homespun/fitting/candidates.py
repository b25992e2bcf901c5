"""Candidates of a fit: models trained on the same examples, with their outputs on the validation examples."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from homespun.data.labels import Labels
from homespun.fitting.inspection import Inspection
from homespun.fitting.linear_plan import LinearPlan
from homespun.linear import Candidate as NgramSettings
from homespun.linear import LinearFit, fit_linear
from homespun.metrics.calibration import DEFAULT_RULE, DecisionRule, row_losses
from homespun.metrics.classification import Metrics
from homespun.ngrams import WORDS
from homespun.tasks.protocol import Measured
from homespun.tasks.text_models import AverageTextModel, LinearTextModel, TextModel
from homespun.tasks.text_outputs import average, choose_decision, measure_outputs, targets_of, texts_of, to_predictions
from homespun.tasks.texts import LabelledText

Floats = NDArray[np.float64]

METRICS: Mapping[str, str] = {"classification": "accuracy", "multi-label": "micro_f1", "regression": "spearman"}
"""Metric by which a candidate is selected, by task."""
_WEIGHTS = tuple(step / 10 for step in range(1, 10))  # weights of the network in an average
_TIMED, _TIMED_SECONDS = 20, 1.0  # texts by which a latency is measured, or seconds after which fewer suffice


@dataclass
class Clock:
    """Wall and processor seconds."""

    wall: float = 0.0
    processor: float = 0.0


@contextmanager
def stopwatch() -> Iterator[Clock]:
    """Measure the time of a block; the times are set when it ends."""
    spent, wall, processor = Clock(), time.monotonic(), time.process_time()
    yield spent
    spent.wall, spent.processor = time.monotonic() - wall, time.process_time() - processor


@dataclass(frozen=True)
class Candidate:
    """A model with its outputs on the validation examples."""

    name: str  # key in results, and name of its folder
    title: str  # name in tables
    model: TextModel | None  # None: the baseline of the majority class or the mean, which reads no text
    outputs: Floats  # (examples,) numbers or (examples, classes) logits of the validation examples
    decision: DecisionRule
    validation: Metrics
    seconds: Clock  # time of its training
    latency: float = 0.0  # median milliseconds of the prediction of one text


def measure_latency(model: TextModel, examples: Sequence[LabelledText]) -> float:
    """Return the median milliseconds of the prediction of one text."""
    times = []
    for example in examples[: _TIMED + 1]:
        start = time.perf_counter()
        model.outputs([example])
        times.append(1000 * (time.perf_counter() - start))
        if len(times) > 2 and sum(times) > 1000 * _TIMED_SECONDS:
            break
    return float(np.median(times[1:] or times))  # the first call is slower


def candidate(name: str, title: str, model: TextModel, inspection: Inspection, seconds: Clock) -> Candidate:
    """Evaluate a model on the validation examples, which also choose temperature and thresholds of a network."""
    outputs = model.outputs(inspection.validation).values
    model = model.calibrate(outputs, inspection.validation)
    measured = measure_outputs(outputs, inspection.validation, inspection.labels, model.decision)
    latency = measure_latency(model, inspection.validation)
    return Candidate(name, title, model, outputs, model.decision, measured.metrics, seconds, latency)


def constant_outputs(inspection: Inspection, examples: Sequence[LabelledText]) -> Floats:
    """Return the outputs of the baseline: logits of the class shares, or the mean of the training numbers."""
    targets = targets_of([*inspection.train, *inspection.validation], inspection.labels)
    labels = inspection.labels
    if labels is None:
        return np.full(len(examples), float(targets.mean()))
    if labels.multi_label:
        shares = targets.mean(axis=0)
    else:
        shares = np.bincount(targets.astype(np.int64), minlength=len(labels)) / len(targets)
    return average([np.tile(shares, (len(examples), 1))], [1.0], labels)


def constant_candidate(inspection: Inspection) -> Candidate:
    """Return the baseline of the majority class, or of the mean."""
    outputs = constant_outputs(inspection, inspection.validation)
    measured = measure_outputs(outputs, inspection.validation, inspection.labels, DEFAULT_RULE)
    title = "mean" if inspection.labels is None else "majority class"
    return Candidate("constant", title, None, outputs, DEFAULT_RULE, measured.metrics, Clock())


def fit_linear_model(
    inspection: Inspection,
    examples: Sequence[LabelledText],
    *,
    plan: LinearPlan | None = None,
    settings: NgramSettings | None = None,
    decision: DecisionRule | None = None,
    seed: int = 0,
) -> tuple[LinearTextModel, LinearFit]:
    """Fit a linear model by a search, or with the given ``settings``, on what ``plan`` reads of the examples."""
    labels, plan = inspection.labels, plan or LinearPlan((WORDS,), 8_000, 0.0)
    if not plan.reads_all:
        examples = plan.reduce(examples, labels)
    found = fit_linear(
        texts_of(examples),
        targets_of(examples, labels),
        labels,
        settings=settings,
        feature_sets=plan.feature_sets,
        search_rows=plan.search_rows,
        seconds=plan.limit,
        seed=seed,
    )
    rule = DEFAULT_RULE if labels is None else DecisionRule(temperature=found.temperature)
    model = LinearTextModel(found.model, inspection.data, decision or rule)
    if decision is None and labels is not None and labels.multi_label:
        outputs = model.outputs(inspection.validation).values
        model = LinearTextModel(found.model, inspection.data, choose_decision(outputs, inspection.validation, labels))
    return model, found


def average_candidate(network: Candidate, linear: Candidate, inspection: Inspection) -> Candidate:
    """Return the average of a network and a linear model, with the weight that minimises the validation loss.

    The temperature of a network is chosen first, as its probabilities are not calibrated by its training.
    """
    labels, examples = inspection.labels, inspection.validation
    assert network.model is not None
    assert linear.model is not None
    parts = [to_predictions(one.outputs, labels, one.decision) for one in (network, linear)]
    losses = {weight: _loss(average(parts, (weight, 1 - weight), labels), examples, labels) for weight in _WEIGHTS}
    weight = min(losses, key=lambda one: losses[one])
    values = average(parts, (weight, 1 - weight), labels)
    decision = choose_decision(values, examples, labels)
    members = {"network": network.model, "linear": linear.model}
    model = AverageTextModel(members, (weight, round(1 - weight, 3)), decision)
    measured = measure_outputs(values, examples, labels, decision)
    title = f"average of {network.title} ({weight:.0%}) and linear model ({1 - weight:.0%})"
    spent = Clock(network.seconds.wall + linear.seconds.wall, network.seconds.processor + linear.seconds.processor)
    latency = network.latency + linear.latency
    return Candidate("average", title, model, values, decision, measured.metrics, spent, latency)


def _loss(values: Floats, examples: Sequence[LabelledText], labels: Labels | None) -> float:
    targets = targets_of(examples, labels)
    if labels is None:
        return float(np.square(values - targets).mean())
    return float(row_losses(values, targets.astype(np.int64)).mean())


def score(metrics: Metrics, metric: str) -> float:
    """Return a metric for comparison, in which an undefined metric is the lowest."""
    value = metrics.get(metric)
    return float("-inf") if value is None else float(value)


def example_scores(measured: Measured, labels: Labels | None) -> Floats:
    """Return (examples,) scores for paired tests: 1 if correct; for numbers the negative absolute error."""
    if labels is None:
        return np.array([float(str(one["score"])) for one in measured.predictions])
    return np.array([float(one["truth"] == one["predicted"]) for one in measured.predictions])
