"""Report of a comparison: page, Markdown, CSV, figures, ``comparison.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
from pydantic import JsonValue

from homespun.comparison_results import CandidateResult, ComparisonResult, Overhead, TableResult, TaskResult
from homespun.errors import quantity
from homespun.io.atomic import write_text
from homespun.report import comparison_summary as summary
from homespun.report import comparison_tables as tables
from homespun.report import formats, plots, significance
from homespun.report.comparison_quality import Candidate, TaskComparison, evaluate
from homespun.report.comparison_records import Comparison, Variant, comparable_variants, read_comparison
from homespun.report.comparison_tables import ByLength, Cost, crossovers, pareto
from homespun.report.document import (
    Block,
    Document,
    Table,
    code,
    csv_text,
    details,
    first_open,
    gallery,
    notices,
    paragraphs,
    slug,
    tabular,
    write_document,
)
from homespun.report.error_analysis import confusion
from homespun.report.figure import assign_looks
from homespun.report.formats import Writer, number
from homespun.report.page import confusion_blocks, length_blocks
from homespun.report.plots import BY_STEP, BY_TIME, BY_TOKENS, Line
from homespun.report.records import RunRecord, config_text
from homespun.report.tables import environment, losses
from homespun.results import VERSION, ConfusionMatrix


class Report:
    """Comparison with cached results of its evaluation."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison, self.variants = comparison, comparison.variants
        self.tasks = evaluate(comparison)
        self.looks = assign_looks([variant.name for variant in comparison.variants])
        self.stages = [*(["pretrain"] if comparison.pretrains else []), *comparison.tasks]
        self.seconds = self._seconds(self.stages)
        self.latency = self._in_inference("seconds_per_text")
        self.inference_memory = self._in_inference("peak_bytes")
        self.crossings = {"latency": crossovers(self.latency), "memory": crossovers(self.inference_memory)}
        self.costs = {task.name: self._costs(task) for task in self.tasks}

    def _seconds(self, stages: Sequence[str]) -> dict[str, float]:
        """Return the mean duration of these stages of a trial in seconds, by variant."""
        found = {v.name: [s for stage in stages if (s := v.stage_seconds(stage)) is not None] for v in self.variants}
        return {name: sum(seconds) for name, seconds in found.items() if seconds}

    def _means(self, stage: str) -> dict[str, RunRecord]:
        """Return the mean run of a stage by variant."""
        return {v.name: mean for v in self.variants if (mean := v.mean(stage)) is not None}

    def _memory(self) -> dict[str, float]:
        """Peak bytes of all stages by variant."""
        found: dict[str, float] = {}
        for name, mean in (item for stage in self.stages for item in self._means(stage).items()):
            if (peak := mean.summary.get("peak_bytes")) is not None:
                found[name] = max(peak, found.get(name, peak))
        return found

    def _in_inference(self, what: str) -> dict[str, ByLength]:
        return {v.name: found for v in self.variants if (found := tables.inference(v, what))}

    def document(self) -> Document:
        """Build the page."""
        comparison, tasks = self.comparison, self.tasks
        about = comparison.recipe.get("description")
        lead = paragraphs(formats.text(about) if about else "", *summary.advice(comparison, tasks, self.seconds))
        lead += paragraphs(summary.certainty(comparison, tasks), summary.limits(comparison, tasks))
        lead += notices(summary.progress(comparison), *(warning for task in tasks for warning in task.warnings))
        lead += notices(*comparison.warnings, summary.machines(len(tables.machines(comparison))))
        lead += notices(summary.unequal_text(comparison, self.stages))
        chapters = {
            "Quality": self._quality(),
            "Resources": first_open({_stage_title(stage): self._resources(stage) for stage in self.stages}),
            "Quality against time and memory": self._tradeoffs(),
            "Loss curves": first_open({_stage_title(stage): self._curves(stage) for stage in self.stages}),
            "Ablations": self._ablations(),
            "Inference cost by length": self._inference(),
            "Classes": self._classes(),
            "Text lengths": [b for s in self.stages for b in length_blocks(self._means(s), s, f"-{slug(s)}")],
            "Configuration": self._configuration(),
        }
        return Document(f"Comparison: {comparison.path.resolve().name}", lead, chapters)

    def _quality(self) -> list[Block]:
        blocks: list[Block] = []
        for task in self.tasks:
            blocks += tabular(tables.quality(task))
            blocks += details(f"{task.name}: every pair", tabular(tables.pairs(task)))
        for i, group in enumerate(comparable_variants(self.comparison, "pretrain"), start=1):
            blocks += tabular(tables.held_out_losses(group, f"held-out-{i}"))
        return blocks + details("All trials by variation", tabular(tables.trials(self.comparison)))

    def _resources(self, stage: str) -> list[Block]:
        by_part = [replace(t, name=f"{t.name}-{slug(stage)}") for t in losses(list(self._means(stage).values()))]
        found = tabular(tables.resources(self.comparison, stage), *by_part)
        return found + (paragraphs(summary.shared(self.comparison)) if stage == "pretrain" and found else [])

    def _costs(self, task: TaskComparison) -> list[Cost]:
        """Return time and memory of training, and latency at the longest measured length."""
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

    def _tradeoffs(self) -> list[Block]:
        blocks: list[Block] = []
        for task in self.tasks:
            costs, file = self.costs[task.name], f"{slug(task.name)}-by-"
            drawn = [plots.tradeoff_plot(task, cost, self.looks, f"{file}{cost.kind}") for cost in costs]
            blocks += gallery(task.name, drawn, summary.fronts([(cost.kind, cost.front) for cost in costs]))
        return blocks

    def _curves(self, stage: str) -> list[Block]:
        blocks: list[Block] = []
        groups = comparable_variants(self.comparison, stage)
        note = "Means over trainings. Thin line: training, smoothed. Line with dots: validation, and its range."
        note += " Only variations whose losses are the same quantity share axes." if len(groups) > 1 else ""
        for i, group in enumerate(groups, start=1):
            prefix = f"{slug(stage)}-" if len(groups) == 1 else f"{slug(stage)}-{i}-"
            drawn = plots.loss_plots(self._lines(group, stage), (BY_STEP, BY_TOKENS, BY_TIME), prefix)
            blocks += gallery(f"{_stage_title(stage)}: {', '.join(variant.name for variant in group)}", drawn, note)
        return blocks

    def _lines(self, group: Sequence[Variant], stage: str) -> list[Line]:
        """Return a line for each variant; variants that share their runs are one line with all names."""
        lines: dict[tuple[str, ...], Line] = {}
        for variant in group:
            records = variant.records(stage)
            runs = tuple(str(record.path.resolve()) for record in records)
            known = lines.get(runs)
            look = self.looks[variant.name] if known is None else known.look
            lines[runs] = Line(variant.name if known is None else f"{known.name}, {variant.name}", look, records)
        return list(lines.values())

    def _ablations(self) -> list[Block]:
        blocks: list[Block] = []
        for task in self.tasks:
            values = {c.name: c.values for c in task.candidates if c.kind == "model"}
            stages = [stage for stage in self.stages if stage in ("pretrain", task.name)]
            title = f"{task.title}, {task.name}"
            blocks += self._along_settings(task.name, title, values, stages, (formats.percent, formats.spread))
        for i, group in enumerate(comparable_variants(self.comparison, "pretrain"), start=1):
            held_out = {v.name: v.validation_losses() for v in group}
            writers = formats.loss, formats.loss_spread
            blocks += self._along_settings(f"loss-{i}", "validation loss", held_out, ["pretrain"], writers)
        return blocks

    def _along_settings(
        self,
        name: str,
        title: str,
        values: Mapping[str, Sequence[float]],
        stages: Sequence[str],
        writers: tuple[Writer, Writer],  # formats of a number, and of a mean with its deviation
    ) -> list[Block]:
        """Build ablations of one quantity, ``values`` of each training by variant, along the settings of ``stages``."""
        drawn, listed = [], []
        for found in tables.ablations(self.comparison, values, stages):
            file = f"{slug(name)}-along-{slug(found.setting)}"
            drawn.append(plots.ablation_plot(found, title, file, writers[0]))
            listed.append(tables.ablation_table(found, title, file, writers[1]))
        note = "Lines differ in one setting only. Bars: standard deviation over trainings."
        return gallery(title, drawn, note) + details(f"{title}: the numbers", tabular(*listed))

    def _inference(self) -> list[Block]:
        latency, memory = self.latency, self.inference_memory
        drawn = [
            plots.by_length_plot(latency, self.looks, "milliseconds a text", "latency-by-length", 1e-3),
            plots.by_length_plot(memory, self.looks, "peak memory, MB", "memory-by-length", 1e6),
        ]
        note = "Logarithmic axes: a straight line is a power law. Bars: range over trials."
        blocks = gallery("By length", drawn, note)
        if latency and not self.crossings["latency"]:
            blocks += paragraphs("No crossover of latency within the measured lengths.")
        return blocks + tabular(
            tables.in_inference(latency, "Seconds a text", "latency", formats.step_seconds),
            tables.in_inference(memory, "Peak memory in inference", "inference-memory", formats.memory),
            tables.crossings(self.crossings["latency"], "seconds a text", "crossovers-latency"),
            tables.crossings(self.crossings["memory"], "peak memory", "crossovers-memory"),
        )

    def _classes(self) -> list[Block]:
        blocks: list[Block] = []
        by_name = {variant.name: variant for variant in self.variants}
        for task in self.tasks:
            for rank, candidate in enumerate(task.trained):
                found = _summed(by_name[candidate.name].records(task.name))
                if found is not None:
                    title, end = f"{task.name}: {candidate.name}", f"-{slug(task.name)}-{rank + 1}"
                    own = confusion_blocks(found, end, title, f"Most frequent mistakes of {candidate.name}")
                    blocks += own if rank == 0 and found.is_readable else details(title, own)
        intro = paragraphs("Best variation of each task first; counts are summed over trainings.")
        return intro + blocks if blocks else []

    def _configuration(self) -> list[Block]:
        comparison, found = self.comparison, tables.machines(self.comparison)
        blocks = tabular(tables.differences(comparison, self.stages))
        heads = [f"machine {i} ({quantity(len(users), 'trial')})" for i, (_, users) in enumerate(found, start=1)]
        table = environment(list(zip(heads, (tree for tree, _ in found), strict=True)))
        blocks += tabular(table) if len(found) > 1 else details(table.title, tabular(table))
        if len(found) > 1:
            listed = (f"Machine {i}: {'; '.join(users)}." for i, (_, users) in enumerate(found, start=1))
            blocks += details("Trials by machine", paragraphs(*listed))
        file = comparison.path / "comparison.yaml"
        if file.is_file():
            blocks += details("comparison.yaml", code(file.read_text(encoding="utf-8", errors="replace")))
        for variant in self.variants:
            configs: list[Block] = []
            for stage in self.stages:
                if (records := variant.records(stage)) and records[0].config:
                    configs += [Block("paragraph", f"{stage}/config.yaml"), *code(config_text(records[0]))]
            blocks += details(f"Configs of {variant.name}", configs)
        return blocks


def _stage_title(stage: str) -> str:
    return "Pretraining" if stage == "pretrain" else f"Fine-tuning, {stage}"


def _summed(records: Sequence[RunRecord]) -> ConfusionMatrix | None:
    """Sum the confusion matrices of all tests of the runs."""
    found = [matrix for record in records for test in record.tests() if (matrix := confusion(test)) is not None]
    if not found or any(list(one.labels) != list(found[0].labels) for one in found):
        return None
    counts = np.sum([matrix.counts for matrix in found], axis=0).tolist()  # (classes, classes)
    return found[0].model_copy(update={"counts": counts})


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
        advice=[block.text for block in document.lead if block.kind == "paragraph"],
        notices=[block.text for block in document.lead if block.kind == "notice"],
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
    mean, deviation = candidate.spread or (None, None)
    values = {
        "name": candidate.name,
        "kind": candidate.kind,
        "trials": candidate.state,
        "why": candidate.why,
        "values": list(candidate.values),
        "mean": mean,
        "deviation": deviation,
        **(task.test(candidate).model_dump() if candidate.name in task.against_best else {"not_worse": False}),
    }
    own = task.own.get(candidate.name)
    return CandidateResult.model_validate(values | ({"own_baselines": dict(own)} if own else {}))


def _table_result(table: Table) -> TableResult:
    rows = [[_plain(value) for value in row] for row in table.rows]
    return TableResult(title=table.title, columns=[column.title for column in table.columns], rows=rows)


def _plain(value: object) -> JsonValue:
    """Convert a cell to JSON; NaN and infinity become text."""
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | str):
        return value
    known = number(value)
    return formats.text(value) if known is None else int(known) if isinstance(value, int) else known
