"""Tables and figures of error analysis: confusion matrix, train/test leakage, calibration, largest errors."""

from __future__ import annotations

from collections.abc import Sequence

from homespun.report import formats
from homespun.report.document import Table, numbers, text, texts, value
from homespun.report.figure import INK, PALETTE, Curve, Look, Plot, drawing
from homespun.report.records import RunRecord
from homespun.results import Calibration, ConfusionMatrix, ExamplePrediction, Metrics


def confusion(test: Metrics) -> ConfusionMatrix | None:
    """Return the confusion matrix of test metrics, with one-line labels; None if missing or not square."""
    matrix = test.confusion
    if matrix is None or not matrix.is_square:
        return None
    return matrix.model_copy(update={"labels": [formats.text(label) for label in matrix.labels]})


def confusion_table(found: ConfusionMatrix, name: str) -> Table:
    """Build a table of the counts of a confusion matrix."""
    columns = (*texts("truth \\ prediction"), *numbers(formats.integer, *found.labels))
    rows = tuple((label, *row) for label, row in zip(found.labels, found.counts, strict=True))
    return Table(name, "Confusion matrix", columns, rows, "Rows are the truth, columns the prediction.")


def mistakes(found: ConfusionMatrix, name: str, title: str = "Most frequent mistakes") -> Table:
    """Build a table of the eight most frequent mistakes."""
    shares = found.percent()
    pairs = [
        (label, taken, found.counts[i][j], shares[i][j] / 100)
        for i, label in enumerate(found.labels)
        for j, taken in enumerate(found.labels)
        if i != j and found.counts[i][j]
    ]
    return Table.of(
        name,
        title,
        sorted(pairs, key=lambda pair: -pair[2])[:8],
        text("truth", lambda pair: pair[0]),
        text("predicted", lambda pair: pair[1]),
        value("examples", lambda pair: pair[2], formats.integer),
        value("of the class", lambda pair: pair[3], formats.percent),
    )


def overlap_table(record: RunRecord, name: str) -> Table:
    """Build a table of near-duplicate examples."""
    return Table.of(
        name,
        f"Near-duplicates in the training set of {record.name}",
        record.result.overlap.pairs if record.result.overlap else [],
        value("row", lambda pair: pair.row, formats.integer),
        text("test example", lambda pair: pair.text),
        text("training example", lambda pair: pair.training),
        value("similarity", lambda pair: pair.similarity, formats.percent),
        note="Similarity: share of five-word sequences in common.",
    )


def calibration_of(record: RunRecord) -> Calibration | None:
    """Return the calibration of the saved model."""
    tests = record.tests()
    found = tests[0].calibration if len(tests) == 1 else record.result.calibration
    return found if found and found.before.ece is not None and found.after.ece is not None else None


def calibration_table(record: RunRecord, name: str) -> Table | None:
    """Build a table of temperature, calibration error and log loss on the test set.

    Values are before and after temperature scaling.
    """
    found = calibration_of(record)
    if not found:
        return None
    rule = record.result.decision_rule
    temperature, why = rule.temperature, rule.temperature_why
    rows = [("as trained", 1.0, found.before)]
    if temperature is not None and temperature != 1.0:
        rows.append(("with temperature", temperature, found.after))
    note = "Calibration error: mean distance between confidence and accuracy (15 bins)."
    return Table.of(
        name,
        f"Calibration of {record.name}",
        rows,
        text("logits", lambda row: row[0]),
        value("temperature", lambda row: row[1], formats.share),
        value("calibration error", lambda row: row[2].ece, formats.percent),
        value("log loss", lambda row: row[2].log_loss, formats.loss),
        note=f"{note} {formats.capitalized(formats.text(why))}." if why else note,
    )


def thresholds_table(record: RunRecord, name: str) -> Table | None:
    """Build a table of the decision thresholds of labels, chosen on the validation examples."""
    rule = record.result.decision_rule
    thresholds = rule.thresholds
    if not thresholds:
        return None
    labels = [formats.text(label) for label in record.result.labels or ()]
    measure = formats.text(rule.thresholds_for)
    scores = [rule.number(key) for key in (f"{measure}_before", measure, f"{measure}_held_up")]
    note = (
        f"{measure.replace('_', ' ').replace('f1', 'F1')} on the validation examples: {formats.share(scores[0])} with "
        f"0.5, {formats.share(scores[1])} with these thresholds, {formats.share(scores[2])} cross-validated."
    )
    if why := rule.thresholds_why:
        note += f" {formats.capitalized(formats.text(why))}."
    one = len(set(thresholds)) == 1
    rows = (("all", thresholds[0]),) if one else tuple(zip(labels, thresholds, strict=False))
    columns = (*texts("label"), *numbers(formats.share, "threshold"))
    return Table(name, f"Decision thresholds of {record.name}", columns, rows, note)


def reliability_plot(found: Calibration | None, name: str) -> Plot | None:
    """Draw a reliability diagram, accuracy by confidence."""
    if not found:
        return None
    drawn = [("as trained", found.before, PALETTE[1])]
    if found.after.ece != found.before.ece:
        drawn.append(("with temperature", found.after, PALETTE[0]))
    caption = "Reliability: accuracy by confidence"
    with drawing(name, caption, xlabel="confidence", ylabel="accuracy", height=3.6) as canvas:
        canvas.draw(Curve([0, 1], [0, 1], Look(INK, ":", ""), "calibrated", width=0.8))
        for label, part, colour in drawn:
            points = [(b.confidence, b.right, b.count) for b in part.bins]
            known = [(x, y, n) for x, y, n in points if x is not None and y is not None and n]
            if known:
                x, y, counts = zip(*known, strict=True)
                canvas.draw(Curve(x, y, Look(colour), label, alpha=0.6, size=0.0))
                sizes = [6 + 60 * n / max(counts) for n in counts]
                canvas.axes.scatter(x, y, s=sizes, color=colour, linewidths=0)
        canvas.axes.set_xlim(0, 1.02)
        canvas.axes.set_ylim(0, 1.02)
    return canvas.plot


def predictions_table(name: str, title: str, shown: Sequence[ExamplePrediction], note: str) -> Table:
    """Build a table of single test examples with their predictions."""
    return Table.of(
        name,
        title,
        shown,
        value("row", lambda example: example.row, formats.integer),
        text("text", lambda example: example.text),
        text("truth", lambda example: example.truth, _shown),
        text("predicted", lambda example: example.predicted, _shown),
        value("loss", lambda example: example.loss, formats.loss),
        value("score", lambda example: example.score, formats.share),
        note=f"{note} Row numbers start at 0.",
        sparse=True,
    )


def _shown(answer: object) -> str:
    words = ", ".join(map(formats.text, answer)) if isinstance(answer, list) else formats.text(answer)
    return words if len(words) <= 160 else f"{words[:159]}…"
