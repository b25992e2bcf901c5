"""A comparison as chapters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from homespun.report import comparison_plots as plots
from homespun.report import comparison_summary as summary
from homespun.report import comparison_tables as tables
from homespun.report import formats
from homespun.report.comparison_plots import LineStyle
from homespun.report.comparison_quality import TaskComparison, evaluate
from homespun.report.comparison_records import Comparison, Variant
from homespun.report.confusion import Confusion, confusion, mistakes
from homespun.report.crossovers import ByLength, crossovers, pareto
from homespun.report.document import (
    Chapter,
    Code,
    Content,
    Details,
    Document,
    Gallery,
    Heatmap,
    Notice,
    Paragraph,
    TableBlock,
)
from homespun.report.plots import BY_TIME, Plot
from homespun.report.records import RunRecord, config_text, final_losses
from homespun.report.tables import lengths, losses


@dataclass(frozen=True)
class Cost:
    """What quality is held against: a value for each variation, and who is on the Pareto front."""

    kind: str
    title: str
    values: Mapping[str, float]  # as they are drawn: in the unit that the title names
    front: list[str]


class Report:
    """A comparison with all that is worked out of it, once."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        self.tasks = evaluate(comparison)
        self.styles: Mapping[str, LineStyle] = plots.assign_styles(comparison)
        self.stages = [*(["pretrain"] if comparison.pretrains else []), *comparison.tasks]
        self.seconds = {v.name: found for v in comparison.variants if (found := self._sum(v)) is not None}
        self.memory = {v.name: max(peaks) for v in comparison.variants if (peaks := self._peaks(v))}
        self.latency = self._in_inference("seconds_per_text")
        self.inference_memory = self._in_inference("peak_bytes")
        self.crossings = {"latency": crossovers(self.latency), "memory": crossovers(self.inference_memory)}
        self.costs = {task.name: self._costs(task) for task in self.tasks}

    def _sum(self, variant: Variant, task: str | None = None) -> float | None:
        """Seconds of training of one trial: of the stage of pretraining and of one task, or of all."""
        stages = self.stages if task is None else [s for s in self.stages if s in ("pretrain", task)]
        found = [variant.stage_seconds(stage) for stage in stages]
        known = [seconds for seconds in found if seconds is not None]
        return sum(known) if known else None

    def _peaks(self, variant: Variant) -> list[float]:
        means = [variant.mean(stage) for stage in self.stages]
        return [peak for mean in means if mean is not None and (peak := mean.summary.get("peak_bytes")) is not None]

    def _in_inference(self, what: str) -> dict[str, ByLength]:
        return {v.name: found for v in self.comparison.variants if (found := tables.inference(v, what))}

    def document(self) -> Document:
        """The page. Chapters without content are left out."""
        comparison = self.comparison
        about = formats.text(comparison.recipe.get("about")) if comparison.recipe.get("about") else ""
        sure = summary.certainty(comparison, self.tasks)
        lead: list[Content] = [Paragraph(about)] if about else []
        lead += [Paragraph(text) for text in summary.advice(comparison, self.tasks, self.seconds)]
        lead += [Paragraph(sure)] if sure else []
        lead += [Paragraph(summary.limits(comparison, self.tasks))]
        progress = summary.progress(comparison)
        lead += [Notice(progress)] if progress else []
        lead += [Notice(warning) for task in self.tasks for warning in task.warnings]
        lead += [Notice(warning) for warning in comparison.warnings]
        lead += self._machines_notice()
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

    def _machines_notice(self) -> list[Content]:
        found = tables.machines(self.comparison)
        if len(found) < 2:
            return []
        return [
            Notice(
                f"The trials ran on {len(found)} different machines or versions: do not compare times and memory; "
                f"their scores may differ for that reason too. See the table of machines."
            )
        ]

    def _quality(self) -> list[Content]:
        contents: list[Content] = []
        for task in (task for task in self.tasks if task.candidates):
            contents.append(TableBlock(tables.quality(task)))
            if (pairs := tables.pairs(task)) is not None:
                contents.append(Details(f"{task.name}: every pair", [TableBlock(pairs)]))
        listed = TableBlock(tables.trials(self.comparison))
        return [*contents, Details("All trials by variation", [listed])]

    def _resources(self) -> list[Content]:
        contents: list[Content] = []
        for stage in self.stages:
            resources = tables.resources(self.comparison, stage)
            means = [mean for v in self.comparison.variants if (mean := v.mean(stage)) is not None]
            by_part = [replace(table, name=f"{table.name}-{tables.slug(stage)}") for table in losses(means)]
            own: list[Content] = [TableBlock(table) for table in ([resources] if resources else []) + by_part]
            shared = summary.shared(self.comparison) if stage == "pretrain" and own else ""
            own += [Paragraph(shared)] if shared else []
            contents += own if stage == self.stages[0] or not own else [Details(_stage_title(stage), own)]
        return contents

    def _costs(self, task: TaskComparison) -> list[Cost]:
        """Time and memory of training, and latency at the longest measured length."""
        longest = max((at for measured in self.latency.values() for at in measured), default=0.0)
        seconds = {v.name: s for v in self.comparison.variants if (s := self._sum(v, task.name)) is not None}
        at_longest = {name: fmean(measured[longest]) for name, measured in self.latency.items() if longest in measured}
        quality = {c.name: c.mean for c in task.candidates if c.kind == "model" and c.mean is not None}
        kinds = [
            ("time", seconds, BY_TIME.label(max(seconds.values(), default=0.0))),
            ("memory", self.memory, (1e9, "peak memory in training, GB")),
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
        for task in self.tasks:
            costs = self.costs[task.name]
            drawn = [
                plots.tradeoff(task, cost.values, cost.front, self.styles, cost.title, name)
                for cost in costs
                for name in [f"{tables.slug(task.name)}-by-{cost.kind}"]
            ]
            fronts = "; ".join(f"{cost.kind}: {', '.join(cost.front)}" for cost in costs)
            note = (
                f"Up is better, left is cheaper. Thin line: Pareto front by mean ({fronts}). Bars: standard deviation "
                f"over trainings. Baselines far below are not drawn."
            )
            contents += [Gallery(task.name, drawn, note)] if drawn else []
        return contents

    def _curves(self) -> list[Content]:
        contents: list[Content] = []
        for stage in self.stages:
            found = plots.groups(self.comparison, stage)
            galleries: list[Content] = []
            for i, group in enumerate(found, start=1):
                prefix = f"{tables.slug(stage)}-" + ("" if len(found) == 1 else f"{i}-")
                drawn = plots.loss_curves(group, stage, self.styles, prefix)
                note = "Means over trainings. Thin line: training, smoothed. Line with dots: validation, and its range."
                if len(found) > 1:
                    note += " Only variations whose losses are the same quantity share axes."
                title = f"{_stage_title(stage)}: {', '.join(variant.name for variant in group)}"
                galleries += [Gallery(title, drawn, note)] if drawn else []
            contents += (
                galleries if stage == self.stages[0] else [Details(_stage_title(stage), galleries)] * bool(galleries)
            )
        return contents

    def _ablations(self) -> list[Content]:
        contents: list[Content] = []
        targets: list[tuple[str, str, Mapping[str, Sequence[float]], list[str], Callable[[object], str], Any]] = [
            (
                *(
                    task.name,
                    f"{task.title}, {task.name}",
                    {c.name: c.values for c in task.candidates if c.kind == "model"},
                ),
                *([s for s in self.stages if s in ("pretrain", task.name)], formats.percent, formats.spread),
            )
            for task in self.tasks
        ]
        for i, group in enumerate(plots.groups(self.comparison, "pretrain"), start=1):
            values: Mapping[str, Sequence[float]] = {
                v.name: [loss for r in v.records("pretrain") if (loss := final_losses(r)[1].get("loss")) is not None]
                for v in group
            }
            targets.append((f"loss-{i}", "validation loss", values, ["pretrain"], formats.loss, _loss_spread))
        for name, title, values, stages, write, write_pair in targets:
            drawn, listed = [], []
            for found in tables.ablations(self.comparison, values, stages):
                file = f"{tables.slug(name)}-along-{tables.slug(found.setting)}"
                drawn.append(plots.ablation_plot(found, title, file, write))
                listed.append(TableBlock(tables.ablation_table(found, title, file, write_pair)))
            if drawn:
                note = "Lines differ in one setting only. Bars: standard deviation over trainings."
                contents += [Gallery(title, drawn, note), Details(f"{title}: the numbers", listed)]
        return contents

    def _inference(self) -> list[Content]:
        contents: list[Content] = []
        drawn = [
            plots.by_length(self.latency, self.styles, "milliseconds a text", "latency-by-length", 1e-3),
            plots.by_length(self.inference_memory, self.styles, "peak memory, MB", "memory-by-length", 1e6),
        ]
        if found := [plot for plot in drawn if plot is not None]:
            note = "Logarithmic axes: a straight line is a power law. Bars: range over trials."
            contents.append(Gallery("By length", found, note))
        listed = [
            tables.in_inference(self.latency, "Seconds a text", "latency", formats.step_seconds),
            tables.in_inference(self.inference_memory, "Peak memory in inference", "inference-memory", formats.memory),
            tables.crossings(self.crossings["latency"], "seconds a text", "crossovers-latency"),
            tables.crossings(self.crossings["memory"], "peak memory", "crossovers-memory"),
        ]
        if self.latency and not self.crossings["latency"]:
            contents.append(Paragraph("No crossover of latency within the measured lengths."))
        return contents + [TableBlock(table) for table in listed if table is not None]

    def _classes(self) -> list[Content]:
        contents: list[Content] = []
        for task in self.tasks:
            by_name = {variant.name: variant for variant in self.comparison.variants}
            models = [c for c in task.candidates if c.kind == "model" and c.values]
            for rank, candidate in enumerate(models):
                found = _summed(by_name[candidate.name].records(task.name))
                if found is None:
                    continue
                end = f"-{tables.slug(task.name)}-{rank + 1}"
                counts = found.table(f"confusion{end}")
                title = f"{task.name}: {candidate.name}"
                wrong = mistakes(found, f"mistakes{end}")
                own: list[Content] = [Heatmap(title, counts, found) if found.readable else TableBlock(counts)]
                own += (
                    [TableBlock(replace(wrong, title=f"Most frequent mistakes of {candidate.name}"))] if wrong else []
                )
                contents += own if rank == 0 and found.readable else [Details(title, own)]
        if contents:
            contents.insert(0, Paragraph("Best variation of each task first; counts are summed over trainings."))
        return contents

    def _lengths(self) -> list[Content]:
        contents: list[Content] = []
        for stage in self.stages:
            means = [(v.mean(stage), v) for v in self.comparison.variants]
            given: list[tuple[RunRecord, list[str]]] = []
            for record, variant in means:
                if record is None or not record.result.lengths:
                    continue
                same = [names for other, names in given if other.result.lengths == record.result.lengths]
                if same:
                    same[0].append(variant.name)
                else:
                    given.append((record, [variant.name]))
            for i, (record, names) in enumerate(given, start=1):
                end = f"{tables.slug(stage)}" + ("" if len(given) == 1 else f"-{i}")
                title = stage if len(given) == 1 else f"{stage}: {', '.join(names)}"
                drawn = _histograms(record, end, title)
                if drawn:
                    note = "Tokens a text, by class; the axis is in powers of two, each strip to its own height."
                    contents.append(Gallery(title, drawn, note))
                table = lengths(record, f"lengths-{end}")
                contents += [TableBlock(replace(table, title=f"Lengths in tokens, {title}"))] if table else []
        return contents

    def _configuration(self) -> list[Content]:
        comparison = self.comparison
        contents: list[Content] = []
        different = tables.differences(comparison, self.stages)
        if different:
            contents.append(TableBlock(different))
        found = tables.machines(comparison)
        environment = tables.environments(found)
        if environment:
            contents.append(
                TableBlock(environment) if len(found) > 1 else Details(environment.title, [TableBlock(environment)])
            )
        if len(found) > 1:
            listed = [f"Machine {i}: {'; '.join(who)}." for i, (_, who) in enumerate(found, start=1)]
            contents += [Details("Trials by machine", [Paragraph(text) for text in listed])]
        contents += self._recipes()
        return contents

    def _recipes(self) -> list[Content]:
        contents: list[Content] = []
        file = self.comparison.path / "comparison.yaml"
        if file.is_file():
            contents.append(Details("comparison.yaml", [Code(file.read_text(encoding="utf-8", errors="replace"))]))
        for variant in self.comparison.variants:
            stages = {s: records[0] for s in self.stages if (records := variant.records(s)) and records[0].config}
            configs: list[Content] = []
            for stage, record in stages.items():
                configs += [Paragraph("", title=f"{stage}/config.yaml"), Code(config_text(record))]
            contents += [Details(f"Configs of {variant.name}", configs)] if configs else []
        return contents


def _stage_title(stage: str) -> str:
    return "Pretraining" if stage == "pretrain" else f"Fine-tuning, {stage}"


def _loss_spread(value: Any) -> str:
    mean, deviation = value
    return formats.loss(mean) if deviation is None else f"{formats.loss(mean)}{formats.NB}±{formats.NB}{deviation:.2g}"


def _summed(records: Sequence[RunRecord]) -> Confusion | None:
    """The confusion matrices of all tests of some runs, counts added up."""
    found = [matrix for record in records for test in record.tests() if (matrix := confusion(test)) is not None]
    if not found or any(list(one.labels) != list(found[0].labels) for one in found):
        return None
    cells = range(len(found[0].labels))
    return Confusion(found[0].labels, [[sum(one.counts[i][j] for one in found) for j in cells] for i in cells])


def _histograms(record: RunRecord, end: str, title: str) -> list[Plot]:
    rows = record.result.lengths
    splits = list(dict.fromkeys(str(row.get("split")) for row in rows))
    drawn = []
    for split in splits:
        of_split = [row for row in rows if str(row.get("split")) == split]
        of_classes = [row for row in of_split if row.get("class") is not None] or of_split
        plot = plots.length_histogram(of_classes, f"lengths-{end}-{tables.slug(split)}", f"Lengths, {title}, {split}")
        drawn += [plot] if plot is not None else []
    return drawn
