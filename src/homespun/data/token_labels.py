"""Tagged sentences: readers, and rows for token classification."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from homespun.data.labels import Labels, get_field
from homespun.data.rows import Row
from homespun.errors import UserError, quantity
from homespun.text.formats import Record, conll_sentences
from homespun.text.tokenizer import TokenIds, Tokenizer

IGNORE_INDEX = -100
"""Label of tokens without a tag: later pieces of a word, special tokens, unknown tags."""


@dataclass(frozen=True, slots=True)
class TaggedWords:
    """Words of a sentence with tags, or without tags for prediction."""

    words: tuple[str, ...]
    tags: tuple[str, ...] = ()


def parse_tagged_words(
    record: Record, *, words: str, tags: str, columns: Sequence[str] | None, where: str
) -> list[TaggedWords]:
    """Parse the sentence of a record, or all sentences of a text file, which is read as CoNLL.

    The columns ``words`` and ``tags`` are lists, or strings that are split at white space.

    Raises:
        UserError: a missing column, or different numbers of words and tags; the message begins with ``where``.
    """
    if words in record or list(record) != ["text"]:
        return [_sentence(record, words, tags, where)]
    # not `splitlines`: U+2028 ends no line
    rows = conll_sentences(io.StringIO(record["text"], newline=None), where, columns)
    return [_sentence(values, words, tags, f"{where}, line {line}") for line, values in rows]


def _sentence(record: Record, words: str, tags: str, where: str) -> TaggedWords:
    sentence = get_list(record, words, where=where)
    labels = tuple(tag.strip() for tag in get_list(record, tags, where=where))
    if (size := len(sentence)) != len(labels):
        raise UserError(
            f"{where}: {quantity(size, 'word')} in {words!r} and {quantity(len(labels), 'tag')} in {tags!r}; "
            "give each word a tag"
        )
    return TaggedWords(sentence, labels)


def get_list(record: Record, column: str, *, where: str) -> tuple[str, ...]:
    """Return the words or tags in a column.

    Raises:
        UserError: a missing column or another type of value; the message begins with ``where``.
    """
    value = get_field(record, column, where=where)
    if isinstance(value, str):
        return tuple(value.split())
    if not isinstance(value, list | tuple) or not all(isinstance(one, str | int | float) for one in value):
        raise UserError(f"{where}: column {column!r} is a {type(value).__name__}; give a text, or a list of words")
    return tuple(str(one) for one in value)


def word_spans(words: Sequence[str]) -> list[tuple[int, int]]:
    """Compute (start, end) in characters of each word in the words joined by a space."""
    ends = accumulate((len(word) for word in words), lambda end, size: end + 1 + size)
    return [(end - len(word), end) for word, end in zip(words, ends, strict=True)]


class TokenLabelRows:
    """A row for each sentence, ``[CLS] pieces [SEP]``, or overlapping windows of a sentence longer than ``length``.

    Special tokens are those of `Tokenizer.template`. Words are joined by a space and tokenized as text; the first piece
    of a word has its tag (Devlin et al. 2019, section 5.3). A word in several windows is predicted in the one with the
    most context on both sides. Two consecutive windows share ``stride`` tokens. Tags that are not in ``names`` are
    ignored.

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
            raise UserError(f"data.stride={stride} leaves no room in data.max_length={length}; lower the stride")
        self.sentences = sentences
        self._numbers = {name: number for number, name in enumerate(names.names)}
        self._rows: list[tuple[int, TokenIds, NDArray[np.int64], NDArray[np.int64]]] = []
        self.counts = {"empty_sentences": 0, "words_without_pieces": 0, "windowed": 0, "unseen_tags": 0}
        encoded = tokenizer.encode_with_offsets([" ".join(sentence.words) for sentence in sentences])
        for number, (ids, offsets) in enumerate(encoded):
            self._add(number, ids, offsets, room, room - stride)
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
            mask = owners == number
            self._rows.append((sentence, ids[start : start + room], places[mask] - start + self._first, of_word[mask]))

    def owner(self, index: int) -> int:
        """Return the number of the sentence of a row."""
        return self._rows[index][0]

    def first_pieces(self, index: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Find the first pieces of the words of a row.

        Returns:
            (words,) positions of the pieces, and (words,) numbers of the words.
        """
        _, _, places, words = self._rows[index]
        return places, words

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Row:
        """Return a row whose ``label`` is (tokens,), with `IGNORE_INDEX` without a tag; None without tags."""
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
    """Find the first piece of each word that has pieces.

    Returns:
        (words,) positions of the pieces, and (words,) ascending numbers of the words.
    """
    if not words or not len(offsets):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    begins = np.array([start for start, _ in word_spans(words)], dtype=np.int64)
    real = np.flatnonzero(offsets[:, 1] > offsets[:, 0])
    # if two words begin at the same place, the first is empty and the second has the pieces
    of_word = np.searchsorted(begins, offsets[real, 0], side="right") - 1
    words_with_pieces, first = np.unique(of_word, return_index=True)
    return real[first], words_with_pieces


def window_starts(tokens: int, room: int, step: int) -> NDArray[np.int64]:
    """Compute the (windows,) starts of windows of ``room`` tokens, every ``step`` tokens, that cover all tokens."""
    count = 1 + max(0, -(-(tokens - room) // step))
    return np.arange(count, dtype=np.int64) * step


def assign_windows(places: NDArray[np.int64], starts: NDArray[np.int64], tokens: int, room: int) -> NDArray[np.int64]:
    """Return the (places,) number of the first window with the most context on the shorter side of each token."""
    ends = np.minimum(starts + room, tokens)
    around = np.minimum(places[:, None] - starts, ends - 1 - places[:, None])  # (places, windows), negative outside
    return around.argmax(axis=1)
