"""Inspection of labelled files: columns, task, splits, and defects of the data."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from homespun.choices import TextTaskName
from homespun.data.labels import Labels, read_rows
from homespun.data.long_inputs import HeadTail
from homespun.data.splits import stratified_split
from homespun.errors import UserError
from homespun.fitting.columns import (
    SAMPLE,
    as_columns,
    check_columns,
    column_names,
    find_label_columns,
    find_text_columns,
    is_pair,
)
from homespun.fitting.label_values import check_values, find_separator, find_task, one_hot_task
from homespun.fitting.verdict import capped
from homespun.metrics.classification import check_memory
from homespun.report import formats
from homespun.report.console import SILENT, Display, counter
from homespun.tasks.text_outputs import numbers_of_examples, targets_of
from homespun.tasks.texts import LabelledData, LabelledText, PairsData, TextsData, labels_of, readable_texts
from homespun.text.clean import split_words
from homespun.text.duplicates import find_near_duplicates
from homespun.text.input_files import class_names
from homespun.text.sources import ReadProgress, read_records

_R = TypeVar("_R")

_TEST_SHARE, _VALIDATION_SHARE = 0.2, 0.15
_MAX_TEST, _MAX_VALIDATION = 10_000, 2_000
_MAX_SHARE = 0.3  # held out of many classes, so that each one has an example there
_MEASURED = 10_000  # training texts whose words are counted, at least
_RARE = 20  # examples of a class, below which it is named
_REPORTED = 10_000  # records read between reports of progress
_NAMED = 10  # classes that a warning names


@dataclass(frozen=True)
class Inspection:
    """Examples in three splits, which have no text in common, with columns, task, decisions and warnings."""

    data: TextsData
    labels: Labels | None  # None: numbers
    train: Sequence[LabelledText]
    validation: Sequence[LabelledText]
    test: Sequence[LabelledText]
    test_from: Literal["files", "split", "none"]  # split: held out of the training files; none: there is no test
    decisions: list[str] = field(default_factory=list)  # choices with their reasons, a line each
    warnings: list[str] = field(default_factory=list)  # what may spoil the result, a line each
    unlabelled: Sequence[str] = ()  # texts of training rows without a label

    @property
    def task(self) -> TextTaskName:
        """Kind of the task."""
        if self.labels is None:
            return "regression"
        return "multi-label" if self.labels.multi_label else "classification"

    @property
    def measured(self) -> Sequence[LabelledText]:
        """Test examples, or validation examples if there is no test split."""
        return self.test or self.validation

    @property
    def measured_rows(self) -> NDArray[np.int64]:
        """(examples,) row numbers of `measured` in their files, from 0."""
        return np.array([example.row for example in self.measured], dtype=np.int64) - 1

    def data_for(self, length: int) -> TextsData:
        """Return the data config of a network with inputs of ``length`` tokens: both ends of a longer text."""
        changes: dict[str, object] = {"max_length": length}
        if self.data.kind == "texts":
            changes["truncation"] = HeadTail(head=0.5)  # better than the beginning alone (results/finetuning.md)
        return self.data.model_copy(update=changes)


class _Counter:
    """Counts records and shows how much of ``inputs`` has been read; small files are read before anything is shown."""

    def __init__(self, display: Display, inputs: Sequence[str]) -> None:
        self.bytes = ReadProgress(inputs)
        self._report, self._records = counter(display, "reading", self.bytes), 0

    def __call__(self, records: Iterable[_R]) -> Iterator[_R]:
        """Yield the records."""
        for record in records:
            self._records += 1
            if self._records % _REPORTED == 0:
                self._report(0, self._records)
            yield record


def inspect(
    train: Sequence[str],
    test: Sequence[str] = (),
    *,
    text: Sequence[str] = (),
    label: str | Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    encoding: str | None = None,
    task: TextTaskName = "auto",
    seed: int = 0,
    display: Display = SILENT,
) -> Inspection:
    """Read labelled files, find their columns and the task where not given, and divide the examples.

    The arguments are those of `homespun.fitting.fit.fit`; ``display`` shows the progress of reading.

    Raises:
        UserError: files that cannot be read, columns that are missing or ambiguous, one class or number, too few
            examples.
    """
    decisions: list[str] = []
    counted = _Counter(display, [*train, *train, *test])
    sample = list(islice(read_records(train, encoding=encoding, columns=columns), SAMPLE))
    source = ", ".join(train)
    if not sample:
        raise UserError(f"{source} holds no rows; give a file with a text and a label in each row")
    given_label = as_columns(label)
    check_columns(sample, [*given_label, *text], source)
    folders = [class_names(entry) for entry in train]
    if not given_label and all(folders):
        classes = capped(sorted({name for found in folders for name in found}))
        decisions.append(f"labels: folders {classes} of {source}; for texts without labels give --task language-model")
        given_label, text = ["label"], text or ["text"]
    labels_in = find_label_columns(sample, given_label, text, source, decisions)
    texts = find_text_columns(sample, labels_in, text, source, decisions)
    separator = None
    records = counted(read_records(train, encoding=encoding, columns=columns, read_progress=counted.bytes))
    if len(labels_in) > 1:
        kind = one_hot_task(labels_in, task, records, decisions)
    else:
        values = [record.get(labels_in[0]) for record in records]
        check_values(values, labels_in[0], texts, sample, source)
        several = task == "multi-label"
        separator = find_separator(values, several=several) if several or task == "auto" else None
        kind = find_task(values, labels_in[0], task, separator, decisions)
    data = _data_config(texts, labels_in, kind, separator, train, columns, encoding)
    if is_pair(texts):
        joined = data.kind == "texts"
        decisions.append("texts: joined, multi-label reads one text" if joined else "texts: read as pairs")
    names = set(column_names(sample))
    examples, unlabelled = _read_examples(data, train, kind, names, decisions, counted)
    examples = _without_empty(examples, source, decisions)
    labels = None if kind == "regression" else _collect_labels(examples, kind, len(unlabelled))
    examples = _with_names(examples, labels)
    if labels is None:
        numbers_of_examples(examples)
    else:
        check_memory(labels, len(examples))
    given = None
    if test:
        given, _ = _read_examples(data, test, kind, names, decisions, counted)
        given = _with_names(given, labels)
        try:
            targets_of(given, labels)
        except UserError as error:
            raise UserError(
                f"{error}; add training examples of it, or leave its rows out of {', '.join(test)}"
            ) from error
    learned, validation, held_out = _split(examples, labels, given, seed, decisions)
    test_from: Literal["files", "split"] = "files" if test else "split"
    found = Inspection(data, labels, learned, validation, held_out, test_from, decisions, unlabelled=unlabelled)
    found.warnings.extend(_warnings(found))
    return found


def split_examples(
    data: TextsData, examples: Sequence[LabelledText], labels: Labels | None, *, seed: int = 0
) -> Inspection:
    """Divide examples in memory into training and validation examples, without a test split.

    Raises:
        UserError: too few examples, or training examples with equal numbers.
    """
    decisions: list[str] = []
    learned, validation, _ = _split(examples, labels, [], seed, decisions)
    return Inspection(data, labels, learned, validation, [], "none", decisions)


def _data_config(
    texts: Sequence[str],
    label: Sequence[str],
    kind: TextTaskName,
    separator: str | None,
    train: Sequence[str],
    columns: Sequence[str] | None,
    encoding: str | None,
) -> TextsData:
    named = label[0] if len(label) == 1 else list(label)
    read = {"train": list(train), "label": named, "columns": columns and list(columns), "encoding": encoding}
    if is_pair(texts) and kind != "multi-label":
        if len(label) > 1:
            raise UserError(
                f"pairs of texts take one label column, not {formats.listed(label)}; write the class into one column, "
                f"and name it with --label-field"
            )
        return PairsData.model_validate(read | {"first": texts[0], "second": texts[1]})
    text = texts[0] if len(texts) == 1 else list(texts)
    multi_label = kind == "multi-label"
    return LabelledData.model_validate(read | {"text": text, "multi_label": multi_label, "separator": separator})


def _read_examples(
    data: TextsData, files: Sequence[str], kind: TextTaskName, names: set[str], decisions: list[str], counted: _Counter
) -> tuple[list[LabelledText], list[str]]:
    """Read the labelled examples, and the texts of the rows without a label.

    With several labels a text, an empty cell means no label. A row may lack the label column if it has no column
    besides ``names``: another column may be the label under another name.

    Raises:
        UserError: no row has a label.
    """
    examples: list[LabelledText] = []
    unlabelled = []
    rows = read_rows(files, columns=data.columns, encoding=data.encoding, read_progress=counted.bytes)
    for row, (record, where) in enumerate(counted(rows), start=1):
        if kind != "multi-label" and data.lacks_label(record, names):
            unlabelled.append(" ".join(text for text in data.texts_of(record, where=where) if text))
        else:
            examples += (dataclasses.replace(example, row=row) for example in data.parse(record, where=where))
    if not examples:
        hint = "" if files == data.train else ", or leave --test out to hold out training rows"
        raise UserError(f"no row of {', '.join(files)} has a label in column {data.label!r}; give labelled rows{hint}")
    if unlabelled:
        total = len(examples) + len(unlabelled)
        decisions.append(f"{len(unlabelled):,} of {total:,} rows of {', '.join(files)} have no label: left out")
    return examples, [text for text in unlabelled if text]


def _collect_labels(examples: Sequence[LabelledText], kind: TextTaskName, unlabelled: int) -> Labels:
    try:
        return Labels.collect(labels_of(examples), multi_label=kind == "multi-label")
    except UserError as error:
        hint = f"; {unlabelled:,} rows have an empty label: if that is a class, give it a name" if unlabelled else ""
        raise UserError(f"{error}{hint}") from error


def _with_names(examples: list[LabelledText], labels: Labels | None) -> list[LabelledText]:
    """Return examples whose labels are written as the names of their classes: ``1`` for ``1.0``."""
    if labels is None or labels.multi_label:
        return examples
    names = {label: labels.name_of(label) for label in {str(example.label) for example in examples}}
    return [
        example if (name := names[str(example.label)]) == example.label else dataclasses.replace(example, label=name)
        for example in examples
    ]


def _without_empty(examples: Sequence[LabelledText], source: str, decisions: list[str]) -> list[LabelledText]:
    kept = [example for example in examples if example.text.strip()]
    if not kept:
        raise UserError(f"all texts of {source} are empty; name another column with --text-field")
    if len(kept) < len(examples):
        decisions.append(f"{len(examples) - len(kept):,} of {len(examples):,} examples have an empty text: left out")
    return kept


def _split(
    examples: Sequence[LabelledText],
    labels: Labels | None,
    test: Sequence[LabelledText] | None,
    seed: int,
    decisions: list[str],
) -> tuple[list[LabelledText], list[LabelledText], list[LabelledText]]:
    """Divide examples; repeated texts stay together.

    Raises:
        UserError: too few examples, or training examples with equal numbers.
    """
    pool = _Pool(np.array(_keys(examples)), _strata(examples, labels), labels)
    rows, held_out = np.arange(len(examples)), list(test or ())
    if test is None:
        rows, chosen = pool.hold_out(rows, min(_TEST_SHARE, _MAX_TEST / len(rows)), seed, "test")
        held_out = [examples[row] for row in chosen.tolist()]
        decisions.append(f"test: {len(held_out):,} examples held out, none was given with --test")
    rows, chosen = pool.hold_out(rows, min(_VALIDATION_SHARE, _MAX_VALIDATION / len(rows)), seed, "validation")
    learned, validation = [examples[row] for row in rows.tolist()], [examples[row] for row in chosen.tolist()]
    if labels is None and np.ptp(numbers := numbers_of_examples(learned)) == 0:
        raise UserError(f"all training labels are {numbers[0]:g}; regression needs two or more different numbers")
    decisions.append(f"train {len(learned):,}, validation {len(validation):,}, test {len(held_out):,} examples")
    measured = learned[:: max(1, len(learned) // _MEASURED)]
    words = [len(split_words(text)) for text in readable_texts(measured)]
    median, most = (f"{value:,.0f}" for value in np.percentile(words, (50, 95)))
    decisions.append(f"texts: {median} words in the median, {most} or fewer in 95 % of them")
    return learned, validation, held_out


@dataclass(frozen=True)
class _Pool:
    """Examples to divide: (examples,) keys of `_keys`, and targets whose proportions the parts keep."""

    keys: NDArray[np.int64]
    strata: NDArray[np.int64]
    labels: Labels | None

    def hold_out(
        self, rows: NDArray[np.int64], share: float, seed: int, part: str
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Divide ascending ``rows`` into the kept ones and ``share`` for ``part``; each class keeps an example.

        ``share`` is raised to at most `_MAX_SHARE` for many classes.
        """
        _, firsts, groups = np.unique(self.keys[rows], return_index=True, return_inverse=True)
        order = np.argsort(firsts)  # keys differ from process to process
        strata = self.strata[rows[firsts[order]]]
        try:
            _, chosen = stratified_split(strata, max(share, _share_of_classes(strata)), seed)
            held_out = np.isin(groups, order[chosen])
            # labels of multi-label examples, or of a repeated text, are not stratified
            held_out &= ~np.isin(groups, groups[self._of_missing_classes(rows, rows[~held_out])])
            if not held_out.any():
                raise UserError("each example is the only one of a class")
        except UserError as error:
            classes = "" if self.labels is None else f" of {len(self.labels)} classes"
            texts = f" with {len(firsts):,} different texts" if len(firsts) < len(rows) else ""
            raise UserError(
                f"{len(rows):,} examples{classes}{texts} are too few to hold out {share:.0%} for {part}; give more "
                f"examples" + (", or test examples with --test" if part == "test" else "")
            ) from error
        return rows[~held_out], rows[held_out]

    def _of_missing_classes(self, rows: NDArray[np.int64], kept: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a (rows,) mask of the examples with a class that no example of ``kept`` has."""
        if self.strata.ndim == 1:
            return ~np.isin(self.strata[rows], self.strata[kept])
        missing = np.flatnonzero(~self.strata[kept].any(axis=0))
        return np.asarray(self.strata[np.ix_(rows, missing)].any(axis=1))


def _share_of_classes(strata: NDArray[np.int64]) -> float:
    """Return the share, at most `_MAX_SHARE`, with an example of each class of two or more; 0 without classes."""
    if strata.ndim == 2:
        return 0.0
    counts = np.bincount(strata)
    repeated = counts[counts > 1]
    return min(_MAX_SHARE, len(repeated) / max(1, int(repeated.sum())))


def _keys(examples: Sequence[LabelledText]) -> list[int]:
    """Return a hash of each text without case and repeated spaces; equal keys are repeated texts."""
    return [hash(" ".join(text.lower().split())) for text in readable_texts(examples)]


def _strata(examples: Sequence[LabelledText], labels: Labels | None) -> NDArray[np.int64]:
    targets = targets_of(examples, labels)
    return np.zeros((len(examples), 0), dtype=np.int64) if labels is None else targets.astype(np.int64)


def _warnings(found: Inspection) -> list[str]:
    warnings = []
    labels: dict[int, set[object]] = defaultdict(set)
    for example, key in zip(found.train, _keys(found.train), strict=True):
        labels[key].add(example.label)
    if repeated := len(found.train) - len(labels):
        warnings.append(f"repeated training texts: {repeated:,} of {len(found.train):,}")
    if conflicts := sum(len(different) > 1 for different in labels.values()):
        warnings.append(f"training texts that occur with different labels: {conflicts:,}")
    if found.labels is not None and not found.labels.multi_label:
        sizes = Counter(str(example.label) for example in found.train)
        spellings: dict[str, list[str]] = defaultdict(list)
        for name in found.labels.names:
            spellings[name.casefold()].append(name)
        if same := [repr(name) for names in spellings.values() if len(names) > 1 for name in names]:
            warnings.append(f"classes that differ only in case: {', '.join(same)}")
        if rare := [f"{name} ({sizes[name]})" for name in found.labels.names if sizes[name] < _RARE]:
            more = f" and {len(rare) - _NAMED:,} more" if len(rare) > _NAMED else ""
            warnings.append(f"classes with fewer than {_RARE} training examples: {', '.join(rare[:_NAMED])}{more}")
    if found.test_from == "files":
        learned = readable_texts([*found.train, *found.validation])
        near = find_near_duplicates(learned, readable_texts(found.test))
        if near.rows:
            warnings.append(
                f"{len(near.rows):,} of {len(found.test):,} test examples are near-duplicates of training examples "
                f"({near.same:,} word for word); metrics may be better than on new texts"
            )
    return warnings
