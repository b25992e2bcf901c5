"""Results of a fit: test metrics of all candidates, significance, learning curve, cost and next steps."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BeforeValidator, Field

from homespun.choices import TaskName
from homespun.config import Config, Tree
from homespun.errors import UserError
from homespun.fitting.candidates import (
    METRICS,
    Candidate,
    Clock,
    constant_outputs,
    example_scores,
    fit_linear_model,
    score,
)
from homespun.fitting.columns import as_columns
from homespun.fitting.inspection import Inspection
from homespun.fitting.linear_plan import LinearPlan
from homespun.fitting.verdict import capped
from homespun.io.atomic import entries, write_text
from homespun.io.digest import digest_examples
from homespun.io.json import read_object
from homespun.linear import PLAIN
from homespun.metrics.classification import Metrics, scalars
from homespun.report import formats
from homespun.report.formats import metric_text
from homespun.report.records import invented_numbers
from homespun.report.significance import bootstrap_interval, permutation_test, wilson_interval
from homespun.results import VERSION
from homespun.results import Metrics as RecordedMetrics
from homespun.tasks.protocol import Measured
from homespun.tasks.text_models import TextModel, measure, measure_all
from homespun.tasks.text_outputs import measure_outputs
from homespun.tasks.texts import readable_texts
from homespun.text.input_files import digest_files

SETTINGS, INPUTS, RESULT = "fit.json", "inputs.json", "result.json"
_CURVE_SHARES = (0.25, 0.5, 1.0)  # shares of the training examples
_OVERRUN, _REPORT = 0.05, 2.0  # share of the time that a learning curve may exceed it by; seconds after the curve
_FIRST_POINT = 0.05  # time of the first point of a learning curve / time of a linear model with its search
_TIMED, _TIMED_SECONDS = 200, 2.0  # maximum of texts whose prediction is timed, and of seconds
_ERRORS = 10
_CHARACTERS = 240


_OPTIONS = {"start_from": "--from", "seconds": "--time", "text": "--text-field", "label": "--label-field"}
"""Options of `homespun fit` with other names than the settings."""


class FitSettings(Config):
    """Arguments of `homespun.fitting.fit.fit`."""

    train: list[str]
    test: list[str] = Field(default_factory=list)
    texts: list[str] = Field(default_factory=list)
    start_from: Annotated[list[str], AfterValidator(lambda given: list(dict.fromkeys(given)))] = Field(
        default_factory=list
    )
    seconds: float = 1800.0
    memory: int | None = None
    task: TaskName = "auto"
    text: list[str] = Field(default_factory=list)
    label: Annotated[list[str], BeforeValidator(as_columns)] = Field(default_factory=list)
    columns: list[str] | None = None
    encoding: str | None = None
    seed: int = Field(default=0, ge=0, lt=2**32)
    latency: float | None = None

    def command(self, **changes: object) -> str:
        """Return the command of a fit with these settings and ``changes``, into a new folder."""
        values = self.model_dump() | changes
        seconds = max(1, round(values["seconds"]))
        values["seconds"] = f"{seconds}s" if seconds % 60 else f"{seconds // 60}m"
        values["memory"] = None if values["memory"] is None else _size(values["memory"])
        values["columns"] = None if values["columns"] is None else ",".join(values["columns"])
        words = ["homespun", "fit", *values.pop("train")]
        for name, value in values.items():
            default = type(self).model_fields[name].get_default(call_default_factory=True)
            given = value if isinstance(value, list) else [value]
            option = _OPTIONS.get(name, f"--{name}")
            words += [word for one in given if one != default for word in (option, str(one))]
        return f"{shlex.join(words)} --out NEW"

    def is_stored(self, path: Path) -> bool:
        """True if a file holds these settings."""
        return path.is_file() and read_object(path) == self.model_dump(mode="json")


def _size(size: int) -> str:
    """Format bytes exactly, as `homespun.config.parse_bytes` reads them."""
    units = (
        (f"{prefix}{i}B", base**power)
        for power, prefix in ((3, "G"), (2, "M"))
        for i, base in (("", 1000), ("i", 1024))
    )
    return next((f"{size // unit}{name}" for name, unit in units if size % unit == 0), str(size))


def open_folder(folder: Path, settings: FitSettings, *parts: Sequence[object], resume: bool) -> None:
    """Create the folder of a fit, or remove the result of the same fit; see `check_folder`.

    Raises:
        UserError: also if the examples of ``parts`` or the files of ``settings.texts`` are not those with which the fit
            began.
    """
    check_folder(folder, settings, resume=resume)
    inputs, path = {"examples": digest_examples(*parts, [digest_files(settings.texts)])}, folder / INPUTS
    if path.is_file() and read_object(path) != inputs:
        raise UserError(f"{folder} was made with other examples or texts: their files have changed; give another --out")
    (folder / RESULT).unlink(missing_ok=True)
    write_text(folder / SETTINGS, json.dumps(settings.model_dump(mode="json"), indent=2) + "\n")
    write_text(path, json.dumps(inputs) + "\n")  # last: a folder without settings is not resumed


def check_folder(folder: Path, settings: FitSettings, *, resume: bool) -> None:
    """Check that the folder of a fit is new or, with ``resume``, holds the same fit.

    Raises:
        UserError: the folder has other content, or was made with other settings.
    """
    path = folder / SETTINGS
    if path.is_file():
        if not resume:
            raise UserError(f"{folder} holds a fit; give --resume to continue it, or another --out")
        earlier = read_object(path)
        given = settings.model_dump(mode="json").items()
        different = sorted(name for name, value in given if earlier.get(name) != value)
        if set(different) - {"seconds"}:
            raise UserError(f"{folder} was made with another {', '.join(different)}; give the same, or another --out")
    elif folder.is_file() or entries(folder):
        raise UserError(f"{folder} is not empty; give --out a new folder")


def summarise(
    inspection: Inspection,
    candidates: Sequence[Candidate],
    final: Candidate,
    settings: FitSettings,
    skipped: Sequence[str],
    start: float,
    *,
    plan: LinearPlan | None = None,
) -> tuple[Tree, dict[str, Sequence[Mapping[str, object]]]]:
    """Measure all candidates on the test examples; the saved model of ``final`` is measured in place of its candidate.

    ``skipped`` are reasons why a candidate was not trained; ``start`` of the fit is by `time.monotonic`. The learning
    curve is left out if the time is not enough for it, or if ``plan`` of the linear model does not read all texts.

    Returns:
        The content of ``result.json``, and by name the prediction of each test example.
    """
    metric, examples = METRICS[inspection.task], inspection.measured
    assert final.model is not None
    models = {one.name: one.model for one in candidates if one.model is not None} | {final.name: final.model}
    measured = {
        one.name: measure_outputs(constant_outputs(inspection, examples), examples, inspection.labels, one.decision)
        for one in candidates
        if one.model is None
    } | measure_all(models, examples)
    scores = {name: example_scores(one, inspection.labels) for name, one in measured.items()}
    others = [one for one in candidates if one.name != final.name]
    rivals = sorted(others, key=lambda one: -score(one.validation, metric))
    test = measured[final.name].metrics
    parts = {"validation" if inspection.test_from == "none" else "test": (test, measured["constant"].metrics)}
    parts.setdefault("validation", (final.validation, candidates[0].validation))
    warned = not_better(parts, candidates[0].title, metric, inspection.task)
    end = start + (1 + _OVERRUN) * settings.seconds - _REPORT
    curve = [] if plan is not None and not plan.reads_all else _learning_curve(inspection, metric, candidates, end)
    missing = [] if curve else ["learning curve: its fits would exceed the time; give more --time"]
    result: Tree = {
        "version": VERSION,
        "kind": "fit",
        "task": inspection.task,
        "pairs": inspection.data.kind == "sentence_pairs",
        "metric": metric,
        "selected": final.name,
        "title": final.title,
        "test": test,
        "interval": wilson_interval(test["accuracy"], len(examples)) if metric == "accuracy" else None,
        "labels": None if inspection.labels is None else list(inspection.labels.names),
        "examples": {name: len(getattr(inspection, name)) for name in ("train", "validation", "test")},
        "test_from": inspection.test_from,
        "decisions": inspection.decisions,
        "warnings": [*inspection.warnings, *warned],
        "skipped": [*skipped, *missing],
        "candidates": [
            _row(final if one.name == final.name else one, measured[one.name].metrics, scores, final.name)
            for one in candidates
        ],
        "next_best": rivals[0].name if rivals else None,
        "never_predicted": never_predicted(test),
        "errors": _confident_errors(inspection, measured[final.name]),
        "learning_curve": curve,
        "cost": _cost(final.model, final.latency, inspection),
        "settings": settings.model_dump(mode="json"),
    }
    result["next"] = next_steps(result, settings)
    result["seconds"] = time.monotonic() - start
    return result, {name: one.predictions for name, one in measured.items()}


def write_results(folder: Path, result: Tree) -> None:
    """Write ``result.json``, which makes the folder a finished fit."""
    write_text(folder / RESULT, json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def candidate_row(name: str, title: str, parameters: int, spent: Clock, **further: object) -> Tree:
    """Return the description of a candidate in ``result.json``, with ``further`` keys."""
    seconds = {"seconds": round(spent.wall, 1), "processor_seconds": round(spent.processor, 1)}
    return {"name": name, "title": title, "parameters": parameters} | seconds | further


def _row(one: Candidate, test: Metrics, scores: Mapping[str, NDArray[np.float64]], selected: str) -> Tree:
    parameters, latency = 0 if one.model is None else one.model.parameters, round(one.latency, 2)
    metrics = {"validation": scalars(one.validation), "test": scalars(test)}
    row = candidate_row(one.name, one.title, parameters, one.seconds, latency=latency, **metrics)
    if one.name != selected:
        differences = scores[selected] - scores[one.name]
        row["difference"] = float(differences.mean())
        row["difference_interval"] = bootstrap_interval(differences)
        row["p"] = permutation_test(differences, 1.0 if np.isin(differences, (-1, 0, 1)).all() else None)
    return row


def numbers_not_in_sources(test: Metrics) -> list[str]:
    """Return a warning if many numbers of generated texts are not in their sources."""
    share = invented_numbers([RecordedMetrics.model_validate(test)])
    return [f"{share:.0%} of the numbers in generated texts are not in their sources"] if share else []


def not_better(parts: Mapping[str, tuple[Metrics, Metrics]], title: str, metric: str, task: str) -> list[str]:
    """Return a warning if the selected model is not better than the baseline ``title`` on each part.

    ``parts`` are the metrics of the model and of the baseline, by name of the part. Numbers are compared by their
    absolute error, as a baseline that predicts one number has no correlation.
    """
    metric, sign = ("absolute_error", -1.0) if task == "regression" else (metric, 1.0)
    for part, (model, baseline) in parts.items():
        if (value := baseline.get(metric)) is not None and sign * value >= sign * (model.get(metric) or 0.0):
            shown = f"{value:.3g}" if task == "regression" else metric_text(value, task)
            named = f"{formats.metric_title(metric)} {shown} on the {part} examples"
            return [f"the selected model is not better than the baseline {title!r} ({named})"]
    return []


def never_predicted(test: Metrics) -> list[str]:
    """Classes of the test examples with a recall of 0."""
    classes: Mapping[str, Metrics] = test.get("per_class", {})
    return [name for name, values in classes.items() if values["support"] and not values["recall"]]


def _confident_errors(inspection: Inspection, measured: Measured) -> list[Tree]:
    """Wrong test predictions with the greatest loss, or numbers with the greatest error."""
    labels = inspection.labels
    wrong = [index for index, one in enumerate(measured.predictions) if one["truth"] != one["predicted"]]
    losses = [-float(str(one["score"])) if labels is None else float(str(one["loss"])) for one in measured.predictions]
    wrong.sort(key=lambda index: -losses[index])
    texts = readable_texts([inspection.measured[index] for index in wrong[:_ERRORS]])
    return [
        {
            "row": inspection.measured[index].row - 1,  # from 0, as in the predictions
            "text": " ".join(text.split())[:_CHARACTERS],
            "truth": measured.predictions[index]["truth"],
            "predicted": measured.predictions[index]["predicted"],
            "probability": None
            if labels is None or labels.multi_label
            else max(cast(list[float], measured.predictions[index]["probability"])),
        }
        for index, text in zip(wrong, texts, strict=False)
    ]


def _learning_curve(inspection: Inspection, metric: str, candidates: Sequence[Candidate], end: float) -> list[Tree]:
    """Validation metric of a linear model on words, by number of training examples; empty if time does not suffice."""
    linear = sum(one.seconds.wall for one in candidates if one.name == "linear")
    if time.monotonic() + _FIRST_POINT * linear > end:
        return []
    order = np.random.default_rng(0).permutation(len(inspection.train))
    curve: list[Tree] = []
    started = time.monotonic()
    for number, share in enumerate(_CURVE_SHARES):
        count = int(share * len(order))
        part = [inspection.train[index] for index in np.sort(order[:count])]
        if not part or (inspection.labels is not None and len({str(example.label) for example in part}) < 2):
            continue
        done, now = sum(_CURVE_SHARES[:number]), time.monotonic()
        if done and (now - started) / done * sum(_CURVE_SHARES[number:]) > end - now:
            return []
        with suppress(UserError):  # texts without words
            model, _ = fit_linear_model(inspection, part, settings=PLAIN)
            curve.append({"examples": count, metric: measure(model, inspection.validation).metrics.get(metric)})
    return curve


def _cost(model: TextModel, latency: float, inspection: Inspection) -> Tree:
    count = int(1000 * _TIMED_SECONDS / max(latency, 1.0))
    examples = list(inspection.measured[: min(_TIMED, max(10, count))])
    start, processor = time.perf_counter(), time.process_time()
    model.outputs(examples)
    wall, used = time.perf_counter() - start, time.process_time() - processor
    return {
        "seconds_per_1000": 1000 * wall / len(examples),
        "processor_seconds_per_1000": 1000 * used / len(examples),
        "parameters": model.parameters,
    }


def next_steps(result: Tree, settings: FitSettings) -> list[str]:
    """Return steps that may improve the model, the most promising first, as sentences with commands."""
    steps = []
    metric, more = result["metric"], max(600.0, 2 * settings.seconds)
    values = [one[metric] for one in result["learning_curve"][-2:]]
    gain = values[1] - values[0] if len(values) == 2 and None not in values else 0.0
    if names := result["never_predicted"]:
        steps.append(f"label more examples of the classes with recall 0: {capped(names)}")
    if gain > 0.01:
        raised = f"{gain:.3f}" if result["task"] == "regression" else f"{100 * gain:.1f} points"
        steps.append(
            f"label more examples: the last doubling raised the {formats.metric_title(metric)} of a linear model by "
            f"{raised} on validation"
        )
    if any("--time" in reason for reason in result["skipped"]):
        settings = settings.model_copy(update={"seconds": more})
        steps.append(f"give more time: {settings.command()}")
    elif {one["name"] for one in result["candidates"]} & {"own", "model"}:
        steps.append(f"give more time: {settings.command(seconds=more)}")
    if not settings.start_from:
        steps.append(f"start from a pretrained model: {settings.command(start_from=['CHECKPOINT'])}")
    if not settings.texts and not settings.start_from and result["task"] != "language-model":
        steps.append(f"pretrain on more text without labels: {settings.command(texts=['FILES'])}")
    return steps
