"""The report of a comparison: page, Markdown, CSV, figures, ``comparison.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np
from pydantic import JsonValue

from homespun.comparison_results import CandidateResult, ComparisonResult, Overhead, TableResult, TaskResult
from homespun.io.atomic import write_text
from homespun.report import comparison_plots as own_plots
from homespun.report import comparison_summary as summary
from homespun.report import comparison_tables as tables
from homespun.report import formats, plots, significance
from homespun.report.comparison_plots import ByLength, Cost, crossovers, pareto
from homespun.report.comparison_quality import Candidate, TaskComparison, evaluate
from homespun.report.comparison_records import Comparison, Variant, comparable_variants, is_comparison, read_comparison
from homespun.report.document import (
    Chapter,
    Code,
    Content,
    Details,
    Document,
    Gallery,
    Notice,
    Paragraph,
    TableBlock,
    csv_text,
    write_document,
)
from homespun.report.error_analysis import confusion
from homespun.report.formats import number
from homespun.report.page import confusion_contents, length_contents, tabular
from homespun.report.plots import BY_STEP, BY_TIME, BY_TOKENS, Line
from homespun.report.records import RunRecord, config_text
from homespun.report.table import Table, Writer, slug
from homespun.report.tables import environment, losses
from homespun.results import VERSION, ConfusionMatrix


@dataclass(frozen=True)
class _Target:
    """A quantity of ablations, with its values by variant."""

    name: str
    title: str
    values: Mapping[str, Sequence[float]]
    stages: Sequence[str]
    write: Writer
    write_pair: Writer


class Report:
    """A comparison with everything that is computed from it once."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        self.tasks = evaluate(comparison)
        self.styles = plots.assign_styles([variant.name for variant in comparison.variants])
        self.stages = [*(["pretrain"] if comparison.pretrains else []), *comparison.tasks]
        self.seconds = self._seconds(self.stages)
        self.latency = self._in_inference("seconds_per_text")
        self.inference_memory = self._in_inference("peak_bytes")
        self.crossings = {"latency": crossovers(self.latency), "memory": crossovers(self.inference_memory)}
        self.costs = {task.name: self._costs(task) for task in self.tasks}

    def _seconds(self, stages: Sequence[str]) -> dict[str, float]:
        """Seconds that these stages of one trial take, by variant."""
        found = {v.name: [s for stage in stages if (s := v.stage_seconds(stage)) is not None] for v in self._variants}
        return {name: sum(seconds) for name, seconds in found.items() if seconds}

    @property
    def _variants(self) -> Sequence[Variant]:
        return self.comparison.variants

    def _memory(self) -> dict[str, float]:
        """Peak bytes of all stages by variant."""
        means = {v.name: [mean for stage in self.stages if (mean := v.mean(stage))] for v in self._variants}
        found = {
            name: [peak for mean in of_stages if (peak := mean.summary.get("peak_bytes")) is not None]
            for name, of_stages in means.items()
        }
        return {name: max(peaks) for name, peaks in found.items() if peaks}

    def _in_inference(self, what: str) -> dict[str, ByLength]:
        return {v.name: found for v in self._variants if (found := tables.inference(v, what))}

    def document(self) -> Document:
        """The page; chapters without content are left out."""
        comparison = self.comparison
        about = formats.text(comparison.recipe.get("description")) if comparison.recipe.get("description") else ""
        sure = summary.certainty(comparison, self.tasks)
        lead: list[Content] = [Paragraph(about)] if about else []
        lead += [Paragraph(text) for text in summary.advice(comparison, self.tasks, self.seconds)]
        lead += [Paragraph(sure)] if sure else []
        lead += [Paragraph(summary.limits(comparison, self.tasks))]
        progress = summary.progress(comparison)
        lead += [Notice(progress)] if progress else []
        lead += [Notice(warning) for task in self.tasks for warning in task.warnings]
        lead += [Notice(warning) for warning in comparison.warnings]
        if len(found := tables.machines(comparison)) > 1:
            lead.append(Notice(summary.machines(len(found))))
        chapters = [
            Chapter("Quality", self._quality()),
            Chapter("Resources", self._resources()),
            Chapter("Quality against time and memory", self._tradeoffs()),
            Chapter("Loss curves", self._curves()),
            Chapter("Ablations", self._ablations()),
            Chapter("Inference cost by length", self._inference()),
            Chapter("Classes", self._classes()),
            Chapter("Text lengths", self._lengths()),
            Chapter("Configuration", self._configuration()),
        ]
        title = f"Comparison: {comparison.path.resolve().name}"
        return Document(title, lead, [chapter for chapter in chapters if chapter.contents])

    def _quality(self) -> list[Content]:
        contents: list[Content] = []
        for task in (task for task in self.tasks if task.candidates):
            contents.append(TableBlock(tables.quality(task)))
            if (pairs := tables.pairs(task)) is not None:
                contents.append(Details(f"{task.name}: every pair", [TableBlock(pairs)]))
        return [*contents, Details("All trials by variation", tabular(tables.trials(self.comparison)))]

    def _by_stage(self, found: Mapping[str, Sequence[Content]]) -> list[Content]:
        """Contents of the first stage; those of the others folded."""
        return [
            *found[self.stages[0]],
            *(Details(_stage_title(stage), found[stage]) for stage in self.stages[1:] if found[stage]),
        ]

    def _resources(self) -> list[Content]:
        contents: dict[str, list[Content]] = {}
        for stage in self.stages:
            means = [mean for v in self._variants if (mean := v.mean(stage)) is not None]
            by_part = [replace(table, name=f"{table.name}-{slug(stage)}") for table in losses(means)]
            contents[stage] = own = tabular(tables.resources(self.comparison, stage), *by_part)
            shared = summary.shared(self.comparison) if stage == "pretrain" and own else ""
            own += [Paragraph(shared)] if shared else []
        return self._by_stage(contents) if contents else []

    def _costs(self, task: TaskComparison) -> list[Cost]:
        """Time and memory of training, and latency at the longest measured length."""
        longest = max((at for measured in self.latency.values() for at in measured), default=0.0)
        seconds = self._seconds([stage for stage in self.stages if stage in ("pretrain", task.name)])
        at_longest = {name: fmean(measured[longest]) for name, measured in self.latency.items() if longest in measured}
        quality = {c.name: c.mean for c in task.candidates if c.kind == "model" and c.mean is not None}
        kinds = [
            ("time", seconds, BY_TIME.label(max(seconds.values(), default=0.0))),
            ("memory", self._memory(), (1e9, "peak memory in training, GB")),
            ("latency", at_longest, (1e-3, f"milliseconds a text of {longest:,.0f} tokens")),
        ]
        costs = []
        for kind, values, (unit, title) in kinds:
            known = {name: value / unit for name, value in values.items() if name in quality}
            front = pareto({name: (value, quality[name]) for name, value in known.items()})
            costs += [Cost(kind, title, known, front)] if len(known) > 1 else []
        return costs

    def _tradeoffs(self) -> list[Content]:
        contents: list[Content] = []
        for task in (task for task in self.tasks if self.costs[task.name]):
            costs = self.costs[task.name]
            drawn = [own_plots.tradeoff(task, cost, self.styles, f"{slug(task.name)}-by-{cost.kind}") for cost in costs]
            fronts = "; ".join(f"{cost.kind}: {', '.join(cost.front)}" for cost in costs)
            note = (
                f"Up is better, left is cheaper. Thin line: Pareto front by mean ({fronts}). Bars: standard deviation "
                f"over trainings. Baselines far below are not drawn."
            )
            contents.append(Gallery(task.name, drawn, note))
        return contents

    def _curves(self) -> list[Content]:
        contents: dict[str, list[Content]] = {stage: [] for stage in self.stages}
        note = "Means over trainings. Thin line: training, smoothed. Line with dots: validation, and its range."
        for stage in self.stages:
            found = comparable_variants(self.comparison, stage)
            several = " Only variations whose losses are the same quantity share axes." if len(found) > 1 else ""
            for i, group in enumerate(found, start=1):
                prefix = f"{slug(stage)}-" + ("" if len(found) == 1 else f"{i}-")
                drawn = plots.loss_plots(self._lines(group, stage), (BY_STEP, BY_TOKENS, BY_TIME), prefix)
                title = f"{_stage_title(stage)}: {', '.join(variant.name for variant in group)}"
                contents[stage] += [Gallery(title, drawn, note + several)] if drawn else []
        return self._by_stage(contents) if contents else []

    def _lines(self, group: Sequence[Variant], stage: str) -> list[Line]:
        """A line for each variant; variants that share their runs are one line with all names."""
        lines: dict[tuple[str, ...], Line] = {}
        for variant in group:
            records = variant.records(stage)
            runs = tuple(str(record.path.resolve()) for record in records)
            known = lines.get(runs)
            style = self.styles[variant.name] if known is None else known.style
            lines[runs] = Line(variant.name if known is None else f"{known.name}, {variant.name}", style, records)
        return list(lines.values())

    def _ablations(self) -> list[Content]:
        contents: list[Content] = []
        for target in self._targets():
            drawn, listed = [], []
            for found in tables.ablations(self.comparison, target.values, target.stages):
                file = f"{slug(target.name)}-along-{slug(found.setting)}"
                drawn.append(own_plots.ablation_plot(found, target.title, file, target.write))
                listed.append(TableBlock(tables.ablation_table(found, target.title, file, target.write_pair)))
            if drawn:
                note = "Lines differ in one setting only. Bars: standard deviation over trainings."
                contents += [Gallery(target.title, drawn, note), Details(f"{target.title}: the numbers", listed)]
        return contents

    def _targets(self) -> list[_Target]:
        targets = []
        for task in self.tasks:
            values = {c.name: c.values for c in task.candidates if c.kind == "model"}
            stages = [stage for stage in self.stages if stage in ("pretrain", task.name)]
            title = f"{task.title}, {task.name}"
            targets.append(_Target(task.name, title, values, stages, formats.percent, formats.spread))
        for i, group in enumerate(comparable_variants(self.comparison, "pretrain"), start=1):
            held_out = {v.name: v.validation_losses() for v in group}
            title = "validation loss"
            targets.append(_Target(f"loss-{i}", title, held_out, ["pretrain"], formats.loss, formats.loss_spread))
        return targets

    def _inference(self) -> list[Content]:
        latency, memory = self.latency, self.inference_memory
        drawn = [
            own_plots.by_length(latency, self.styles, "milliseconds a text", "latency-by-length", 1e-3),
            own_plots.by_length(memory, self.styles, "peak memory, MB", "memory-by-length", 1e6),
        ]
        contents: list[Content] = []
        if found := [plot for plot in drawn if plot is not None]:
            note = "Logarithmic axes: a straight line is a power law. Bars: range over trials."
            contents.append(Gallery("By length", found, note))
        if latency and not self.crossings["latency"]:
            contents.append(Paragraph("No crossover of latency within the measured lengths."))
        return contents + tabular(
            tables.in_inference(latency, "Seconds a text", "latency", formats.step_seconds),
            tables.in_inference(memory, "Peak memory in inference", "inference-memory", formats.memory),
            tables.crossings(self.crossings["latency"], "seconds a text", "crossovers-latency"),
            tables.crossings(self.crossings["memory"], "peak memory", "crossovers-memory"),
        )

    def _classes(self) -> list[Content]:
        contents: list[Content] = []
        by_name = {variant.name: variant for variant in self._variants}
        for task in self.tasks:
            for rank, candidate in enumerate(task.trained):
                found = _summed(by_name[candidate.name].records(task.name))
                if found is None:
                    continue
                title, end = f"{task.name}: {candidate.name}", f"-{slug(task.name)}-{rank + 1}"
                own = confusion_contents(found, end, title, f"Most frequent mistakes of {candidate.name}")
                contents += own if rank == 0 and found.is_readable else [Details(title, own)]
        if contents:
            contents.insert(0, Paragraph("Best variation of each task first; counts are summed over trainings."))
        return contents

    def _lengths(self) -> list[Content]:
        contents: list[Content] = []
        for stage in self.stages:
            means = {v.name: mean for v in self._variants if (mean := v.mean(stage)) is not None}
            contents += length_contents(means, stage, f"-{slug(stage)}")
        return contents

    def _configuration(self) -> list[Content]:
        comparison, found = self.comparison, tables.machines(self.comparison)
        contents = tabular(tables.differences(comparison, self.stages))
        heads = [f"machine {i} ({formats.integer(len(who))} trials)" for i, (_, who) in enumerate(found, start=1)]
        if table := environment(list(zip(heads, (tree for tree, _ in found), strict=True))):
            contents.append(TableBlock(table) if len(found) > 1 else Details(table.title, [TableBlock(table)]))
        if len(found) > 1:
            listed = [f"Machine {i}: {'; '.join(who)}." for i, (_, who) in enumerate(found, start=1)]
            contents.append(Details("Trials by machine", [Paragraph(text) for text in listed]))
        file = comparison.path / "comparison.yaml"
        if file.is_file():
            contents.append(Details("comparison.yaml", [Code(file.read_text(encoding="utf-8", errors="replace"))]))
        for variant in self._variants:
            configs: list[Content] = []
            for stage in self.stages:
                if (records := variant.records(stage)) and records[0].config:
                    configs += [Paragraph("", title=f"{stage}/config.yaml"), Code(config_text(records[0]))]
            contents += [Details(f"Configs of {variant.name}", configs)] if configs else []
        return contents


def _stage_title(stage: str) -> str:
    return "Pretraining" if stage == "pretrain" else f"Fine-tuning, {stage}"


def _summed(records: Sequence[RunRecord]) -> ConfusionMatrix | None:
    """The confusion matrices of all tests of the runs, counts added up."""
    found = [matrix for record in records for test in record.tests() if (matrix := confusion(test)) is not None]
    if not found or any(list(one.labels) != list(found[0].labels) for one in found):
        return None
    counts = np.sum([matrix.counts for matrix in found], axis=0).tolist()  # (classes, classes)
    return found[0].model_copy(update={"counts": counts})


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
    mean, deviation = candidate.spread or (None, None)
    values = {
        "name": candidate.name,
        "kind": candidate.kind,
        "trials": candidate.state,
        "why": candidate.why,
        "values": list(candidate.values),
        "mean": mean,
        "deviation": deviation,
        **(test.model_dump() if test else {"not_worse": False}),
    }
    own = task.own.get(candidate.name)
    return CandidateResult.model_validate(values | ({"own_baselines": dict(own)} if own else {}))


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
