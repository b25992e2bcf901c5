"""Length statistics of a corpus or of labelled files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from homespun.commands.preparation import reading
from homespun.data.corpus import Corpus
from homespun.data.lengths import length_statistics
from homespun.tasks.protocol import Task
from homespun.text.tokenizer import Tokenizer

_CHUNK = 1024  # texts encoded at a time


def corpus_lengths(path: str | Path) -> list[dict[str, Any]]:
    """Length statistics of a corpus, by class if it has labels; see `homespun.data.lengths.length_statistics`."""
    corpus = Corpus.open(path)
    labels = corpus.labels()
    classes = labels if any(label is not None for label in labels) else None
    return length_statistics(corpus.lengths, classes=classes)


def file_lengths(
    inputs: Sequence[str],
    tokenizer: str | Path,
    *,
    text_fields: Sequence[str] = ("text",),
    label_field: str | None = None,
    encoding: str | None = None,
    columns: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """Length statistics of files, each one split, such as train.csv and test.csv."""
    loaded = Tokenizer.load(tokenizer)
    lengths: list[int] = []
    classes: list[str | None] = []
    splits: dict[str, np.ndarray] = {}
    for entry in inputs:
        start = len(lengths)
        documents = reading(
            [entry],
            text_fields=text_fields,
            label_field=label_field,
            encoding=encoding,
            columns=columns,
            duplicates="keep",
        ).documents()
        batch: list[str] = []
        for document in documents:
            batch.append(document.text)
            classes.append(document.label)
            if len(batch) == _CHUNK:
                lengths += map(len, loaded.encode_batch(batch))
                batch = []
        lengths += map(len, loaded.encode_batch(batch))
        splits[entry] = np.arange(start, len(lengths))
    return length_statistics(np.array(lengths), splits=splits, classes=classes if label_field is not None else None)


def task_lengths(
    task: Task[Any, Any], tokenizer: Tokenizer, parts: Mapping[str, Sequence[Any]]
) -> list[dict[str, Any]]:
    """Length statistics of the texts of a task, by part, and by class if each example has one."""
    lengths: list[int] = []
    classes: list[str | None] = []
    splits: dict[str, np.ndarray] = {}
    for name, examples in parts.items():
        start, texts, classes_of = len(lengths), task.texts(examples), task.stratify_by(examples)
        for first in range(0, len(texts), _CHUNK):
            lengths += map(len, tokenizer.encode_batch(list(texts[first : first + _CHUNK])))
        splits[name] = np.arange(start, len(lengths))
        if task.labels is not None and not task.labels.multi_label and classes_of.ndim == 1:
            classes += [task.labels.names[number] for number in classes_of.tolist()]
    return length_statistics(np.array(lengths), splits=splits, classes=classes or None)
