"""Table of a distilled student and its teacher: size, speed, quality."""

from __future__ import annotations

from collections.abc import Callable

from homespun.report import formats
from homespun.report.records import RunRecord
from homespun.report.table import Column, Table, Writer, texts
from homespun.results import TeacherStudent, Timing

_SHARES = ("accuracy", "macro_f1", "micro_f1", "weighted_f1", "roc_auc", "mlm_accuracy")


def distillation(record: RunRecord, end: str = "") -> list[Table]:
    """The table of one run; none without a teacher.

    Args:
        record: the run.
        end: of the file name.
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
        "Timed in turns on the same random tokens. For comparison: DistilBERT is 40 % smaller and 60 % faster than "
        "BERT and keeps 97 % of its quality (Sanh et al. 2019)."
    )
    if layers := result.layers:
        note = f"The student started from layers {', '.join(map(str, layers))} of its teacher, counted from 0. {note}"
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
