"""Records of runs -> plain tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from homespun.report import formats
from homespun.report.records import (
    RunRecord,
    architecture,
    comparable,
    final_losses,
    flatten,
    is_share,
    loss_terms,
)
from homespun.report.significance import wilson_interval
from homespun.report.table import Column, Table
from homespun.results import Metrics, mean_over_trainings

BASELINES = {"majority": "majority class", "tfidf": "TF-IDF + linear"}
"""Names of baselines as people read them; others keep their own."""
CLASSES = ("accuracy", "macro_f1", "log_loss", "roc_auc")
"""The metrics of those who name classes; what others are measured by is in `homespun.report.tasks`."""


def accuracy(record: RunRecord) -> float | None:
    """The test accuracy of a run, the mean over its seeds."""
    found = mean_over_trainings(record.tests(), "accuracy")
    return found and found[0]


def distinct_baselines(records: Sequence[RunRecord]) -> dict[str, tuple[Metrics, float | None]]:
    """Metrics of the baselines and on how many texts, by the name to show; the same one in several runs once, and those
    that differ with their run's name."""
    shown: dict[str, tuple[Metrics, float | None]] = {}
    for record in records:
        for key, metrics in record.result.baselines.items():
            name, rows = BASELINES.get(key, key), metrics.rows or record.test_rows()
            known, _ = shown.setdefault(name, (metrics, rows))
            if any(known.spread(metric) != metrics.spread(metric) for metric in ("accuracy", "macro_f1", "rows")):
                shown[f"{name} ({record.name})"] = metrics, rows
    return shown


def results(records: Sequence[RunRecord]) -> Table | None:
    """Test metrics of the models that name classes and of the baselines; ``None`` where nothing was tested."""
    records = [record for record in records if record.names_classes]
    rows = [
        _result(record.name, tests, record.test_rows(), len(tests)) for record in records if (tests := record.tests())
    ]
    rows += [_result(name, [metrics], rows, None) for name, (metrics, rows) in distinct_baselines(records).items()]
    if not rows:
        return None
    columns = (
        Column("model", numeric=False),
        Column("accuracy", formats.spread, parts=("mean", "deviation")),
        Column("95 % interval", formats.interval, parts=("low", "high")),
        Column("macro F1", formats.share_spread, parts=("mean", "deviation")),
        Column("log loss", formats.loss),
        Column("ROC AUC", formats.share),
        Column("trainings", formats.integer),
        Column("test texts", formats.integer),
    )
    note = "95 % interval: Wilson, over test examples. ±: standard deviation over trainings (seeds, folds)."
    return Table("results", "Test set", columns, tuple(rows), note).without_empty_columns()


def _result(name: str, tests: Sequence[Metrics], rows: float | None, trainings: int | None) -> tuple[Any, ...]:
    accuracy = mean_over_trainings(tests, "accuracy")
    log_loss, area = mean_over_trainings(tests, "log_loss"), mean_over_trainings(tests, "roc_auc")
    return (
        name,
        accuracy,
        wilson_interval(accuracy[0], rows) if accuracy and rows else None,
        mean_over_trainings(tests, "macro_f1"),
        log_loss and log_loss[0],
        area and area[0],
        trainings,
        rows,
    )


def resources(records: Sequence[RunRecord]) -> Table:
    """What each run took: parameters, memory, time, tokens."""
    columns = (
        Column("run", numeric=False),
        Column("architecture", numeric=False),
        Column("parameters", formats.count),
        Column("peak memory", formats.memory),
        Column("seconds per iteration", formats.step_seconds),
        Column("tokens/s", formats.rate),
        Column("tokens seen", formats.count),
        Column("iterations", formats.integer),
        Column("time", formats.duration),
        Column("state", numeric=False),
    )
    keys = ("parameters", "peak_bytes", "seconds_per_step", "tokens_per_second", "tokens", "steps", "seconds")
    rows = tuple((r.name, architecture(r), *(r.summary.get(key) for key in keys), _state(r)) for r in records)
    note = "Memory with gradients and optimizer; seconds per iteration is the median; padding is not counted as tokens."
    return Table("resources", "In training", columns, rows, note).without_empty_columns()


def _state(record: RunRecord) -> str | None:
    if record.end is None:
        return "unfinished" if record.warning else None
    known = {"budget": "budget used", "early_stopping": "stopped early", "not_finite": "loss not finite"}
    return known.get(record.end, record.end.replace("_", " "))


def losses(records: Sequence[RunRecord]) -> list[Table]:
    """Losses when training was over, by term, of training and of validation, and shares that were right after them: a
    table for each group of runs whose losses can be compared."""
    groups = comparable(records)
    return [_losses(group, "losses" if len(groups) == 1 else f"losses-{i}") for i, group in enumerate(groups, start=1)]


def _losses(records: Sequence[RunRecord], name: str) -> Table:
    finals = {record.name: final_losses(record) for record in records}
    terms = loss_terms(records[0])
    # the one term of a plain objective is its whole loss
    shown = {term: term_title(term) for term in terms if len(terms) > 1} | {
        "loss": "overall" if len(terms) > 1 else "loss"
    }
    shares = list(dict.fromkeys(t for _, validation in finals.values() for t in validation if is_share(t)))
    columns = (
        Column("run", numeric=False),
        *(Column(f"{title}, {side}", formats.loss) for title in shown.values() for side in ("train", "validation")),
        *(Column(f"{term_title(term)}, validation", formats.percent) for term in shares),
    )
    rows = tuple(
        (
            name,
            *(side.get(term) for term in shown for side in (train, validation)),
            *(validation.get(term) for term in shares),
        )
        for name, (train, validation) in finals.items()
    )
    note = "Train: mean of the last tenth of the run. Validation: on text that was not trained on, at the end."
    return Table(name, "Losses at the end", columns, rows, note).without_empty_columns()


def term_title(term: str) -> str:
    """A term of the loss as people read it."""
    return {"mlm": "masked LM", "causal": "causal LM"}.get(term, term.replace("_", " "))


def per_class(record: RunRecord, name: str) -> Table | None:
    """Precision, recall and F1 of each class in the first test, beside the F1 of TF-IDF."""
    tests = record.tests()
    if not tests or not tests[0].per_class:
        return None
    tfidf = record.result.baselines.get("tfidf", Metrics()).per_class
    columns = (
        Column("class", numeric=False),
        Column("precision", formats.share),
        Column("recall", formats.share),
        Column("F1", formats.share),
        Column("F1 of TF-IDF + linear", formats.share),
        Column("test texts", formats.integer),
    )
    rows = tuple(
        (label, found.precision, found.recall, found.f1, tfidf[label].f1 if label in tfidf else None, found.support)
        for label, found in tests[0].per_class.items()
    )
    return Table(name, "Per class", columns, rows).without_empty_columns()


def lengths(record: RunRecord, name: str) -> Table | None:
    """Statistics of lengths by split and class."""
    rows = record.result.lengths
    titles = list(dict.fromkeys(str(key) for row in rows for key, value in row.items() if not _is_bulk(value)))
    if not rows or not titles:
        return None
    columns = []
    for title in titles:
        is_text = any(isinstance(row.get(title), str) for row in rows)
        columns.append(Column(term_title(title), formats.text if is_text else formats.amount, numeric=not is_text))
    body = tuple(tuple(row.get(title) for title in titles) for row in rows)
    return Table(name, "Lengths in tokens", tuple(columns), body)


def _is_bulk(value: object) -> bool:
    return isinstance(value, (list, Mapping))


def differences(records: Sequence[RunRecord]) -> list[Table]:
    """The settings that are not the same in all runs: a table for each group of runs whose losses can be compared."""
    found = [_differences(group, i) for i, group in enumerate(comparable(records), start=1)]
    return [table for table in found if table is not None]


def _differences(records: Sequence[RunRecord], number: int) -> Table | None:
    columns = (Column("setting", numeric=False), *(Column(record.name, numeric=False) for record in records))
    rows = [row for row in side_by_side([record.config for record in records]) if len(set(map(repr, row[1:]))) > 1]
    return Table(f"differences-{number}", "Settings that differ", columns, tuple(rows)) if rows else None


def environment(records: Sequence[RunRecord]) -> Table | None:
    """Machine and versions; one column where all runs had the same."""
    known = [record for record in records if record.environment]
    if not known:
        return None
    rows = [
        (key, *(formats.memory(v) if key.endswith("_bytes") else v for v in values))
        for key, *values in side_by_side([record.environment for record in known])
    ]
    if all(len(set(map(repr, row[1:]))) == 1 for row in rows):
        columns: tuple[Column, ...] = (Column("what", numeric=False), Column("value", numeric=False))
        rows = [row[:2] for row in rows]
    else:
        columns = (Column("what", numeric=False), *(Column(record.name, numeric=False) for record in known))
    return Table("environment", "Machine and versions", columns, tuple(rows))


def side_by_side(trees: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """A row for every dotted key that some tree has: the key, and its value in each."""
    flat = [flatten(tree) for tree in trees]
    keys = dict.fromkeys(key for tree in flat for key in tree)
    return [(key, *(tree.get(key) for tree in flat)) for key in keys]
