"""Documents of labelled sentences, and rows of sentences with context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from homespun.data.labels import get_field, label_name
from homespun.data.rows import Row
from homespun.errors import UserError, quantity
from homespun.text.formats import Record
from homespun.text.tokenizer import Tokenizer

CONTEXT = -1  # label of sentences that are context only
Vector = Literal["separator", "first", "mean"]


@dataclass(frozen=True, slots=True)
class LabelledDocument:
    """Sentences of a document with labels, or without labels for prediction."""

    sentences: tuple[str, ...]
    labels: tuple[str, ...] = ()


def parse_document(record: Record, column: str, *, where: str, labels: str | None = None) -> LabelledDocument:
    """Parse the sentences of a record, with their labels if any.

    The column is a list of [label, sentence] pairs, as in the Goodreads reviews (Wan et al. 2019), or of sentences,
    whose labels are in the column ``labels``.

    Raises:
        UserError: a missing column, or a value of another form; the message begins with ``where``.
    """
    value = get_field(record, column, where=where)
    if not isinstance(value, Sequence) or isinstance(value, str):
        kind = type(value).__name__
        raise UserError(f"{where}: column {column!r} is a {kind}; write [[label, sentence], ...] or [sentence, ...]")
    plain = [sentence for sentence in value if isinstance(sentence, str)]
    pairs = [p for p in value if isinstance(p, Sequence) and not isinstance(p, str) and len(p) == 2]
    if len(plain) == len(value):
        return LabelledDocument(tuple(plain), () if labels is None else _labels(record, labels, len(plain), where))
    if len(pairs) < len(value) or not all(isinstance(sentence, str) for _, sentence in pairs):
        raise UserError(f"{where}: column {column!r} must have only sentences, or only pairs [label, sentence]")
    names = tuple(_name(label, where) for label, _ in pairs)
    return LabelledDocument(tuple(sentence for _, sentence in pairs), names)


def _labels(record: Record, column: str, count: int, where: str) -> tuple[str, ...]:
    labels = record.get(column)
    if not isinstance(labels, Sequence) or isinstance(labels, str) or len(labels) != count:
        number = quantity(len(labels), "label") if isinstance(labels, list | tuple) else "no list of labels"
        raise UserError(
            f"{where} has {quantity(count, 'sentence')} and {number} in column {column!r}; give one for each"
        )
    return tuple(_name(label, where) for label in labels)


def _name(label: object, where: str) -> str:
    name = label_name(label) if isinstance(label, str | int | float) else ""
    if not name:
        raise UserError(f"{where} has a sentence whose label is {label!r}; give it a name or a number")
    return name


class SentenceWindows:
    """Rows of complete sentences; each sentence is predicted in exactly one row.

    A row is ``[CLS] sentence [SEP] sentence [SEP] ...``; with ``vector=first`` each sentence has a [CLS] (BERTSUM, Liu
    and Lapata 2019). ``row.sentence_ends`` has the end of each sentence with its [SEP], and ``row.label`` (sentences,)
    its class, 0 if unknown, or `CONTEXT`. A longer document continues in the next row, after as many previous sentences
    as fit into the share ``context``. A sentence longer than a row is truncated. Documents without sentences have no
    row. ``targets`` are the (sentences of all documents,) classes, or None for prediction.
    """

    def __init__(
        self,
        documents: Sequence[LabelledDocument],
        targets: NDArray[np.int64] | None,
        tokenizer: Tokenizer,
        *,
        length: int,
        context: float,
        vector: Vector,
    ) -> None:
        self.documents = documents
        self.targets = targets
        special = 2 if vector == "first" else 1  # special tokens of a sentence
        first = 0 if vector == "first" else 1
        room = length - first - special
        if room < 1:
            raise UserError(f"data.max_length={length} leaves no room between the special tokens; set it to 16 or more")
        texts = [sentence for document in documents for sentence in document.sentences]
        self._ids, self.cut = tokenizer.encode_truncated(texts, room)  # cut: (sentences,)
        self.sizes = np.array([len(ids) + special for ids in self._ids], dtype=np.int64)
        self.starts = np.concatenate([[0], np.cumsum([len(d.sentences) for d in documents])]).astype(np.int64)
        self._first, self._cls, self._sep = first, tokenizer.cls_id, tokenizer.sep_id
        windows = [
            window
            for begin, end in zip(self.starts[:-1].tolist(), self.starts[1:].tolist(), strict=True)
            for window in _windows(self.sizes, begin, end, length - first, context)
        ]
        # (rows, 3): first sentence of a row, first predicted sentence, end (exclusive)
        self.windows = np.array(windows, dtype=np.int64).reshape(-1, 3)
        total = np.concatenate([[0], np.cumsum(self.sizes)])
        self.lengths: NDArray[np.int64] = first + total[self.windows[:, 2]] - total[self.windows[:, 0]]
        filled = [document for document in documents if document.sentences]
        self.counts: dict[str, int] = {
            "empty_documents": len(documents) - len(filled),
            "windows": len(windows),
            "windows_beyond_one": len(windows) - len(filled),
            "sentences_cut": int(self.cut.sum()),
        }

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> Row:
        begin, predicted, end = self.windows[index].tolist()
        before = [] if self._first else [self._cls]
        parts = [[self._cls]] if self._first else []
        parts += [[*before, *ids.tolist(), self._sep] for ids in self._ids[begin:end]]
        labels = np.full(end - begin, CONTEXT, dtype=np.int64)
        labels[predicted - begin :] = 0 if self.targets is None else self.targets[predicted:end]
        return Row(
            np.array([i for part in parts for i in part], dtype=np.int64),
            sentence_ends=self._first + np.cumsum(self.sizes[begin:end]),
            label=labels,
        )


def _windows(sizes: NDArray[np.int64], begin: int, end: int, room: int, context: float) -> list[tuple[int, int, int]]:
    """Return windows (first sentence, first predicted sentence, end) of the sentences from ``begin`` to ``end``."""
    windows = []
    predicted = begin
    while predicted < end:
        start, used = predicted, int(sizes[predicted])
        spare = min(int(context * room), room - used)  # room for context
        while start > begin and sizes[start - 1] <= spare:
            start -= 1
            spare -= int(sizes[start])
            used += int(sizes[start])
        after = predicted + 1
        while after < end and used + sizes[after] <= room:
            used += int(sizes[after])
            after += 1
        windows.append((start, predicted, after))
        predicted = after
    return windows
