"""Inspection of labelled files: columns, task, splits, and defects of the data."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from homespun.data.labels import Labels, label_name
from homespun.data.splits import stratified_split
from homespun.errors import UserError
from homespun.metrics.classification import check_memory
from homespun.tasks.text_outputs import numbers_of_examples, targets_of
from homespun.tasks.texts import LabelledData, LabelledText, PairsData, TextsData, labels_of, readable_texts
from homespun.text.clean import find_near_duplicates
from homespun.text.formats import Record
from homespun.text.sources import read_records

TextTaskName = Literal["auto", "classification", "multi-label", "regression"]
RunTaskName = Literal["language-model", "token-classification", "text-to-text"]
TaskName = TextTaskName | RunTaskName
TASKS: tuple[TaskName, ...] = (*get_args(TextTaskName), *get_args(RunTaskName))
"""Tasks of a fit; `homespun.fitting.runs` has those whose candidates are runs."""

LABEL_NAMES = (
    ("label", "labels", "class", "target"),
    ("category", "categories", "sentiment", "topic", "tag", "tags", "rating", "score", "stars", "similarity", "y"),
)
"""Names of label columns; one of the first tier wins over those of the second."""
TEXT_NAMES = (
    *("text", "sentence", "content", "document", "abstract", "review", "body", "tweet", "message", "comment"),
    *("description", "question", "headline", "title"),
)
PAIR_NAMES = (
    ("sentence1", "sentence2"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("first", "second"),
)
_NUMBER_NAMES = ("score", "similarity", "rating", "stars")

_SAMPLE = 2_000  # records that columns are judged by
_SEPARATORS = (";", "|", ",")  # of several labels in a cell
_MAX_CLASSES = 50  # distinct whole numbers that are still taken for classes
_LONG = 40  # characters of a column name from which it is taken for a text
_TEST_SHARE, _VALIDATION_SHARE = 0.2, 0.15
_MAX_TEST, _MAX_VALIDATION = 10_000, 2_000
_RARE = 20  # examples of a class, below which it is named


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

    def data_for(self, length: int) -> TextsData:
        """Return the data config of a network with inputs of ``length`` tokens."""
        return self.data.model_copy(update={"max_length": length})


def inspect(
    train: Sequence[str],
    test: Sequence[str] = (),
    *,
    text: Sequence[str] = (),
    label: str | None = None,
    columns: Sequence[str] | None = None,
    encoding: str | None = None,
    task: TextTaskName = "auto",
    seed: int = 0,
) -> Inspection:
    """Read labelled files, find their columns and the task where not given, and divide the examples.

    The arguments are those of `homespun.fitting.fit.fit`.

    Raises:
        UserError: files that cannot be read, columns that are missing or ambiguous, one class, too few examples.
    """
    decisions: list[str] = []
    sample = list(islice(read_records(train, encoding=encoding, columns=columns), _SAMPLE))
    source = ", ".join(train)
    if not sample:
        raise UserError(f"{source} holds no rows; give a file with a text and a label in each row")
    _check_columns(sample, [*([] if label is None else [label]), *text], source)
    label = _label_column(sample, label, text, source, decisions)
    texts = _text_columns(sample, label, text, source, decisions)
    values = [record.get(label) for record in read_records(train, encoding=encoding, columns=columns)]
    separator = _label_separator(values) if task in ("auto", "multi-label") else None
    kind = _task_of(values, label, task, separator, decisions)
    data = _data_config(texts, label, kind, separator, train, columns, encoding)
    examples = _without_empty(data.read_files(train), source, decisions)
    labels = None if kind == "regression" else Labels.collect(labels_of(examples), multi_label=kind == "multi-label")
    if labels is None:
        numbers_of_examples(examples)
    else:
        check_memory(labels, len(examples))
    given = None
    if test:
        given = data.read_files(test)
        try:
            targets_of(given, labels)
        except UserError as error:
            raise UserError(
                f"{error}; add training examples of it, or leave its rows out of {', '.join(test)}"
            ) from error
    learned, validation, held_out = _split(examples, labels, given, seed, decisions)
    found = Inspection(data, labels, learned, validation, held_out, "files" if test else "split", decisions)
    found.warnings.extend(_warnings(found))
    return found


def split_examples(
    data: TextsData, examples: Sequence[LabelledText], labels: Labels | None, *, seed: int = 0
) -> Inspection:
    """Divide examples in memory into training and validation examples, without a test split.

    Raises:
        UserError: too few examples.
    """
    decisions: list[str] = []
    learned, validation, _ = _split(examples, labels, [], seed, decisions)
    return Inspection(data, labels, learned, validation, [], "none", decisions)


def _check_columns(sample: Sequence[Record], given: Sequence[str], source: str) -> None:
    """Raise `UserError` for a first row of data instead of names, or if there is no column of a ``given`` name."""
    names = [str(name) for name in sample[0]]
    data_like = [name for name in names if len(name) > _LONG or re.fullmatch(r"-?\d+(\.\d+)?", name.strip())]
    if len(names) > 1 and data_like:
        raise UserError(
            f"the first row of {source} looks like data, not like names of columns ({data_like[0][:_LONG]!r}); "
            f"name its {len(names)} columns, such as --columns label,text"
        )
    for name in given:
        if name not in names:
            raise UserError(f"{source} has no column {name!r}; there are: {', '.join(names)}")


def _label_column(
    sample: Sequence[Record], given: str | None, text: Sequence[str], source: str, decisions: list[str]
) -> str:
    if given is not None:
        return given
    names = [str(name) for name in sample[0]]
    others = [name for name in names if name not in text]
    tiers = ([name for name in others if name.lower() in tier] for tier in LABEL_NAMES)
    named = next(filter(None, tiers), [])
    found = named or [name for name in others if _repeats([record.get(name) for record in sample])]
    if len(found) == 1:
        decisions.append(f"label column: {found[0]!r} ({'by its name' if named else 'few distinct values'})")
        return found[0]
    if not found:
        raise UserError(
            f"{source} has no column that looks like a label; name it with --label-field, out of {', '.join(names)}; "
            f"for texts without labels give --task language-model"
        )
    raise UserError(f"which column of {source} is the label? {', '.join(found)} could be; name it with --label-field")


def _repeats(values: Sequence[object]) -> bool:
    """True for values that look like classes: short, and repeated."""
    names = [label_name(value) for value in values if isinstance(value, str | int | float | bool)]
    if len(names) < len(values) or not all(names):
        return False
    distinct = len(set(names))
    return 2 <= distinct <= max(2, min(_MAX_CLASSES * 2, len(names) // 3)) and max(map(len, set(names))) <= _LONG


def _text_columns(
    sample: Sequence[Record], label: str, given: Sequence[str], source: str, decisions: list[str]
) -> list[str]:
    if given:
        return list(given)
    names = [str(name) for name in sample[0]]
    lower = {name.lower(): name for name in names if name != label}
    for pair in PAIR_NAMES:
        if all(name in lower for name in pair):
            decisions.append(f"texts: pairs of {lower[pair[0]]!r} and {lower[pair[1]]!r} (by their names)")
            return [lower[name] for name in pair]
    texts = [
        name
        for name in names
        if name != label and _is_text([record.get(name) for record in sample], distinct=name.lower() not in TEXT_NAMES)
    ]
    if not texts:
        raise UserError(f"{source} has no column of text; name it with --text-field, out of {', '.join(names)}")
    if len(texts) == 1:
        decisions.append(f"text column: {texts[0]!r} (the only text)")
        return texts
    named = [lower[name] for name in TEXT_NAMES if lower.get(name) in texts]
    if "title" in lower and lower["title"] in texts and len(named) == 2:
        decisions.append(f"text columns: {lower['title']!r} and {named[0]!r}, joined")
        return [lower["title"], *(name for name in named if name != lower["title"])]
    if len(named) == 1:
        decisions.append(f"text column: {named[0]!r} (by its name)")
        return named
    raise UserError(
        f"which column of {source} is the text? {', '.join(texts)} could be; name one or several with --text-field"
    )


def _is_text(values: Sequence[object], *, distinct: bool) -> bool:
    """True for values that look like texts: strings of several words and, if asked for, mostly ``distinct``."""
    texts = [value for value in values if isinstance(value, str) and value.strip()]
    if len(texts) < len(values) / 2:
        return False
    words = sum(len(text.split()) for text in texts) / len(texts)
    return words >= 2 and (not distinct or len(set(texts)) > len(texts) / 2)


def _label_separator(values: Sequence[object]) -> str | None:
    """Return the separator of several labels in a cell, by which the distinct cells have fewer distinct parts."""
    names = {label_name(value) for value in values if not isinstance(value, list | tuple)}
    for separator in _SEPARATORS:
        parts = {part.strip() for name in names for part in name.split(separator)}
        if len(parts - {""}) < len(names - {""}):
            return separator
    return None


def _task_of(
    values: Sequence[object], label: str, given: TextTaskName, separator: str | None, decisions: list[str]
) -> TextTaskName:
    if given != "auto":
        return given
    if separator is not None:
        decisions.append(
            f"task: multi-label classification ({label!r} holds labels separated by {separator!r}; for one label per "
            f"text give --task classification)"
        )
        return "multi-label"
    if any(isinstance(value, list | tuple) for value in values):
        several = {label_name(one) for value in values if isinstance(value, list | tuple) for one in value}
        _check_repeats(label, len(several), len(values))
        decisions.append("task: multi-label classification (a row holds a list of labels)")
        return "multi-label"
    names = [name for value in values if (name := label_name(value))]
    try:
        numbers = np.array([float(name) for name in names])
    except ValueError:
        numbers = np.array([])
    distinct = len(set(names))
    finite = numbers[np.isfinite(numbers)]  # nan may be the name of a class
    if (finite != np.round(finite)).any():
        decisions.append(f"task: regression ({label!r} holds numbers with fractions)")
        return "regression"
    if len(numbers) and (distinct > _MAX_CLASSES or (label.lower() in _NUMBER_NAMES and distinct > 10)):
        decisions.append(f"task: regression ({label!r} holds {distinct} distinct numbers)")
        return "regression"
    _check_repeats(label, distinct, len(names))
    decisions.append(f"task: classification ({distinct} distinct labels)")
    return "classification"


def _check_repeats(label: str, distinct: int, rows: int) -> None:
    """Raise `UserError` for labels of which most occur once."""
    if distinct > max(_MAX_CLASSES, rows / 2):
        raise UserError(
            f"{label!r} holds {distinct:,} distinct labels in {rows:,} rows, so it is no column of classes; name "
            f"another with --label-field, or give --task text-to-text"
        )


def _data_config(
    texts: Sequence[str],
    label: str,
    kind: TextTaskName,
    separator: str | None,
    train: Sequence[str],
    columns: Sequence[str] | None,
    encoding: str | None,
) -> TextsData:
    read = {"train": list(train), "label": label, "columns": columns and list(columns), "encoding": encoding}
    if tuple(name.lower() for name in texts) in PAIR_NAMES and kind != "multi-label":
        return PairsData.model_validate(read | {"first": texts[0], "second": texts[1]})
    text = texts[0] if len(texts) == 1 else list(texts)
    multi_label = kind == "multi-label"
    return LabelledData.model_validate(read | {"text": text, "multi_label": multi_label, "separator": separator})


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
    """Divide examples; repeated texts stay together."""
    rest, held_out = list(examples), list(test or ())
    if test is None:
        rest, held_out = _hold_out(rest, labels, min(_TEST_SHARE, _MAX_TEST / len(rest)), seed, "test")
        decisions.append(f"test: {len(held_out):,} examples held out, none was given with --test")
    learned, validation = _hold_out(
        rest, labels, min(_VALIDATION_SHARE, _MAX_VALIDATION / len(rest)), seed, "validation"
    )
    decisions.append(f"train {len(learned):,}, validation {len(validation):,}, test {len(held_out):,} examples")
    words = [len(text.split()) for text in readable_texts(learned)]
    median, most = (f"{value:,.0f}" for value in np.percentile(words, (50, 95)))
    decisions.append(f"texts: {median} words in the median, {most} or fewer in 95 % of them")
    return learned, validation, held_out


def _hold_out(
    examples: Sequence[LabelledText], labels: Labels | None, share: float, seed: int, part: str
) -> tuple[list[LabelledText], list[LabelledText]]:
    groups: dict[str, list[int]] = defaultdict(list)
    for index, key in enumerate(_keys(examples)):
        groups[key].append(index)
    firsts = np.array([rows[0] for rows in groups.values()])
    try:
        kept, held_out = stratified_split(_strata(examples, labels)[firsts], share, seed)
    except UserError as error:
        classes = "" if labels is None else f" of {len(labels)} classes"
        raise UserError(
            f"{len(examples)} examples{classes} are too few to hold out {share:.0%} for {part}; give more examples"
            + (", or test examples with --test" if part == "test" else "")
        ) from error
    members = list(groups.values())
    return tuple(  # type: ignore[return-value]
        [examples[index] for index in sorted(row for group in chosen for row in members[group])]
        for chosen in (kept, held_out)
    )


def _keys(examples: Sequence[LabelledText]) -> list[str]:
    """Return each text without case and repeated spaces; equal keys are repeated texts."""
    return [" ".join(text.lower().split()) for text in readable_texts(examples)]


def _strata(examples: Sequence[LabelledText], labels: Labels | None) -> NDArray[np.int64]:
    targets = targets_of(examples, labels)
    return np.zeros((len(examples), 0), dtype=np.int64) if labels is None else targets.astype(np.int64)


def _warnings(found: Inspection) -> list[str]:
    warnings = []
    labels: dict[str, set[object]] = defaultdict(set)
    for example, key in zip(found.train, _keys(found.train), strict=True):
        labels[key].add(example.label)
    if repeated := len(found.train) - len(labels):
        warnings.append(f"{repeated:,} of {len(found.train):,} training texts repeat another one")
    if conflicts := sum(len(different) > 1 for different in labels.values()):
        warnings.append(f"{conflicts:,} training texts occur with different labels")
    if found.labels is not None and not found.labels.multi_label:
        sizes = Counter(str(example.label) for example in found.train)
        if rare := [f"{name} ({sizes[name]})" for name in found.labels.names if sizes[name] < _RARE]:
            warnings.append(f"classes with fewer than {_RARE} training examples: {', '.join(rare)}")
    if found.test_from == "files":
        learned = readable_texts([*found.train, *found.validation])
        near = find_near_duplicates(learned, readable_texts(found.test))
        if near.rows:
            warnings.append(
                f"{len(near.rows):,} of {len(found.test):,} test examples are near-duplicates of training examples "
                f"({near.same:,} word for word); metrics may be better than on new texts"
            )
    return warnings
