"""A report before it is a page or a text: chapters, and what stands in them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from homespun.report import error_analysis, plots, summary, tables, tasks
from homespun.report.adaptation import adaptations
from homespun.report.confusion import Confusion, confusion, mistakes
from homespun.report.distillation import distillations
from homespun.report.layers import layers_read
from homespun.report.plots import Plot
from homespun.report.records import RunRecord, comparable, config_text
from homespun.report.table import Table


@dataclass(frozen=True)
class Section:
    """What the caller wants to tell besides: a heading, a text, tables, and the commands that were run."""

    title: str
    text: str = ""
    commands: Sequence[str] = ()
    tables: Sequence[Table] = ()


@dataclass(frozen=True)
class Paragraph:
    """A paragraph, with a heading where it has one."""

    kind: ClassVar = "paragraph"
    text: str
    title: str = ""


@dataclass(frozen=True)
class Notice:
    """A paragraph that must not be overlooked."""

    kind: ClassVar = "notice"
    text: str


@dataclass(frozen=True)
class TableBlock:
    """A table."""

    kind: ClassVar = "table"
    table: Table


@dataclass(frozen=True)
class Heatmap:
    """A confusion matrix as coloured cells."""

    kind: ClassVar = "heatmap"
    title: str
    table: Table
    confusion: Confusion


@dataclass(frozen=True)
class Gallery:
    """Figures that belong together."""

    kind: ClassVar = "gallery"
    title: str
    plots: Sequence[Plot]
    note: str


@dataclass(frozen=True)
class Code:
    """Text to be shown as it is: commands, a config."""

    kind: ClassVar = "code"
    text: str


@dataclass(frozen=True)
class Details:
    """What is there for those who look for it."""

    kind: ClassVar = "details"
    title: str
    contents: Sequence[Content]


Content = Paragraph | Notice | TableBlock | Heatmap | Gallery | Code | Details


@dataclass(frozen=True)
class Chapter:
    """A heading and what stands under it."""

    title: str
    contents: Sequence[Content]


@dataclass(frozen=True)
class Document:
    """A whole report, in the order in which it is read.

    Tables and figures are files by their names: one that has an earlier one's is given a number behind it.
    """

    title: str
    lead: Sequence[Content]
    chapters: Sequence[Chapter]

    def __post_init__(self) -> None:
        taken: set[tuple[type, str]] = set()
        lead = _with_unique_names(self.lead, taken)
        chapters = [replace(chapter, contents=_with_unique_names(chapter.contents, taken)) for chapter in self.chapters]
        object.__setattr__(self, "lead", lead)
        object.__setattr__(self, "chapters", chapters)

    def tables(self) -> list[Table]:
        """All tables, folded ones too."""
        return [item.table for item in self._all() if isinstance(item, TableBlock | Heatmap)]

    def plots(self) -> list[Plot]:
        """All figures."""
        return [plot for item in self._all() if isinstance(item, Gallery) for plot in item.plots]

    def _all(self) -> list[Content]:
        found: list[Content] = []
        waiting = [*self.lead, *(item for chapter in self.chapters for item in chapter.contents)]
        while waiting:
            found.append(item := waiting.pop(0))
            if isinstance(item, Details):
                waiting = [*item.contents, *waiting]
        return found


_Named = TypeVar("_Named", Table, Plot)


def _with_unique_names(contents: Sequence[Content], taken: set[tuple[type, str]]) -> list[Content]:
    """The same contents, in which no name is ``taken``; it gets theirs."""

    def named(item: _Named) -> _Named:
        numbered = (f"{item.name}-{number}" for number in itertools.count(2))
        name = next(n for n in itertools.chain([item.name], numbered) if (type(item), n) not in taken)
        taken.add((type(item), name))
        return replace(item, name=name)

    renamed: list[Content] = []
    for item in contents:
        match item:
            case TableBlock() | Heatmap():
                renamed.append(replace(item, table=named(item.table)))
            case Gallery():
                renamed.append(replace(item, plots=[named(plot) for plot in item.plots]))
            case Details():
                renamed.append(replace(item, contents=_with_unique_names(item.contents, taken)))
            case _:
                renamed.append(item)
    return renamed


def compose(records: Sequence[RunRecord], *, title: str, sections: Sequence[Section]) -> Document:
    """The report of one run, or of several side by side. Chapters without content are left out."""
    lead: list[Content] = [*map(Paragraph, summary.summary(records)), *map(Notice, summary.warnings(records))]
    lead += map(Notice, error_analysis.notices(records))
    chapters = [
        Chapter("Results", _tabular(tables.results(records), *tasks.results(records))),
        Chapter("Learning curve", _learning_curves(records)),
        Chapter("Classes", _classes(records)),
        Chapter("Top errors", _of_each(records, error_analysis.top_errors_table, "most-wrong")),
        Chapter("Resources and losses", _tabular(tables.resources(records), *tables.losses(records))),
        Chapter("Teacher and student", _tabular(*distillations(records))),
        Chapter("Adaptation", _tabular(*adaptations(records))),
        Chapter("Layer weights", _tabular(layers_read(records))),
        Chapter("Curves", _curves(records)),
        Chapter("Calibration", _calibration(records)),
        Chapter("Overlap of test and training set", _of_each(records, error_analysis.overlap_table, "overlap")),
        Chapter("Lengths", _lengths(records)),
        Chapter("Exports", _exports(records)),
        Chapter("Configuration", _configuration(records, sections)),
    ]
    return Document(title, lead, [chapter for chapter in chapters if chapter.contents])


def _tabular(*found: Table | None) -> list[Content]:
    return [TableBlock(table) for table in found if table is not None]


def _learning_curves(records: Sequence[RunRecord]) -> list[Content]:
    """What came of fewer training examples, of each run that asked."""
    contents: list[Content] = []
    for number, record in enumerate(records, start=1):
        end = "" if len(records) == 1 else f"-{number}"
        contents += _tabular(tasks.curve_table(record, f"examples{end}"))
        if (plot := tasks.curve_plot(record, f"examples{end}")) is not None:
            note = "Bars: standard deviation over trainings. Dashed: baselines with as many examples."
            contents.append(Gallery(record.name, [plot], note))
    return contents


def _curves(records: Sequence[RunRecord]) -> list[Content]:
    """A gallery for the runs that have the same terms of the loss: only those share axes."""
    groups = comparable(records)
    colour = plots.colours(records)
    contents: list[Content] = []
    for number, group in enumerate(groups, start=1):
        prefix = "" if len(groups) == 1 else f"{number}-"
        drawn = plots.loss_plots(group, colour, prefix)
        rate = plots.learning_rate_plot(group, colour, f"{prefix}learning-rate")
        title = ", ".join(f"{r.name} ({r.trial})" if r.trial else r.name for r in group)
        note = "Thin line: training, mean over 4 % of the run. Line with dots: validation."
        if everything := [*drawn, *([rate] if rate else [])]:
            contents.append(Gallery(title, everything, note))
    return contents


def _classes(records: Sequence[RunRecord]) -> list[Content]:
    """Confusion matrix, mistakes and classes of each tested run; those after the best one are folded."""
    naming = [record for record in records if record.tests() and record.tests()[0].per_class]
    tested = sorted(naming, key=lambda r: -(tables.accuracy(r) or 0.0))
    contents: list[Content] = []
    for rank, record in enumerate(tested):
        end = "" if len(tested) == 1 else f"-{rank + 1}"
        found = confusion(record.tests()[0])
        own: list[Content] = []
        if found is not None:
            counts = found.table(f"confusion{end}")
            own += [Heatmap(counts.title, counts, found)] if found.readable else []
            own += _tabular(mistakes(found, f"mistakes{end}"))
            own += [] if found.readable else [Details(counts.title, [TableBlock(counts)])]
        own += _tabular(tables.per_class(record, f"per-class{end}"))
        if len(record.tests()) > 1:
            own.insert(0, Paragraph(f"First of {len(record.tests())} trainings of {record.name}."))
        elif len(tested) > 1:
            own.insert(0, Paragraph(f"Of {record.name}."))
        contents += own if rank == 0 else [Details(record.name, own)]
    return contents


def _of_each(records: Sequence[RunRecord], make: Callable[[RunRecord, str], Table | None], name: str) -> list[Content]:
    """A table of each run that has one; those after the first are folded."""
    contents: list[Content] = []
    for rank, record in enumerate(records):
        found = _tabular(make(record, name if len(records) == 1 else f"{name}-{rank + 1}"))
        contents += [Details(record.name, found)] if found and contents else found
    return contents


def _calibration(records: Sequence[RunRecord]) -> list[Content]:
    """Calibration and thresholds of each classifier."""
    contents: list[Content] = []
    for rank, record in enumerate(records):
        end = "" if len(records) == 1 else f"-{rank + 1}"
        found = _tabular(
            error_analysis.calibration_table(record, f"calibration{end}"),
            error_analysis.thresholds_table(record, f"thresholds{end}"),
        )
        if (plot := error_analysis.reliability_plot(record, f"reliability{end}")) is not None:
            note = "Larger points: more answers. Both on the test examples."
            found.append(Gallery(record.name, [plot], note))
        contents += [Details(record.name, found)] if found and contents else found
    return contents


def _lengths(records: Sequence[RunRecord]) -> list[Content]:
    found = [(record, record.result.lengths) for record in records]
    distinct = [(r, value) for i, (r, value) in enumerate(found) if value and value not in [v for _, v in found[:i]]]
    contents: list[Content] = []
    for number, (record, _) in enumerate(distinct, start=1):
        if len(distinct) > 1:
            contents.append(Paragraph(f"Of {record.name}."))
        contents += _tabular(tables.lengths(record, "lengths" if len(distinct) == 1 else f"lengths-{number}"))
    return contents


def _exports(records: Sequence[RunRecord]) -> list[Content]:
    """What each run left for transformers, or why it could not."""
    contents: list[Content] = []
    for record in records:
        export = record.result.export
        if export is None:
            continue
        if export.folder:
            sentences = [f"hf/ of {record.name} is a {export.architecture} of transformers", *export.notes]
        else:
            sentences = [f"{record.name}: {export.notes[0]}", *export.notes[1:]]
        contents.append(Paragraph(". ".join(sentences) + "."))
    return contents


def _configuration(records: Sequence[RunRecord], sections: Sequence[Section]) -> list[Content]:
    contents: list[Content] = []
    for section in sections:
        contents += [Paragraph(section.text, section.title)]
        contents += _tabular(*section.tables)
        contents += [Code("\n".join(section.commands))] if section.commands else []
    contents += _tabular(*tables.differences(records))
    contents += [
        Details(f"config.yaml of {record.name}", [Code(config_text(record))]) for record in records if record.config
    ]
    environment = tables.environment(records)
    contents += [Details(environment.title, [TableBlock(environment)])] if environment else []
    return contents
