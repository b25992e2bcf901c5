"""Records of run directories, and scores of single test examples."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from homespun.config import read_yaml
from homespun.errors import UserError, quantity
from homespun.io.json import read_optional
from homespun.migration import migrate
from homespun.report.formats import metric_title, number
from homespun.results import Event, Metrics, RunResult, Validation, is_number, mean_over_trainings

Tree = Mapping[str, Any]
_LEAST_SHARE = 0.1  # of equal outputs, or of unsupported numbers, that is reported
FILES = ("config.yaml", "environment.json", "metrics.jsonl", "result.json")


class Point(NamedTuple):
    """Value of a quantity after a step."""

    step: float
    seconds: float  # seconds of training
    value: float
    tokens: float = 0.0  # tokens seen


Series = list[Point]
"""Points of a quantity in the order of training."""


@dataclass
class RunRecord:
    """Content of a run directory."""

    path: Path
    name: str
    config: Tree
    environment: Tree
    result: RunResult
    train: dict[str, Series] = field(default_factory=dict)  # curve of each loss term; "loss" is the total
    validation: dict[str, Series] = field(default_factory=dict)
    learning_rate: Series = field(default_factory=list)
    summary: dict[str, float | None] = field(default_factory=dict)  # numbers of result.json or of the metrics
    trial: str | None = None  # folder of the training whose metrics these are, if there are several
    end: str | None = None  # reason in the last `end` event

    def tests(self) -> list[Metrics]:
        """Test metrics of every seed or fold, or of the single training; empty for a pretraining run."""
        found = self.result.trainings()
        return [test for test in found if any(test.number(measure) is not None for measure in self.measures)]

    @property
    def measures(self) -> list[str]:
        """Test metrics to show; the first ranks models."""
        return self.result.measures or ["accuracy"]

    @property
    def shown_measures(self) -> list[str]:
        """Test metrics shown with their spread in tables and sentences, the most important first."""
        return ["accuracy", "macro_f1"] if self.names_classes else self.measures

    @property
    def names_classes(self) -> bool:
        """True for a text classifier."""
        return self.measures[0] == "accuracy" and self.result.task == "classification"

    def test_rows(self) -> float | None:
        """Number of test examples, summed over folds."""
        return self.count_rows(self.tests())

    def count_rows(self, tests: Sequence[Metrics]) -> float | None:
        """Number of examples of ``tests``, one for each training; summed over folds."""
        rows = [test.rows or 0.0 for test in tests]
        if self.result.measured_on == "folds":
            return sum(rows) / (number(self.config.get("seeds")) or 1.0) or None
        return rows[0] if rows and rows[0] > 0 else None

    @property
    def warning(self) -> str | None:
        """Predicate of a sentence on a run that did not end normally, else None."""
        step = self.summary.get("steps")
        at = "" if step is None else f" at step {step:,.0f}"
        if self.end == "interrupted":
            return f"was interrupted{at}; results up to there"
        if self.end == "not_finite":
            return f"stopped{at}: its loss was not finite"
        if not self.result.model_fields_set:  # written last, after the end of the first of several trainings
            return f"did not finish{at}: it is running, or was killed"
        return None


def as_tree(value: object) -> Tree:
    """Return ``value`` if it is a mapping, else an empty mapping."""
    return value if isinstance(value, Mapping) else {}


def read_runs(paths: Sequence[str | Path]) -> list[RunRecord]:
    """Read run directories in the given order, with distinct names.

    Raises:
        UserError: no run given, a folder that is not a run directory, or a damaged file.
    """
    if not paths:
        raise UserError("a report needs at least one run directory; none was given")
    records = [read_run(Path(path)) for path in paths]
    names = [record.name for record in records]
    for record in records:
        if names.count(record.name) > 1:
            resolved = record.path.resolve()
            record.name = f"{resolved.parent.name}/{resolved.name}"
    names = [record.name for record in records]
    for position, record in enumerate(records):
        if (before := names[:position].count(record.name)) > 0:
            record.name = f"{record.name} ({before + 1})"
    return records


def read_run(path: Path) -> RunRecord:
    """Read a run directory.

    Raises:
        UserError: no such folder, no files of a run in it, or a file that is damaged or of another version.
    """
    if not any((path / name).is_file() for name in FILES):
        state = "has none of a run's files" if path.is_dir() else "is not a folder"
        raise UserError(f"{path} {state}; a run directory holds {', '.join(FILES)}")
    result = RunResult.read(path / "result.json")
    record = RunRecord(
        path=path,
        name=result.name or path.resolve().name,
        config=migrate(read_yaml(path / "config.yaml")) if (path / "config.yaml").is_file() else {},
        environment=read_optional(path / "environment.json"),
        result=result,
    )
    metrics = path / "metrics.jsonl"
    if not metrics.is_file() and (of_trials := sorted(path.glob("trials/*/metrics.jsonl"))):
        metrics = of_trials[0]
        record.trial = metrics.parent.name
    _read_metrics(record, metrics)
    return record


def _events(path: Path) -> Iterator[Event]:
    """Yield the events of a metrics file; invalid lines, as after a kill, are skipped."""
    if not path.is_file():
        return
    with path.open("rb") as lines:
        for line in lines:
            with contextlib.suppress(ValidationError):
                yield Event.model_validate_json(line)


def _read_metrics(record: RunRecord, path: Path) -> None:
    own: dict[str, Series] = {key: [] for key in ("time", "learning_rate", "seconds", "tokens", "epoch")}
    parameters = peak = None
    for event in _events(path):
        match event.event:
            case "start" | "resume":
                record.end = None
                parameters = event.number("parameters") or parameters
                for series in (*record.train.values(), *record.validation.values(), *own.values()):
                    series[:] = [point for point in series if point.step <= event.step]
            case "step":
                _add_losses(record.train, event)
                for key, series in own.items():
                    if (value := event.number(key)) is not None:
                        series.append(Point(event.step, event.time, value))
            case "validation":
                _add_losses(record.validation, event)
            case "memory":
                peak = max(peak or 0.0, event.number("peak_bytes") or 0.0) or None
            case "end":
                record.end = str(event.reason)
    record.learning_rate = own["learning_rate"]
    last = {key: series[-1] for key, series in own.items() if series}
    known: dict[str, float | None] = {
        "parameters": parameters,
        "steps": last["time"].step if "time" in last else None,
        "tokens": last["tokens"].value if "tokens" in last else None,
        "epochs": last["epoch"].value if "epoch" in last else None,
        "seconds": last["time"].value if "time" in last else None,
        "seconds_per_step": median(point.value for point in own["seconds"]) if own["seconds"] else None,
        "peak_bytes": peak,
    }
    if (total := known["tokens"]) and (elapsed := known["seconds"]):
        known["tokens_per_second"] = total / elapsed
    record.summary = {**known, **record.result.numbers()}


def _add_losses(curves: dict[str, Series], event: Event) -> None:
    for term, value in event.all_losses().items():
        curves.setdefault(term, []).append(Point(event.step, event.time, value, event.number("tokens") or 0.0))


def constant_output(tests: Sequence[Metrics]) -> float:
    """Return the share of the most frequent output text if it is far more frequent than the same target, else 0."""
    return _above_targets(tests, "commonest")


def invented_numbers(tests: Sequence[Metrics]) -> float:
    """Return the share of numbers that are not in their sources if it is far above that of targets, else 0."""
    return _above_targets(tests, "unsupported_numbers")


def _above_targets(tests: Sequence[Metrics], name: str) -> float:
    written, targets = (mean_over_trainings(tests, key) for key in (name, f"{name}_target"))
    if written is None or targets is None:
        return 0.0
    return written[0] if written[0] > _LEAST_SHARE + 2 * targets[0] else 0.0


def undefined(name: str, tests: Sequence[Metrics], measure: str) -> str | None:
    """Return a sentence if some trainings have no ``measure`` and others have; None otherwise."""
    missing = sum(test.number(measure) is None for test in tests)
    if missing in (0, len(tests)):
        return None
    return (
        f"The mean {metric_title(measure)} of {name} leaves out {missing} of {len(tests)} trainings, where it is "
        f"undefined, for example because all predictions are equal."
    )


def loss_terms(record: RunRecord) -> list[str]:
    """Return the loss terms in order, without the total and without logged shares such as ``mlm_accuracy``."""
    train, validation = final_losses(record)
    return [term for term in (train | validation) if term != "loss" and not is_share(term)]


def pretraining_quantity(record: RunRecord) -> str:
    """Return a key of the quantity that a pretraining loss measures: terms, held-out rows, objective settings.

    Only losses with equal keys may be ranked.
    """
    settings = [record.config.get(part) for part in ("data", "objective")]
    return json.dumps([sorted(loss_terms(record)), settings], sort_keys=True, default=str)


def comparable(records: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """Group runs by their loss terms; only losses within a group are the same quantity."""
    groups: dict[tuple[str, ...], list[RunRecord]] = {}
    for record in records:
        if any(final_losses(record)):
            groups.setdefault(tuple(sorted(loss_terms(record))), []).append(record)
    return list(groups.values())


def is_share(term: str) -> bool:
    """True for a term that is a share (0 to 1) and not trained on."""
    return term.rpartition("_")[2] in {"accuracy", "recall", "precision", "f1"}


def final_losses(record: RunRecord) -> tuple[dict[str, float], dict[str, float]]:
    """Return the training loss (mean of the last tenth) and the last validation loss by term; ``loss`` is the total.

    Values of the result file have priority.
    """
    train = {term: fmean(p.value for p in s[-max(1, len(s) // 10) :]) for term, s in record.train.items() if s}
    validation = {term: s[-1].value for term, s in record.validation.items() if s}
    held_out = record.result.validation
    given = {**held_out.losses, "loss": held_out.loss}
    return train | _known(record.result.train), validation | _known(given)


def average(records: Sequence[RunRecord], name: str) -> RunRecord:
    """Average runs that differ only in their seed: curves point by point, numbers, losses.

    Other parts of ``result`` are those of the first run.
    """
    finals = [final_losses(record) for record in records]
    train, validation = (_means([losses[side] for losses in finals]) for side in (0, 1))
    held_out = Validation(loss=validation.get("loss"), losses=dict(validation))
    result = records[0].result.model_copy(update={"train": train, "validation": held_out})
    return replace(
        records[0],
        name=name,
        result=result,
        train=_mean_curves([record.train for record in records]),
        validation=_mean_curves([record.validation for record in records]),
        summary={**_means([record.summary for record in records])},
    )


def _mean_curves(curves: Sequence[Mapping[str, Series]]) -> dict[str, Series]:
    return {term: mean_series([own[term] for own in curves if term in own]) for term in curves[0]}


def mean_series(series: Sequence[Series]) -> Series:
    """Average curves point by point, up to the length of the shortest."""
    return [Point(*map(fmean, zip(*points, strict=True))) for points in zip(*series, strict=False)]


def _means(trees: Sequence[Mapping[str, float | None]]) -> dict[str, float]:
    keys = dict.fromkeys(key for tree in trees for key in tree)
    known = {key: [value for tree in trees if (value := tree.get(key)) is not None] for key in keys}
    return {key: fmean(values) for key, values in known.items() if values}


def _known(losses: Mapping[str, float | None]) -> dict[str, float]:
    return {term: value for term, value in losses.items() if is_number(value)}


def config_text(record: RunRecord) -> str:
    """Return the config of a run as YAML."""
    return str(yaml.safe_dump(dict(record.config), sort_keys=False, allow_unicode=True, width=100))


def architecture(record: RunRecord) -> str | None:
    """Describe the model in short: ``3 layers × 128, 2 heads``, and its differences from BERT."""
    backbone = _find(record.config, "num_hidden_layers")
    if backbone is None:
        return f"from {record.result.start_from}" if record.result.start_from else None
    cell, count = backbone.get("cell"), backbone.get("num_hidden_layers")
    layers = "layer" if count == 1 else "layers"
    kind = layers if cell is None else f"{str(cell).upper()} {layers}"
    words = [f"{count} {kind} × {backbone.get('hidden_size')}"]
    if cell is not None:
        ways = [word.replace("_", " ") for word in ("bidirectional", "independent_directions") if backbone.get(word)]
        return ", ".join([*words, *ways, *(["characters"] if backbone.get("characters") else [])])
    if "num_attention_heads" in backbone:
        words.append(quantity(backbone["num_attention_heads"], "head"))
    plain = {"attention": "full", "positions": "learned", "residual": "post"}
    for part, usual in plain.items():
        tree = as_tree(backbone.get(part))
        if tree.get("kind", usual) != usual:
            words.append(f"{tree['kind']} {part}{_settings(tree)}")
    return ", ".join(words)


def _settings(tree: Tree) -> str:
    """Format settings in parentheses: `` (radius 16, dilation 2)``; empty without settings."""
    words = []
    for key, value in tree.items():
        if isinstance(value, list) and value and all(isinstance(part, Mapping) for part in value):
            words.append(
                " + ".join(f"{str(part.get('kind', key)).replace('_', ' ')}{_settings(part)}" for part in value)
            )
        elif isinstance(value, Mapping):
            words.append(f"{key}{_settings(value)}")
        elif key != "kind" and value not in (None, False):
            words.append(f"{key.replace('_', ' ')} {value}" if value is not True else key.replace("_", " "))
    return f" ({', '.join(words)})" if words else ""


def _find(tree: Tree, key: str) -> Tree | None:
    if key in tree:
        return tree
    found = (_find(child, key) for child in tree.values() if isinstance(child, Mapping))
    return next((child for child in found if child is not None), None)


def scores(lines: Sequence[Mapping[str, object]], measure: str) -> list[float | None]:
    """Return the score of each line by ``measure``; None for measures of the test set, such as a correlation.

    A line has its score under the name of the measure. For ``accuracy`` of lines without scores it is 1 if
    ``predicted`` equals ``truth``, else 0. Its ``score`` is another quantity and may rank models differently.
    """
    if measure == "accuracy" and not any(measure in line or "score" in line for line in lines):
        return [float(line.get("truth") == line.get("predicted")) for line in lines]
    return [number(line.get(measure)) for line in lines]


def read_scores(file: Path, measure: str) -> list[tuple[int, str, float | None]]:
    """Read row number, true answer as JSON text and score of each prediction.

    Raises:
        UserError: a line is not JSON, or lacks a key.
    """
    rows: list[int] = []
    lines: list[dict[str, object]] = []
    with file.open(encoding="utf-8", errors="replace") as stream:
        for at, line in enumerate(stream, start=1):
            try:
                prediction = json.loads(line)
                row, needed = int(prediction["row"]), {name: prediction[name] for name in ("truth", "predicted")}
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise UserError(f"line {at} of {file.name} has no row, truth and predicted in JSON") from error
            rows.append(row)
            lines.append(needed | {name: prediction[name] for name in (measure, "score") if name in prediction})
    truths = [json.dumps(line["truth"], sort_keys=True) for line in lines]
    return list(zip(rows, truths, scores(lines, measure), strict=True))
