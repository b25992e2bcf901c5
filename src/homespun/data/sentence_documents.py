"""Documents of labelled sentences, and the rows in which each sentence is read in the context of its document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from homespun.data.labels import get_field
from homespun.data.rows import Row
from homespun.errors import UserError
from homespun.text.sources import read_records
from homespun.text.tokenizer import Tokenizer

CONTEXT = -1  # the label of a sentence that is there for the others to be read after
Vector = Literal["separator", "first", "mean"]
_CHUNK = 4096  # sentences encoded at a time


@dataclass(frozen=True, slots=True)
class LabelledDocument:
    """A document's sentences, and a label for each; none where they are to be told."""

    sentences: tuple[str, ...]
    labels: tuple[str, ...] = ()


def read_sentence_documents(
    inputs: Sequence[str],
    *,
    sentences: str,
    labels: str | None = None,
    columns: Sequence[str] | None = None,
    encoding: str | None = None,
) -> list[LabelledDocument]:
    """A document a record of ``inputs`` (see `homespun.text.sources.read_records`).

    The column ``sentences`` holds a list of pairs, a label and a sentence each, as the Goodreads reviews have them
    (Wan et al. 2019); or of sentences, and then ``labels`` is the column of as many labels.

    Raises:
        UserError: no such column, no list, or something in it that is neither; no documents, or none with a sentence.
    """
    documents = []
    for number, record in enumerate(read_records(inputs, encoding=encoding, columns=columns), start=1):
        where = f"row {number} of {', '.join(inputs)}"
        document = parse_document(record, sentences, where=where, labels=labels)
        if len(document.labels) != len(document.sentences):
            raise UserError(
                f"{where} has sentences without labels in column {sentences!r}; write each as [label, sentence], or "
                f"name the column of the labels in data.labels"
            )
        documents.append(document)
    if not any(document.sentences for document in documents):
        raise UserError(f"{', '.join(inputs)} holds no sentences; give a file with labelled ones")
    return documents


def parse_document(
    record: Mapping[str, Any], column: str, *, where: str, labels: str | None = None
) -> LabelledDocument:
    """The sentences of a record, with their labels where it has them.

    Raises:
        UserError: beginning with ``where``: as in `read_sentence_documents`.
    """
    value = get_field(record, column, where=where)
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise UserError(
            f"{where}: column {column!r} holds a {type(value).__name__}, not a list of sentences; write "
            f"[[label, sentence], ...], or a list of sentences"
        )
    plain = [sentence for sentence in value if isinstance(sentence, str)]
    pairs = [p for p in value if isinstance(p, Sequence) and not isinstance(p, str) and len(p) == 2]
    if len(plain) == len(value):
        given = () if labels is None else _parallel(record, labels, len(plain), where=where)
        return LabelledDocument(tuple(plain), given)
    if len(pairs) < len(value) or not all(isinstance(sentence, str) for _, sentence in pairs):
        raise UserError(f"{where}: column {column!r} holds something else than sentences or pairs [label, sentence]")
    names = tuple(_name(label, where) for label, _ in pairs)
    return LabelledDocument(tuple(sentence for _, sentence in pairs), names)


def _parallel(record: Mapping[str, Any], column: str, count: int, *, where: str) -> tuple[str, ...]:
    found = record.get(column)
    if not isinstance(found, Sequence) or isinstance(found, str) or len(found) != count:
        what = f"{len(found)} labels" if isinstance(found, list | tuple) else "no list of labels"
        raise UserError(f"{where} has {count} sentences and {what} in column {column!r}; give one for each")
    return tuple(_name(label, where) for label in found)


def _name(label: Any, where: str) -> str:
    if isinstance(label, bool):
        return str(label).lower()
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    if not isinstance(label, str | int | float) or not str(label).strip():
        raise UserError(f"{where} has a sentence whose label is {label!r}; give it a name or a number")
    return str(label).strip()


class SentenceWindows:
    """Rows of whole sentences, every sentence of every document judged in exactly one of them.

    A row is ``[CLS] sentence [SEP] sentence [SEP] ...``; with ``vector=first``, every sentence has a [CLS] of its own
    before it (Liu & Lapata 2019, BERTSUM). ``row.sentence_ends`` is where each ends, its [SEP] included, and
    ``row.label`` (sentences,) its class, 0 where classes are not known, or `CONTEXT`. A document that is longer than a
    row goes on in the next, after as many of the sentences before as ``context`` of the length has room for. A sentence
    longer than the room is cut.

    Args:
        documents: the documents; those without a sentence have no row.
        targets: (sentences of all,) their classes; ``None``: to be told.
        tokenizer: the tokenizer.
        length: the most tokens of a row.
        context: the share of a row for what was judged in the row before.
        vector: what stands for a sentence.
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
        own = 2 if vector == "first" else 1  # special tokens of a sentence
        first = 0 if vector == "first" else 1
        room = length - first - own
        if room < 1:
            raise UserError(f"data.length={length} leaves no room between the special tokens; give 16 or more")
        texts = [sentence for document in documents for sentence in document.sentences]
        ids: list[NDArray[Any]] = []
        cut = np.zeros(len(texts), dtype=bool)
        for start in range(0, len(texts), _CHUNK):
            for encoded in tokenizer.encode_batch(texts[start : start + _CHUNK]):
                cut[len(ids)] = len(encoded) > room
                ids.append(encoded[:room].copy())
        self._ids = ids
        self.cut = cut  # (sentences,) whether tokens were left out
        self.sizes = np.array([len(i) + own for i in ids], dtype=np.int64)
        self.starts = np.concatenate([[0], np.cumsum([len(d.sentences) for d in documents])]).astype(np.int64)
        self._first, self._cls, self._sep = first, tokenizer.cls_id, tokenizer.sep_id
        windows = [
            window
            for begin, end in zip(self.starts[:-1].tolist(), self.starts[1:].tolist(), strict=True)
            for window in _windows(self.sizes, begin, end, length - first, context)
        ]
        # (rows, 3): the first sentence of a row, the first that is judged in it, and the one after its last
        self.windows = np.array(windows, dtype=np.int64).reshape(-1, 3)
        total = np.concatenate([[0], np.cumsum(self.sizes)])
        self.lengths: NDArray[np.int64] = first + total[self.windows[:, 2]] - total[self.windows[:, 0]]
        filled = [document for document in documents if document.sentences]
        self.counts: dict[str, int] = {
            "empty_documents": len(documents) - len(filled),
            "windows": len(windows),
            "windows_beyond_one": len(windows) - len(filled),
            "sentences_cut": int(cut.sum()),
        }

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> Row:
        begin, judged, end = self.windows[index].tolist()
        before = [] if self._first else [self._cls]
        parts = [[self._cls]] if self._first else []
        parts += [[*before, *ids.tolist(), self._sep] for ids in self._ids[begin:end]]
        labels = np.full(end - begin, CONTEXT, dtype=np.int64)
        labels[judged - begin :] = 0 if self.targets is None else self.targets[judged:end]
        return Row(
            np.array([i for part in parts for i in part], dtype=np.int64),
            sentence_ends=self._first + np.cumsum(self.sizes[begin:end]),
            label=labels,
        )


def _windows(sizes: NDArray[np.int64], begin: int, end: int, room: int, context: float) -> list[tuple[int, int, int]]:
    """The windows of the sentences from ``begin`` to ``end``."""
    windows = []
    judged = begin
    while judged < end:
        start, used = judged, int(sizes[judged])
        spare = min(int(context * room), room - used)  # a long sentence leaves the less for what was before it
        while start > begin and sizes[start - 1] <= spare:
            start -= 1
            spare -= int(sizes[start])
            used += int(sizes[start])
        after = judged + 1
        while after < end and used + sizes[after] <= room:
            used += int(sizes[after])
            after += 1
        windows.append((start, judged, after))
        judged = after
    return windows
