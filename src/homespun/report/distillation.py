"""A student beside its teacher: how much smaller, how much faster, how much of the quality is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from homespun.report import formats
from homespun.report.records import RunRecord
from homespun.report.table import Column, Table, Writer, texts
from homespun.results import TeacherStudent, Timing

_SHARES = ("accuracy", "macro_f1", "micro_f1", "weighted_f1", "roc_auc", "mlm_accuracy")


def distillation(record: RunRecord, end: str = "") -> list[Table]:
    """The table of one run; none where it had no teacher beside it.

    Args:
        end: of the name of its file, where there are several runs.
    """
    result = record.result.distillation
    if result is None:
        return []
    rows = [
        _row("parameters", result.parameters, formats.count, _smaller),
        _row("weights", result.bytes, formats.memory, _smaller),
        *map(_speed, result.speed),
        *(_quality(name, pair) for name, pair in (result.quality or {}).items()),
    ]
    columns = (*texts(""), Column("teacher"), Column("student"), *texts("student against teacher"))
    note = (
        "Both took turns on the same texts of random tokens. DistilBERT is told of as 40 % smaller, 60 % faster, and "
        "97 % of BERT's quality (Sanh et al. 2019)."
    )
    if layers := result.layers:
        note = f"The student began as layers {', '.join(map(str, layers))} of its teacher, counted from 0. {note}"
    if why := result.quality_why:
        note = f"{note} Their quality is not compared: {why}."
    return [Table(f"distillation{end}", f"{record.name}, taught by {result.teacher}", columns, tuple(rows), note)]


def _row(
    label: str, pair: TeacherStudent | None, write: Writer, compare: Callable[[float, float], str]
) -> tuple[str, str, str, str]:
    teacher, student = (pair.teacher, pair.student) if pair else (None, None)
    against = compare(teacher, student) if teacher and student is not None else ""
    return label, write(teacher), write(student), against


def _smaller(teacher: float, student: float) -> str:
    share = 1 - student / teacher
    return f"{abs(share):.0%} {'smaller' if share >= 0 else 'larger'}"


def _speed(row: Timing) -> tuple[str, str, str, str]:
    size, where = row.batch_size, f"{formats.integer(row.length)} tokens"
    if size == 1:
        return _row(f"latency of a text of {where}", row, formats.step_seconds, _faster)
    teacher, student = (1 / seconds if seconds else None for seconds in (row.teacher, row.student))
    label = f"texts a second, {size} of {where} at a time"
    return _row(
        label,
        TeacherStudent(teacher=teacher, student=student),
        formats.amount,
        lambda teacher, student: _faster(student, teacher),
    )


def _faster(teacher: float, student: float) -> str:
    return f"{teacher / student:.2f} times as fast" if student else ""


def _quality(name: str, pair: TeacherStudent) -> tuple[str, str, str, str]:
    if name in _SHARES:
        row = _row(name.replace("_", " "), pair, formats.percent, lambda t, s: f"{s / t:.1%} kept")
    else:
        row = _row(name.replace("_", " "), pair, formats.loss, lambda t, s: f"{s - t:+.3f}")
    if (deviation := pair.std) is None:
        return row
    label, teacher, student, against = row
    return label, teacher, f"{student} ± {(100 * deviation if name in _SHARES else deviation):.2g}", against


def distillations(records: Sequence[RunRecord]) -> list[Table]:
    """The tables of all runs that had a teacher."""
    taught = [record for record in records if record.result.distillation]
    ends = [""] if len(taught) == 1 else [f"-{number}" for number in range(1, len(taught) + 1)]
    return [table for record, end in zip(taught, ends, strict=True) for table in distillation(record, end)]
