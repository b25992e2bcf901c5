"""The report of a comparison, from the files of its trials alone: page, Markdown, CSV, figures, ``comparison.json``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from homespun.io.atomic import write_text
from homespun.report import comparison_tables as tables
from homespun.report import formats, significance
from homespun.report.comparison_document import Report
from homespun.report.comparison_quality import Candidate, TaskComparison
from homespun.report.comparison_records import Comparison, is_comparison, read_comparison
from homespun.report.document import Document, Notice, Paragraph
from homespun.report.formats import number
from homespun.report.markdown import csv_text
from homespun.report.page import write_document
from homespun.report.table import Table

__all__ = ["VERSION", "is_comparison", "write_comparison"]

VERSION = 1
"""Of ``comparison.json``."""


def write_comparison(folder: Path) -> Path:
    """Write ``comparison.json``, ``comparison.csv`` and ``report/`` of the comparison in ``folder``; its page.

    Whatever state the trials are in: of those that wait, run, failed or cannot be read it says so. The same files give
    the same bytes. Every file is whole or not there; tables and figures that an earlier report had and this one has not
    are removed.

    Raises:
        UserError: ``folder`` is no comparison's, or its ``comparison.yaml`` is damaged.
    """
    folder = Path(folder)
    report = Report(read_comparison(folder))
    document = report.document()
    out = folder / "report"
    page = write_document(document, out)
    kept = {f"{table.name}.csv" for table in document.tables()}
    kept |= {f"{plot.name}.{kind}" for plot in document.plots() for kind in ("svg", "png")}
    for file in [*out.glob("tables/*.csv"), *out.glob("plots/*.svg"), *out.glob("plots/*.png")]:
        if file.name not in kept:
            file.unlink(missing_ok=True)
    write_text(folder / "comparison.csv", csv_text(tables.flat_trials(report.comparison)))
    content = json.dumps(_results(report, document), indent=1, ensure_ascii=False, allow_nan=False)
    write_text(folder / "comparison.json", content)
    return page


def _results(report: Report, document: Document) -> dict[str, Any]:
    """What ``comparison.json`` holds: the verdicts, and the rows of every table with raw values."""
    comparison = report.comparison
    statuses = [trial.status for trial in comparison.trials]
    return {
        "version": VERSION,
        "trials": {status: statuses.count(status) for status in dict.fromkeys(statuses)},
        "advice": [item.text for item in document.lead if isinstance(item, Paragraph)],
        "notices": [item.text for item in document.lead if isinstance(item, Notice)],
        "tasks": {task.name: _task_results(task) for task in report.tasks},
        "fronts": {task: {cost.kind: cost.front for cost in costs} for task, costs in report.costs.items()},
        "crossovers": {what: [asdict(c) for c in found] for what, found in report.crossings.items()},
        "overhead": _overhead(comparison),
        "tables": {table.name: _raw(table) for table in document.tables()},
    }


def _overhead(comparison: Comparison) -> dict[str, float | None]:
    """What scheduling and measuring took beside the trainings, in seconds of processor time."""
    extra = sum(trial.overhead for trial in comparison.trials)
    own = sum(stage.processor_seconds for trial in comparison.trials for stage in trial.stages.values())
    return {"processor_seconds": extra, "stages_processor_seconds": own, "share": extra / own if own else None}


def _task_results(task: TaskComparison) -> dict[str, Any]:
    best = task.best

    def row(candidate: Candidate) -> dict[str, Any]:
        test = task.against_best.get(candidate.name)
        pair = candidate.spread or (None, None)
        content: dict[str, Any] = {"name": candidate.name, "kind": candidate.kind, "trials": candidate.state}
        content |= {"why": candidate.why, "values": list(candidate.values), "mean": pair[0], "deviation": pair[1]}
        own = {name: asdict(found) for name, found in task.own.get(candidate.name, {}).items()}
        content |= {"own_baselines": own} if own else {}
        return content | (asdict(test) if test else {"alike": False})

    return {
        "measure": task.measure,
        "level": significance.LEVEL,
        "pairs": task.pairs,
        "best": best.name if best else None,
        "alike": [candidate.name for candidate in task.among_best],
        "contenders": [row(candidate) for candidate in task.candidates],
    }


def _raw(table: Table) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return [plain(item) for item in value]
        if isinstance(value, bool) or value is None or isinstance(value, str):
            return value
        known = number(value)
        return formats.text(value) if known is None else int(known) if isinstance(value, int) else known

    rows = [[plain(value) for value in row] for row in table.rows]
    return {"title": table.title, "columns": [column.title for column in table.columns], "rows": rows}
