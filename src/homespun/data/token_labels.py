"""Tagged sentences: reading them, and rows for token classification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from homespun.data.labels import Labels, get_field, read_rows
from homespun.data.rows import Row
from homespun.errors import UserError
from homespun.text.formats import Record, conll_sentences
from homespun.text.tokenizer import TokenIds, Tokenizer

IGNORE_INDEX = -100
"""Label of tokens without one: later pieces of a word, special tokens, unknown tags."""

_CHUNK = 1024  # sentences encoded at a time


@dataclass(frozen=True, slots=True)
class TaggedWords:
    """Words of a sentence with a tag for each, or no tags for prediction."""

    words: tuple[str, ...]
    tags: tuple[str, ...] = ()


def read_tagged_words(
    inputs: Sequence[str],
    *,
    words: str = "words",
    tags: str = "tags",
    columns: Sequence[str] | None = None,
    encoding: str | None = None,
) -> list[TaggedWords]:
    """Sentences of all records of ``inputs`` (see `homespun.text.sources.read_records`).

    A record has a list in the columns ``words`` and ``tags``, or a string, which is split at white space. A text file
    is read as CoNLL.

    Raises:
        UserError: no such column, tags that do not fit the words, no sentence.
    """
    found = []
    for record, where in read_rows(inputs, encoding=encoding, columns=columns):
        if words not in record and list(record) == ["text"]:
            rows = conll_sentences(record["text"].splitlines(), where, columns)
            found += [_sentence(values, words, tags, f"{where}, line {line}") for line, values in rows]
        else:
            found.append(_sentence(record, words, tags, where))
    if not found:
        raise UserError(f"{', '.join(inputs)} holds no sentence; give lists of words and tags, or a CoNLL file")
    return found


def _sentence(record: Record, words: str, tags: str, where: str) -> TaggedWords:
    found = get_list(record, words, where=where)
    right = tuple(tag.strip() for tag in get_list(record, tags, where=where))
    if len(found) != len(right):
        raise UserError(
            f"{where}: {len(found)} words in {words!r} and {len(right)} tags in {tags!r}; each word has one tag"
        )
    return TaggedWords(found, right)


def get_list(record: Record, column: str, *, where: str) -> tuple[str, ...]:
    """Words or tags in a column.

    Raises:
        UserError: beginning with ``where``: no such column, or neither a list nor a text in it.
    """
    value = get_field(record, column, where=where)
    if isinstance(value, str):
        return tuple(value.split())
    if not isinstance(value, list | tuple) or not all(isinstance(one, str | int | float) for one in value):
        raise UserError(
            f"{where}: column {column!r} holds a {type(value).__name__}; it takes a list of words, or a text with "
            f"white space between them"
        )
    return tuple(str(one) for one in value)


def word_spans(words: Sequence[str]) -> list[tuple[int, int]]:
    """(start, end) in characters of each word in the words joined by a space."""
    ends = accumulate((len(word) for word in words), lambda end, size: end + 1 + size)
    return [(end - len(word), end) for word, end in zip(words, ends, strict=True)]


class TokenLabelRows:
    """A row a sentence, ``[CLS] pieces [SEP]``, or overlapping windows of one longer than ``length``.

    Special tokens are those of `Tokenizer.template`. Words are joined by a space and tokenized as text; the first piece
    of a word carries its tag (Devlin et al. 2019, section 5.3). In overlapping windows, a word is predicted in the one
    with the most context on both sides.

    Args:
        sentences: words and tags; without tags for prediction.
        length: maximum tokens of a row, special tokens included.
        stride: tokens that a window repeats of the one before.
        names: the tags; other tags are ignored.

    Raises:
        UserError: ``length`` leaves no room between the special tokens, or for the stride.
    """

    def __init__(
        self, sentences: Sequence[TaggedWords], tokenizer: Tokenizer, *, length: int, stride: int, names: Labels
    ) -> None:
        self._template = tokenizer.template
        self._first, special = len(self._template[0]), sum(map(len, self._template))
        room = length - special
        if room - stride < 1:
            raise UserError(
                f"data.max_length={length} leaves no room for data.stride={stride} and more; give a smaller stride"
            )
        self.sentences = sentences
        self._numbers = {name: number for number, name in enumerate(names.names)}
        self._rows: list[tuple[int, TokenIds, NDArray[np.int64], NDArray[np.int64]]] = []
        self.counts = {"empty_sentences": 0, "words_without_pieces": 0, "windowed": 0, "unseen_tags": 0}
        for start in range(0, len(sentences), _CHUNK):
            part = sentences[start : start + _CHUNK]
            encoded = tokenizer.encode_with_offsets([" ".join(sentence.words) for sentence in part])
            for place, (ids, offsets) in enumerate(encoded, start=start):
                self._add(place, ids, offsets, room, room - stride)
        self.lengths: NDArray[np.int64] = np.array([len(ids) + special for _, ids, _, _ in self._rows], dtype=np.int64)

    def _add(self, sentence: int, ids: TokenIds, offsets: NDArray[np.int64], room: int, step: int) -> None:
        words, tags = self.sentences[sentence].words, self.sentences[sentence].tags
        places, of_word = _first_pieces(words, offsets)
        self.counts["empty_sentences"] += not words
        self.counts["words_without_pieces"] += len(words) - len(of_word)
        self.counts["unseen_tags"] += sum(tag not in self._numbers for tag in tags)
        if not len(places):
            return
        starts = window_starts(len(ids), room, step)
        self.counts["windowed"] += len(starts) > 1
        owners = assign_windows(places, starts, len(ids), room)
        for number, start in enumerate(starts.tolist()):
            own = owners == number
            self._rows.append((sentence, ids[start : start + room], places[own] - start + self._first, of_word[own]))

    def owner(self, index: int) -> int:
        """Number of the sentence of a row."""
        return self._rows[index][0]

    def first_pieces(self, index: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(words,) positions in a row of the first pieces of its words, and the numbers of these words."""
        _, _, places, words = self._rows[index]
        return places, words

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Row:
        """``label`` is (tokens,), with `IGNORE_INDEX` for none; None for a sentence without tags."""
        sentence, ids, places, words = self._rows[index]
        before, after = self._template
        input_ids = np.concatenate([before, ids, after], dtype=np.int64, casting="unsafe")
        tags = self.sentences[sentence].tags
        if not tags:
            return Row(input_ids)
        label = np.full(len(input_ids), IGNORE_INDEX, dtype=np.int64)
        label[places] = [self._numbers.get(tags[word], IGNORE_INDEX) for word in words.tolist()]
        return Row(input_ids, label=label)


def _first_pieces(words: Sequence[str], offsets: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First piece of each word that has any, and the numbers of these words, ascending."""
    if not words or not len(offsets):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    begins = np.array([start for start, _ in word_spans(words)], dtype=np.int64)
    real = np.flatnonzero(offsets[:, 1] > offsets[:, 0])
    # of two words that begin at one place the first is empty, and the second has the pieces
    of_word = np.searchsorted(begins, offsets[real, 0], side="right") - 1
    found, first = np.unique(of_word, return_index=True)
    return real[first], found


def window_starts(tokens: int, room: int, step: int) -> NDArray[np.int64]:
    """Starts of windows of ``room`` tokens, every ``step``, until the last token is in one."""
    count = 1 + max(0, -(-(tokens - room) // step))
    return np.arange(count, dtype=np.int64) * step


def assign_windows(places: NDArray[np.int64], starts: NDArray[np.int64], tokens: int, room: int) -> NDArray[np.int64]:
    """(places,) the first window in which each token has the most context on its shorter side."""
    ends = np.minimum(starts + room, tokens)
    around = np.minimum(places[:, None] - starts, ends - 1 - places[:, None])  # (places, windows), negative outside
    owners: NDArray[np.int64] = around.argmax(axis=1)
    return owners
