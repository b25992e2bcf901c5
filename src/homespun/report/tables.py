"""Tables of runs, or of means of variants in a comparison. A table without rows is not shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from homespun.config import flatten
from homespun.report import formats
from homespun.report.document import Column, Getter, Row, Table, numbers, text, texts, value
from homespun.report.formats import baseline_title, metric_title, term_title
from homespun.report.records import (
    RunRecord,
    Tree,
    architecture,
    as_tree,
    comparable,
    final_losses,
    is_share,
    loss_terms,
)
from homespun.report.significance import wilson_interval
from homespun.results import CurvePoint, Metrics, RunResult, Spread, mean_over_trainings

_RESOURCES = {
    "parameters": Column("parameters", formats.count),
    "flops_per_token": Column("FLOPs per token", formats.count),
    "peak_bytes": Column("peak memory", formats.memory),
    "inference_bytes": Column("peak memory, inference", formats.memory),
    "seconds_per_step": Column("seconds per iteration", formats.step_seconds),
    "tokens_per_second": Column("tokens/s", formats.rate),
    "tokens": Column("tokens seen", formats.count),
    "steps": Column("iterations", formats.integer),
    "seconds": Column("time", formats.duration),
}
_ENDS = {"budget": "budget used", "early_stopping": "stopped early", "not_finite": "loss not finite"}


def accuracy(record: RunRecord) -> float | None:
    """Return the test accuracy of a run, the mean over its trainings."""
    found = mean_over_trainings(record.tests(), "accuracy")
    return found and found[0]


def results(records: Sequence[RunRecord]) -> list[Table]:
    """Build tables of test metrics of models and baselines: classification first, then by group of metrics."""
    shown = [record for record in records if record.tests() or record.result.baselines]
    groups: dict[tuple[str, ...], list[RunRecord]] = {}
    for record in sorted(shown, key=lambda record: not record.names_classes):
        groups.setdefault(() if record.names_classes else tuple(record.measures), []).append(record)
    return [_results(group) for group in groups.values()]


def _results(records: Sequence[RunRecord]) -> Table:
    classes = records[0].names_classes
    main, *others = records[0].shown_measures
    further = {"log_loss": formats.loss, "roc_auc": formats.share} if classes else {"words": formats.rate}

    def row(name: str, tests: Sequence[Metrics], trainings: int | None, examples: float | None) -> Row:
        first = mean_over_trainings(tests, main)
        interval = wilson_interval(first[0], examples) if classes and first and examples else None
        means = (found and found[0] for metric in further for found in [mean_over_trainings(tests, metric)])
        return (
            *(name, first, interval, *(mean_over_trainings(tests, other) for other in others), *means),
            *(trainings, examples),
        )

    rows = []
    for record in records:
        if tests := record.tests():
            rows.append(row(record.name, tests, len(tests), record.test_rows()))
            for part in dict.fromkeys(part for test in tests for part in test.by_set):
                found = [test.by_set[part] for test in tests if part in test.by_set]
                rows.append(row(f"{record.name}: {part}", found, len(found), record.count_rows(found)))
    rows += [row(name, [found], None, n) for name, (found, n) in distinct_baselines(records, (main, *others)).items()]
    columns = (
        *texts("model"),
        *numbers(formats.spread if classes else formats.share_spread, metric_title(main)),
        *numbers(formats.interval, "95 % interval"),
        *numbers(formats.share_spread, *map(metric_title, others)),
        *(Column(metric_title(metric), write) for metric, write in further.items()),
        *numbers(formats.integer, "trainings", "examples"),
    )
    note = "±: standard deviation over trainings (seeds, folds)."
    note = f"95 % interval: Wilson, over examples. {note}" if classes else note
    title = "Validation set" if all(r.result.measured_on == "validation" for r in records) else "Test set"
    return Table("results", title, columns, tuple(rows), note).without_empty_columns()


def distinct_baselines(records: Sequence[RunRecord], metrics: Sequence[str]) -> dict[str, tuple[Metrics, float | None]]:
    """Return metrics and number of test examples of each baseline by title.

    A different baseline of another run has both names in its title.
    """
    shown: dict[str, tuple[Metrics, float | None]] = {}
    for record in records:
        for key, found in record.result.baselines.items():
            # `found.rows` are those of one fold; `homespun baselines` writes the number of all test examples
            name, rows = baseline_title(key), record.test_rows() or record.result.number("rows") or found.rows
            known, _ = shown.setdefault(name, (found, rows))
            if any(known.spread(metric) != found.spread(metric) for metric in (*metrics, "rows")):
                shown[f"{name} ({record.name})"] = found, rows
    return shown


def baselines(result: RunResult) -> Table:
    """Build a table of baselines without a model: means and deviations over folds of their metrics."""
    found = [(name, value) for metrics in result.baselines.values() for name, value in metrics.numbers().items()]
    metrics = dict.fromkeys(name for name, value in found if isinstance(value, float) and name != "seconds")

    def of(metric: str) -> Getter[tuple[str, Metrics]]:
        return value(metric_title(metric), lambda item: item[1].spread(metric), formats.share_spread)

    return Table.of(
        "baselines",
        f"Baselines on {formats.integer(result.number('rows'))} examples ({result.measured_on})",
        result.baselines.items(),
        text("baseline", lambda item: baseline_title(item[0])),
        *map(of, metrics),
    )


def resources(records: Sequence[RunRecord]) -> Table:
    """Build a table of parameters, memory, time and tokens of each run."""
    rows = [(record.name, architecture(record), record.summary, _state(record)) for record in records]
    note = "Memory with gradients and optimizer; seconds per iteration is the median; padding is not counted as tokens."
    return resource_table("resources", "In training", rows, note)


def resource_table(
    name: str,
    title: str,
    rows: Iterable[tuple[str, str | None, Mapping[str, float | None], str | None]],
    note: str,
    headings: Mapping[str, str] | None = None,
) -> Table:
    """Build a row for each run or variant: name, architecture, quantities by key, state.

    ``headings`` replace those of keys, including ``run`` and ``state``.
    """
    shown = {"run": "run", "state": "state", **{key: column.title for key, column in _RESOURCES.items()}}
    shown |= headings or {}
    columns = (
        *texts(shown["run"], "architecture"),
        *(Column(shown[key], column.write) for key, column in _RESOURCES.items()),
        *texts(shown["state"]),
    )
    body = tuple((row, kind, *map(found.get, _RESOURCES), state) for row, kind, found, state in rows)
    return Table(name, title, columns, body, note).without_empty_columns()


def _state(record: RunRecord) -> str | None:
    if record.end is None or (record.trial is not None and not record.result.model_fields_set):
        return "unfinished" if record.warning else None
    done, train = record.summary.get("epochs"), as_tree(record.config.get("train"))
    planned = formats.number(as_tree(train.get("budget")).get("epochs"))
    if record.end == "budget" and done is not None and planned is not None and done < 0.99 * planned:
        return f"budget used after {done:.1f} of {planned:g} epochs"
    return _ENDS.get(record.end, record.end.replace("_", " "))


def losses(records: Sequence[RunRecord]) -> list[Table]:
    """Build tables of final training and validation losses by term, for each group of comparable losses."""
    groups = comparable(records)
    return [_losses(group, "losses" if len(groups) == 1 else f"losses-{i}") for i, group in enumerate(groups, start=1)]


def _losses(records: Sequence[RunRecord], name: str) -> Table:
    finals = {record.name: final_losses(record) for record in records}
    terms = loss_terms(records[0])
    # a single term is the total loss
    shown = {term: term_title(term) for term in terms if len(terms) > 1} | {
        "loss": "overall" if len(terms) > 1 else "loss"
    }
    shares = list(dict.fromkeys(t for _, validation in finals.values() for t in validation if is_share(t)))
    columns = (
        *texts("run"),
        *numbers(formats.loss, *(f"{title}, {side}" for title in shown.values() for side in ("train", "validation"))),
        *numbers(formats.percent, *(f"{term_title(term)}, validation" for term in shares)),
    )
    rows = tuple(
        (run, *(side.get(term) for term in shown for side in (train, validation)), *map(validation.get, shares))
        for run, (train, validation) in finals.items()
    )
    note = "Train: mean of the last tenth of the run. Validation: on text that was not trained on, at the end."
    return Table(name, "Losses at the end", columns, rows, note).without_empty_columns()


def per_class(test: Metrics, name: str, baseline: Metrics | None = None, title: str = "Per class") -> Table:
    """Build a table of precision, recall and F1 of each class, and F1 of the TF-IDF baseline."""
    tfidf = baseline.per_class if baseline else {}
    return Table.of(
        name,
        title,
        test.per_class.items(),
        text("class", lambda item: item[0]),
        value("precision", lambda item: item[1].precision, formats.share),
        value("recall", lambda item: item[1].recall, formats.share),
        value("F1", lambda item: item[1].f1, formats.share),
        value("F1 of TF-IDF + linear", lambda item: tfidf[item[0]].f1 if item[0] in tfidf else None, formats.share),
        value("examples", lambda item: item[1].support, formats.integer),
        sparse=True,
    )


def lengths(record: RunRecord, name: str, title: str = "Lengths in tokens") -> Table:
    """Build a table of lengths by split and class."""
    rows = record.result.lengths
    keys = list(dict.fromkeys(key for row in rows for key, value in row.items() if not isinstance(value, list | dict)))
    columns = []
    for key in keys:
        is_text = any(isinstance(row.get(key), str) for row in rows)
        columns.append(Column(term_title(key), formats.text if is_text else formats.amount, numeric=not is_text))
    return Table(name, title, tuple(columns), tuple(tuple(row.get(key) for key in keys) for row in rows))


def differences(records: Sequence[RunRecord]) -> list[Table]:
    """Build tables of settings that differ, for each group of runs with comparable losses."""
    found = []
    for number, group in enumerate(comparable(records), start=1):
        rows = different_rows([record.config for record in group])
        found.append(difference_table(f"differences-{number}", [record.name for record in group], rows))
    return [table for table in found if table.rows]


def difference_table(name: str, heads: Sequence[str], rows: Sequence[Row]) -> Table:
    """Build a table of settings by run or variant."""
    return Table(name, "Settings that differ", texts("setting", *heads), tuple(rows))


def environment(found: Sequence[tuple[str, Tree]]) -> Table:
    """Build a table of machine and versions by heading; one column if all are equal, else differences are marked."""
    rows = tuple(
        (key, *(formats.memory(v) if str(key).endswith("_bytes") else v for v in values))
        for key, *values in side_by_side([tree for _, tree in found])
    )
    marked = frozenset(i for i, row in enumerate(rows) if len(set(map(repr, row[1:]))) > 1)
    heads = [head for head, _ in found]
    if not marked:
        heads, rows = ["value"], tuple(row[:2] for row in rows)
    return Table("environment", "Machine and versions", texts("what", *heads), rows, marked=marked)


def side_by_side(trees: Sequence[Tree]) -> list[Row]:
    """Return a row for every dotted key in any of the trees: the key, and its value in each."""
    flat = [flatten(tree) for tree in trees]
    keys = dict.fromkeys(key for tree in flat for key in tree)
    return [(key, *(tree.get(key) for tree in flat)) for key in keys]


def different_rows(trees: Sequence[Tree]) -> list[Row]:
    """Return the rows of `side_by_side` with different values."""
    return [row for row in side_by_side(trees) if len(set(map(repr, row[1:]))) > 1]


def points_of_curve(record: RunRecord) -> list[tuple[CurvePoint, Spread]]:
    """Return the points of a learning curve with a result, and mean and deviation of the first measure."""
    measured = [(p, mean_over_trainings(p.seeds or [p.test], record.measures[0])) for p in record.result.curve]
    return [(point, spread) for point, spread in measured if spread is not None]


def baselines_of_curve(points: Sequence[tuple[CurvePoint, Spread]]) -> list[str]:
    """Return the keys of all baselines of a learning curve."""
    return list(dict.fromkeys(key for point, _ in points for key in point.baselines))


def learning_curve(record: RunRecord, name: str) -> Table:
    """Build a table of the metric of model and baselines by the number of training examples."""
    points, measure = points_of_curve(record), record.measures[0]
    baselines = baselines_of_curve(points)
    columns = (
        *numbers(formats.integer, "training examples"),
        *numbers(formats.share_spread, f"{metric_title(measure)} of {record.name}"),
        *numbers(formats.share, *map(baseline_title, baselines)),
    )
    found = [[p.baselines[key].number(measure) if key in p.baselines else None for key in baselines] for p, _ in points]
    rows = tuple((point.examples, spread, *row) for (point, spread), row in zip(points, found, strict=True))
    return Table(name, "By the number of training examples", columns, rows)


def in_context(result: Tree) -> Table:
    """Build a row for each number of examples in the prompt: mean, lowest and highest accuracy over draws."""
    return Table.of(
        "in-context",
        "Accuracy by examples in the prompt",
        [(found, [float(draw["accuracy"]) for draw in found["draws"]]) for found in result["shots"]],
        value("examples", lambda row: row[0]["shots"], formats.integer),
        value("draws", lambda row: len(row[1]), formats.integer),
        value("accuracy", lambda row: row[0]["accuracy"], formats.percent),
        value("lowest", lambda row: min(row[1]), formats.percent),
        value("highest", lambda row: max(row[1]), formats.percent),
        value("macro F1", lambda row: row[0]["macro_f1"], formats.percent),
        value("TF-IDF", lambda row: row[0].get("tfidf"), formats.percent),
        value("majority", lambda row: result["majority"], formats.percent),
        note="TF-IDF is trained on the same examples; the majority class is that of all examples to draw from.",
    )
