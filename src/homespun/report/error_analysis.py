"""Tables and figures for checking a result: confusion matrix, train/test leakage, calibration, largest errors."""

from __future__ import annotations

from collections.abc import Sequence

from homespun.report import formats
from homespun.report.plots import INK, PALETTE, End, Plot, drawing
from homespun.report.records import RunRecord
from homespun.report.table import Column, Table, numbers, texts
from homespun.results import Calibration, ConfusionMatrix, ExamplePrediction, Metrics


def confusion(test: Metrics) -> ConfusionMatrix | None:
    """Confusion matrix in test metrics, with labels in one line; None if there is none or it is not square."""
    matrix = test.confusion
    if matrix is None or not matrix.is_square:
        return None
    return matrix.model_copy(update={"labels": [formats.text(label) for label in matrix.labels]})


def confusion_table(found: ConfusionMatrix, name: str) -> Table:
    """Counts of a confusion matrix."""
    columns = (*texts("truth \\ prediction"), *numbers(formats.integer, *found.labels))
    rows = tuple((label, *row) for label, row in zip(found.labels, found.counts, strict=True))
    return Table(name, "Confusion matrix", columns, rows, "Rows are the truth, columns the prediction.")


def mistakes(found: ConfusionMatrix, name: str, title: str = "Most frequent mistakes") -> Table | None:
    """The eight most frequent mistakes; None without mistakes."""
    shares = found.percent()
    pairs = [
        (label, taken, found.counts[i][j], shares[i][j] / 100)
        for i, label in enumerate(found.labels)
        for j, taken in enumerate(found.labels)
        if i != j and found.counts[i][j]
    ]
    largest = tuple(sorted(pairs, key=lambda pair: -pair[2])[:8])
    columns = (
        *texts("truth", "predicted"),
        *numbers(formats.integer, "examples"),
        *numbers(formats.percent, "of the class"),
    )
    return Table(name, title, columns, largest) if largest else None


def overlap_table(record: RunRecord, name: str) -> Table | None:
    """Examples of near-duplicates."""
    pairs = record.result.overlap.pairs if record.result.overlap else []
    columns = (
        *numbers(formats.integer, "row"),
        *texts("test example", "training example"),
        *numbers(formats.percent, "similarity"),
    )
    rows = tuple((pair.row, pair.text, pair.training, pair.similarity) for pair in pairs)
    note = "Similarity: share of five-word sequences in common."
    return Table(name, f"Near-duplicates in the training set of {record.name}", columns, rows, note) if rows else None


def _calibration(record: RunRecord) -> Calibration | None:
    """Calibration of the training whose model was kept."""
    tests = record.tests()
    found = tests[0].calibration if len(tests) == 1 else record.result.calibration
    return found if found and found.before.ece is not None and found.after.ece is not None else None


def calibration_table(record: RunRecord, name: str) -> Table | None:
    """Temperature, calibration error and log loss on the test set, before and after temperature scaling."""
    found = _calibration(record)
    if not found:
        return None
    temperature, why = record.result.tuning.temperature, record.result.tuning.temperature_why
    labels = [("as trained", found.before, 1.0)]
    if temperature is not None and temperature != 1.0:
        labels.append(("with temperature", found.after, temperature))
    columns = (
        *texts("logits"),
        *numbers(formats.share, "temperature"),
        *numbers(formats.percent, "calibration error"),
        *numbers(formats.loss, "log loss"),
    )
    rows = tuple((words, divided, part.ece, part.log_loss) for words, part, divided in labels)
    note = "Calibration error: mean distance between confidence and accuracy (15 bins)."
    return Table(name, f"Calibration of {record.name}", columns, rows, f"{note} {_sentence(why)}" if why else note)


def thresholds_table(record: RunRecord, name: str) -> Table | None:
    """Decision thresholds of labels, found on the validation examples."""
    tuning = record.result.tuning
    thresholds = tuning.thresholds
    if not thresholds:
        return None
    labels = [formats.text(label) for label in record.result.labels or ()]
    measure = formats.text(tuning.thresholds_for)
    text = [tuning.number(key) for key in (f"{measure}_before", measure, f"{measure}_held_up")]
    note = (
        f"{measure.replace('_', ' ').replace('f1', 'F1')} on the validation examples: {formats.share(text[0])} with "
        f"0.5, {formats.share(text[1])} with these thresholds, {formats.share(text[2])} cross-validated."
    )
    if why := tuning.thresholds_why:
        note += f" {_sentence(why)}"
    one = len(set(thresholds)) == 1
    rows = (("all", thresholds[0]),) if one else tuple(zip(labels, thresholds, strict=False))
    columns = (*texts("label"), *numbers(formats.share, "threshold"))
    return Table(name, f"Decision thresholds of {record.name}", columns, rows, note)


def _sentence(words: object) -> str:
    text = formats.text(words)
    return f"{text[:1].upper()}{text[1:]}."


def reliability_plot(record: RunRecord, name: str) -> Plot | None:
    """Reliability diagram: accuracy by confidence."""
    found = _calibration(record)
    if not found:
        return None
    drawn = [("as trained", found.before, PALETTE[1])]
    if found.after.ece != found.before.ece:
        drawn.append(("with temperature", found.after, PALETTE[0]))
    with drawing(name, "Reliability: accuracy by confidence", height=3.6) as canvas:
        axes = canvas.axes
        axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=":")
        canvas.ends.append(End(1.0, "calibrated", INK, ":"))
        for label, part, colour in drawn:
            points = [(b.confidence, b.right, b.count) for b in part.bins]
            known = [(x, y, n) for x, y, n in points if x is not None and y is not None and n]
            if not known:
                continue
            most = max(n for _, _, n in known)
            axes.plot([x for x, _, _ in known], [y for _, y, _ in known], "-", color=colour, linewidth=1.0, alpha=0.6)
            sizes = [6 + 60 * n / most for _, _, n in known]
            axes.scatter([x for x, _, _ in known], [y for _, y, _ in known], s=sizes, color=colour, linewidths=0)
            canvas.ends.append(End(known[-1][1], label, colour, marker="o"))
        axes.set_xlim(0, 1.02)
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("confidence")
        axes.set_ylabel("accuracy")
    return canvas.plot


def top_errors_table(record: RunRecord, name: str) -> Table | None:
    """Examples with the largest loss or lowest score."""
    note = "Check the labels of these examples first. Row numbers start at 0."
    return _predictions(name, f"Top errors of {record.name}", record.result.most_wrong, note)


def confident_table(record: RunRecord, name: str) -> Table | None:
    """Correct predictions with the smallest loss."""
    note = "Correct predictions with the smallest loss. Row numbers start at 0."
    return _predictions(name, f"Most confident predictions of {record.name}", record.result.most_confident, note)


def _predictions(name: str, title: str, shown: Sequence[ExamplePrediction], note: str) -> Table | None:
    if not shown:
        return None
    columns = (
        *numbers(formats.integer, "row"),
        *texts("text"),
        Column("truth", _shown, numeric=False),
        Column("predicted", _shown, numeric=False),
        *numbers(formats.loss, "loss"),
        *numbers(formats.share, "score"),
    )
    rows = tuple((one.row, one.text, one.truth, one.predicted, one.loss, one.score) for one in shown)
    return Table(name, title, columns, rows, note).without_empty_columns()


def _shown(value: object) -> str:
    words = ", ".join(formats.text(one) for one in value) if isinstance(value, list) else formats.text(value)
    return words if len(words) <= 160 else f"{words[:159]}…"
