"""Report of a comparison from the files of its trials: page, Markdown, CSV, figures, ``comparison.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from homespun.comparison_results import CandidateResult, ComparisonResult, Overhead, TableResult, TaskResult
from homespun.io.atomic import write_text
from homespun.report import comparison_tables as tables
from homespun.report import formats, significance
from homespun.report.comparison_document import Report
from homespun.report.comparison_quality import Candidate, TaskComparison
from homespun.report.comparison_records import is_comparison, read_comparison
from homespun.report.document import Document, Notice, Paragraph
from homespun.report.formats import number
from homespun.report.markdown import csv_text
from homespun.report.page import write_document
from homespun.report.table import Table
from homespun.results import VERSION

__all__ = ["is_comparison", "write_comparison"]


def write_comparison(folder: Path) -> Path:
    """Write ``comparison.json``, ``comparison.csv`` and ``report/`` of the comparison in ``folder``; return its page.

    Trials may be in any state; waiting, running, failed and unreadable ones are reported. The same files give the same
    bytes. Files are written atomically; tables and figures of an earlier report that this one lacks are removed.

    Raises:
        UserError: ``folder`` has no comparison, or its ``comparison.yaml`` is damaged.
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
    content = _result(report, document).to_json()
    write_text(folder / "comparison.json", json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False))
    return page


def _result(report: Report, document: Document) -> ComparisonResult:
    comparison = report.comparison
    statuses = [trial.status for trial in comparison.trials]
    extra = sum(trial.result.overhead.processor_seconds for trial in comparison.trials)
    own = sum(stage.result.processor_seconds for trial in comparison.trials for stage in trial.stages.values())
    return ComparisonResult(
        version=VERSION,
        trials={status: statuses.count(status) for status in dict.fromkeys(statuses)},
        advice=[item.text for item in document.lead if isinstance(item, Paragraph)],
        notices=[item.text for item in document.lead if isinstance(item, Notice)],
        tasks={task.name: _task_result(task) for task in report.tasks},
        fronts={task: {cost.kind: list(cost.front) for cost in costs} for task, costs in report.costs.items()},
        crossovers=report.crossings,
        overhead=Overhead(processor_seconds=extra, stages_processor_seconds=own, share=extra / own if own else None),
        tables={table.name: _table_result(table) for table in document.tables()},
    )


def _task_result(task: TaskComparison) -> TaskResult:
    best = task.best
    return TaskResult(
        measure=task.measure,
        level=significance.LEVEL,
        pairs=task.pairs,
        best=best.name if best else None,
        among_best=[candidate.name for candidate in task.among_best],
        contenders=[_candidate_result(task, candidate) for candidate in task.candidates],
    )


def _candidate_result(task: TaskComparison, candidate: Candidate) -> CandidateResult:
    test = task.against_best.get(candidate.name)
    fields: dict[str, Any] = test.model_dump() if test else {"not_worse": False}
    if own := task.own.get(candidate.name):
        fields["own_baselines"] = dict(own)
    mean, deviation = candidate.spread or (None, None)
    return CandidateResult(
        name=candidate.name,
        kind=candidate.kind,
        trials=candidate.state,
        why=candidate.why,
        values=list(candidate.values),
        mean=mean,
        deviation=deviation,
        **fields,
    )


def _table_result(table: Table) -> TableResult:
    rows = [[_plain(value) for value in row] for row in table.rows]
    return TableResult(title=table.title, columns=[column.title for column in table.columns], rows=rows)


def _plain(value: object) -> JsonValue:
    """A cell as JSON; numbers that are not finite as text."""
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | str):
        return value
    known = number(value)
    return formats.text(value) if known is None else int(known) if isinstance(value, int) else known
