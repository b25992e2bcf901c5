"""Tasks of a fit whose candidates are runs: their columns and examples."""

from __future__ import annotations

import io
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import get_args

import numpy as np

from homespun.choices import RunTaskName
from homespun.data.source_target import SourceTargetPair
from homespun.data.token_labels import TaggedWords
from homespun.errors import UserError
from homespun.fitting.columns import LABEL_NAMES, check_columns, column_names
from homespun.fitting.results import FitSettings
from homespun.io.json import write_lines
from homespun.report import formats
from homespun.tasks.seq2seq_data import TextPairsData
from homespun.tasks.taggers import TaggedData, collect_tags
from homespun.text.formats import Record, conll_cells
from homespun.text.sources import read_records

WORD_NAMES, TAG_NAMES = ("words", "tokens"), ("tags", "ner_tags", "pos_tags", "chunk_tags", "labels")
SOURCE_TARGET_NAMES = (
    *(("source", "target"), ("document", "summary"), ("article", "highlights"), ("article", "summary")),
    *(("text", "summary"), ("dialogue", "summary"), ("input", "output"), ("input_text", "target_text")),
    *(("prompt", "completion"), ("prompt", "response")),
)
_SAMPLE = 200  # records, or lines of a text, that the columns are judged by
_TAG = re.compile(r"O|[BIELSU]-\S+")
_TEST_SHARE, _VALIDATION_SHARE = 0.2, 0.1
_MOST: Mapping[RunTaskName, int] = {"token-classification": 2_000, "text-to-text": 500}  # examples of either part

Example = TaggedWords | SourceTargetPair


@dataclass(frozen=True)
class RunTask:
    """A task and its columns."""

    name: RunTaskName
    texts: tuple[str, ...]  # columns of the text, the words or the source
    target: str  # column of the tags or of the target text; empty for a language model
    decision: str  # reason for the task, one line for the console

    @property
    def example_columns(self) -> dict[str, str]:
        """Settings of the columns in the files of `write_examples`."""
        if self.name == "token-classification":
            return {"data.words": "words", "data.tags": "tags"}
        return {"data.source": "source", "data.target": "target"}

    def read(self, files: Sequence[str], settings: FitSettings, decisions: list[str]) -> list[Example]:
        """Read examples; pairs with an empty text are left out, and ``decisions`` gets their number.

        Raises:
            UserError: a missing column, or no examples.
        """
        columns, encoding = settings.columns, settings.encoding
        if self.name == "token-classification":
            tagged = TaggedData(words=self.texts[0], tags=self.target, columns=columns, encoding=encoding)
            return list(tagged.read_files(files))
        data = TextPairsData(source=list(self.texts), target=self.target, columns=columns, encoding=encoding)
        rows = data.read_files(files)
        pairs = [pair for pair in rows if not pair.is_empty]
        if not pairs:
            raise UserError(f"{', '.join(files)} has no row with both a source and a target")
        if empty := len(rows) - len(pairs):
            decisions.append(
                f"{empty:,} of {len(rows):,} rows of {', '.join(files)} lack a source or a target: left out"
            )
        return list(pairs)


def find_run_task(settings: FitSettings) -> RunTask | None:
    """Return the task that the files or the settings name, or ``None`` for classification and regression.

    Raises:
        UserError: files that cannot be read, or no columns for the task that the settings name.
    """
    if settings.task not in ("auto", *get_args(RunTaskName)):
        return None
    if len(settings.label) > 1:
        if settings.task == "auto":
            return None
        raise UserError(f"--task {settings.task} takes one --label-field, not {len(settings.label)}; name one")
    records = read_records(settings.train, encoding=settings.encoding, columns=settings.columns)
    sample = list(islice(records, _SAMPLE))
    if not sample:
        return None
    names = {name.lower(): name for name in column_names(sample)}
    if settings.task != "auto" and (given := [*settings.label, *settings.text]) and list(names) != ["text"]:
        check_columns(sample, given, ", ".join(settings.train))
    finders: dict[str, Callable[[Mapping[str, str], FitSettings], RunTask | None]] = {
        "token-classification": partial(_find_tags, sample[0]),
        "text-to-text": _find_pair,
        "language-model": partial(_find_texts, sample[0]),
    }
    tried = finders.values() if settings.task == "auto" else [finders[settings.task]]
    found = next(filter(None, (find(names, settings) for find in tried)), None)
    if found is None and settings.task != "auto":
        raise UserError(
            f"{', '.join(settings.train)} has the columns {', '.join(names.values())}; for --task {settings.task} name "
            + ("--text-field" if settings.task == "language-model" else "--text-field and --label-field")
        )
    return found


def _find_tags(record: Record, names: Mapping[str, str], settings: FitSettings) -> RunTask | None:
    """Task of a ``record`` with a list of words and a list of as many tags; ``names`` are columns by lower case."""
    words = settings.text[0] if settings.text else next((names[name] for name in WORD_NAMES if name in names), "")
    tags = "".join(settings.label) or next((names[name] for name in TAG_NAMES if name in names), "")
    text = record.get("text")
    if len(names) == 1 and isinstance(text, str) and _is_conll(text):
        return RunTask("token-classification", ("words",), "tags", "each line holds a word and its tag")
    first, second = record.get(words), record.get(tags)
    if not (isinstance(first, list) and isinstance(second, list) and len(first) == len(second)):
        return None
    return RunTask("token-classification", (words,), tags, f"a row holds a list of {words!r} and of {tags!r}")


def _is_conll(text: str) -> bool:
    """True for a text whose lines have a word, as many other columns, and an IOB tag."""
    sample = islice(io.StringIO(text, newline=None), _SAMPLE)
    lines = [conll_cells(line) for line in sample if line.strip() and not line.startswith("-DOCSTART-")]
    return (
        len(lines) > 1
        and len({len(line) for line in lines}) == 1
        and len(lines[0]) > 1
        and all(_TAG.fullmatch(line[-1]) for line in lines)
    )


def _find_pair(names: Mapping[str, str], settings: FitSettings) -> RunTask | None:
    """Task of source and target: of given columns, or of known names without a column that looks like a label."""
    text, label, given = tuple(settings.text), "".join(settings.label), settings.task == "text-to-text"
    if given and text and label:
        return RunTask("text-to-text", text, label, f"from {formats.listed(text)!r} to {label!r}")
    pair = next((pair for pair in SOURCE_TARGET_NAMES if all(name in names for name in pair)), None)
    if pair is None:
        return None
    labelled = text or label or any(name in names and name not in pair for tier in LABEL_NAMES for name in tier)
    if labelled and not given:
        return None
    source, target = (names[name] for name in pair)
    return RunTask("text-to-text", (source,), target, f"columns {source!r} and {target!r}")


def _find_texts(record: Record, names: Mapping[str, str], settings: FitSettings) -> RunTask | None:
    """Task of unlabelled texts: of given columns, the only column, or the column ``text``."""
    if settings.label or (settings.task == "auto" and len(names) > 1):
        return None
    if settings.task == "auto" and isinstance(text := record.get("text"), str):
        _check_unlabelled(text, ", ".join(settings.train))
    only = tuple(names.values()) if len(names) == 1 else ()
    columns = tuple(settings.text) or only or tuple(name for key, name in names.items() if key == "text")
    return RunTask("language-model", columns, "", "texts without labels") if columns else None


def _check_unlabelled(text: str, source: str) -> None:
    """Raise `UserError` for a plain text whose lines are labelled texts."""
    lines = [line for line in islice(io.StringIO(text, newline=None), _SAMPLE) if line.strip()]
    ending = "for texts without labels give --task language-model"
    if lines and all(line.startswith("__label__") for line in lines):
        raise UserError(f"{source} has the format of fastText; write a csv with the columns text and label; {ending}")
    tabs = {line.count("\t") for line in lines}
    if len(lines) > 1 and len(tabs) == 1 and (columns := tabs.pop() + 1) > 1:
        names = ["label", "text", *(f"column{number}" for number in range(3, columns + 1))]
        raise UserError(
            f"each line of {source} has {columns} columns separated by a tab; rename it to .tsv, and without a header "
            f"name its columns, as --columns {','.join(names)}; {ending}"
        )


def texts_of_example(example: Example) -> tuple[str, ...]:
    """Texts of an example: the words, or source and first target."""
    if isinstance(example, TaggedWords):
        return (" ".join(example.words),)
    return example.source, example.targets[0]


def divide(task: RunTask, settings: FitSettings, decisions: list[str]) -> dict[str, list[Example]]:
    """Read examples and divide them at random; equal texts stay in one part. ``decisions`` gets a line on omitted rows.

    Raises:
        UserError: too few examples, or too many different tags.
    """
    examples, most = task.read(settings.train, settings, decisions), _MOST[task.name]
    given, random = len(examples), np.random.default_rng(settings.seed)
    parts: dict[str, list[Example]] = {}
    if settings.test:
        parts["test"] = task.read(settings.test, settings, decisions)
    else:
        examples, parts["test"] = _hold_out(examples, min(most, round(_TEST_SHARE * len(examples))), random)
    count = min(most, round(_VALIDATION_SHARE * len(examples)))
    parts["train"], parts["validation"] = _hold_out(examples, count, random)
    if not all(parts.values()):
        raise UserError(f"{given} examples are too few to hold some out; give more, or test examples with --test")
    if tagged := [example for example in parts["train"] if isinstance(example, TaggedWords)]:
        collect_tags(tagged)
    return parts


def _hold_out(
    examples: Sequence[Example], count: int, random: np.random.Generator
) -> tuple[list[Example], list[Example]]:
    groups: dict[str, list[int]] = defaultdict(list)
    for index, example in enumerate(examples):
        groups[texts_of_example(example)[0]].append(index)
    members = list(groups.values())
    held: set[int] = set()
    for group in random.permutation(len(members)).tolist():
        if len(held) >= count:
            break
        held.update(members[group])
    rest = [example for index, example in enumerate(examples) if index not in held]
    return rest, [examples[index] for index in sorted(held)]


def write_examples(parts: Mapping[str, Sequence[Example]], folder: Path) -> dict[str, Path]:
    """Write a file of each part, with `RunTask.example_columns`."""
    files = {}
    for name, examples in parts.items():
        files[name] = folder / f"{name}.jsonl"
        write_lines(files[name], map(_record, examples))
    return files


def _record(example: Example) -> dict[str, object]:
    if isinstance(example, TaggedWords):
        return {"words": example.words, "tags": example.tags}
    return {"source": example.source, "target": example.targets}
