"""Length statistics of a corpus or of labelled files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from homespun.data.corpus import Corpus
from homespun.data.lengths import length_statistics
from homespun.jobs.prepare import reading
from homespun.text.tokenizer import Tokenizer


def corpus_lengths(path: str | Path) -> list[dict[str, Any]]:
    """Rows of `homespun.data.lengths.length_statistics` for a corpus, by class where it has labels."""
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
    """The same for files, each a split of its own, such as train.csv and test.csv."""
    loaded = Tokenizer.load(tokenizer)
    lengths: list[int] = []
    classes: list[str | None] = []
    splits: dict[str, np.ndarray] = {}
    for entry in inputs:
        start = len(lengths)
        documents = reading(
            [entry], text_fields=text_fields, label_field=label_field, encoding=encoding, columns=columns
        ).documents()
        batch: list[str] = []
        for document in documents:
            batch.append(document.text)
            classes.append(document.label)
            if len(batch) == 1024:
                lengths += map(len, loaded.encode_batch(batch))
                batch = []
        lengths += map(len, loaded.encode_batch(batch))
        splits[entry] = np.arange(start, len(lengths))
    return length_statistics(np.array(lengths), splits=splits, classes=classes if label_field is not None else None)
