"""Records of runs -> plain tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from homespun.report import formats
from homespun.report.formats import number
from homespun.report.read import (
    RunRecord,
    Tree,
    architecture,
    as_list,
    as_tree,
    comparable,
    final_losses,
    flatten,
    is_share,
    loss_terms,
)
from homespun.report.significance import wilson_interval
from homespun.report.table import Column, Table

BASELINES = {"majority": "majority class", "tfidf": "TF-IDF + linear"}
"""Names of baselines as people read them; others keep their own."""
CLASSES = ("accuracy", "macro_f1", "log_loss", "roc_auc")
"""The metrics of those who name classes; what others are measured by is in `homespun.report.tasks`."""


def mean_and_deviation(tests: Sequence[Tree], metric: str) -> tuple[float, float | None] | None:
    """Mean and sample deviation of a metric over seeds or folds; the deviation is ``None`` for one.

    The metrics of a baseline over folds come summed up already, as ``{mean, std}``.
    """
    if len(tests) == 1 and (mean := number(as_tree(tests[0].get(metric)).get("mean"))) is not None:
        return mean, number(as_tree(tests[0][metric]).get("std"))
    values = [known for test in tests if (known := number(test.get(metric))) is not None]
    return (fmean(values), stdev(values) if len(values) > 1 else None) if values else None


def accuracy(record: RunRecord) -> float | None:
    """The test accuracy of a run, the mean over its seeds."""
    found = mean_and_deviation(record.tests(), "accuracy")
    return found and found[0]


def distinct_baselines(records: Sequence[RunRecord]) -> dict[str, tuple[Tree, float | None]]:
    """Metrics of the baselines and on how many texts, by the name to show; the same one in several runs once, and those
    that differ with their run's name."""
    shown: dict[str, tuple[Tree, float | None]] = {}
    for record in records:
        for key, metrics in record.baselines().items():
            name, rows = BASELINES.get(key, key), number(metrics.get("rows")) or record.test_rows()
            known, _ = shown.setdefault(name, (metrics, rows))
            if any(known.get(metric) != metrics.get(metric) for metric in ("accuracy", "macro_f1", "rows")):
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
        Column("trainings", formats.whole),
        Column("test texts", formats.whole),
    )
    note = (
        "The interval (Wilson) says how far chance in the choice of test texts reaches; "
        "± is the deviation over trainings (seeds, folds), where there are several."
    )
    return Table("results", "On the test texts", columns, tuple(rows), note).without_empty_columns()


def _result(name: str, tests: Sequence[Tree], rows: float | None, trainings: int | None) -> tuple[Any, ...]:
    accuracy = mean_and_deviation(tests, "accuracy")
    log_loss, area = mean_and_deviation(tests, "log_loss"), mean_and_deviation(tests, "roc_auc")
    return (
        name,
        accuracy,
        wilson_interval(accuracy[0], rows) if accuracy and rows else None,
        mean_and_deviation(tests, "macro_f1"),
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
        Column("iterations", formats.whole),
        Column("time", formats.duration),
        Column("state", numeric=False),
    )
    keys = ("parameters", "peak_bytes", "seconds_per_step", "tokens_per_second", "tokens", "steps", "seconds")
    rows = tuple((r.name, architecture(r), *(r.summary.get(key) for key in keys), _state(r)) for r in records)
    note = "Memory with gradients and optimizer; seconds per iteration is the median; padding is not counted as tokens."
    return Table("resources", "In training", columns, rows, note).without_empty_columns()


def _state(record: RunRecord) -> str | None:
    if record.end is None:
        return "unfinished" if record.trouble else None
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
    shown = {term: words(term) for term in terms if len(terms) > 1} | {"loss": "overall" if len(terms) > 1 else "loss"}
    shares = list(dict.fromkeys(t for _, validation in finals.values() for t in validation if is_share(t)))
    columns = (
        Column("run", numeric=False),
        *(Column(f"{title}, {side}", formats.loss) for title in shown.values() for side in ("train", "validation")),
        *(Column(f"{words(term)}, validation", formats.percent) for term in shares),
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


def words(term: str) -> str:
    """A term of the loss as people read it."""
    return {"mlm": "masked LM", "causal": "causal LM"}.get(term, term.replace("_", " "))


def per_class(record: RunRecord, name: str) -> Table | None:
    """Precision, recall and F1 of each class in the first test, beside the F1 of TF-IDF."""
    tests = record.tests()
    classes = as_tree(tests[0].get("per_class")) if tests else {}
    if not classes:
        return None
    other = as_tree(record.baselines().get("tfidf", {}).get("per_class"))
    columns = (
        Column("class", numeric=False),
        Column("precision", formats.share),
        Column("recall", formats.share),
        Column("F1", formats.share),
        Column("F1 of TF-IDF + linear", formats.share),
        Column("test texts", formats.whole),
    )
    keys = ("precision", "recall", "f1")
    rows = tuple(
        (
            str(label),
            *(number(as_tree(metrics).get(key)) for key in keys),
            number(as_tree(other.get(label)).get("f1")),
            number(as_tree(metrics).get("support")),
        )
        for label, metrics in classes.items()
    )
    return Table(name, "Per class", columns, rows).without_empty_columns()


def lengths(record: RunRecord, name: str) -> Table | None:
    """Statistics of lengths, where the result gives them: a list of rows, or nested mappings of split and class."""
    given = record.result.get("lengths")
    rows = [row for row in as_list(given) if isinstance(row, Mapping)] or _nested(as_tree(given), ())
    titles = list(dict.fromkeys(str(key) for row in rows for key, value in row.items() if not _is_bulk(value)))
    if not rows or not titles:
        return None
    columns = []
    for title in titles:
        is_text = any(isinstance(row.get(title), str) for row in rows)
        columns.append(Column(words(title), formats.text if is_text else formats.amount, numeric=not is_text))
    body = tuple(tuple(row.get(title) for title in titles) for row in rows)
    return Table(name, "Lengths in tokens", tuple(columns), body)


def _is_bulk(value: object) -> bool:
    return isinstance(value, (list, Mapping))


def _nested(tree: Tree, place: tuple[str, ...]) -> list[dict[str, Any]]:
    if any(number(value) is not None for value in tree.values()):
        return [{**({"of": " / ".join(place)} if place else {}), **tree}]
    return [row for key, child in tree.items() for row in _nested(as_tree(child), (*place, str(key)))]


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


def side_by_side(trees: Sequence[Tree]) -> list[tuple[Any, ...]]:
    """A row for every dotted key that some tree has: the key, and its value in each."""
    flat = [flatten(tree) for tree in trees]
    keys = dict.fromkeys(key for tree in flat for key in tree)
    return [(key, *(tree.get(key) for tree in flat)) for key in keys]
