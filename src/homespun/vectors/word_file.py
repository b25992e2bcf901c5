"""A corpus as numbers of words, most frequent first: what word2vec and GloVe are trained on.

Words are counted in one pass over the documents and written in a second, 4 bytes each, so that no text is held.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from homespun.data.corpus import Corpus
from homespun.errors import UserError

Unit = Literal["words", "tokens"]
UNITS: tuple[Unit, ...] = ("words", "tokens")
OnProgress = Callable[[float], None]  # the share that is done
_WORD = re.compile(r"\w+|[^\w\s]")  # as tokenizers of kind `words` cut: words, and each punctuation mark alone
_AT_ONCE = 64  # documents


@dataclass(frozen=True)
class WordFile:
    """The words of a corpus in order, as places in ``words``; rare ones are left out, as if they had not stood there.

    Args:
        path: (all words,) int32, raw.
        words: most frequent first, of equal ones the first by name.
        counts: (words,) int64.
        ends: (documents,) int64: how many words have passed when each document ends.
    """

    path: Path
    words: list[str]
    counts: NDArray[np.int64]
    ends: NDArray[np.int64]

    @property
    def ids(self) -> NDArray[np.int32]:
        """(all words,) int32, memory-mapped."""
        return np.memmap(self.path, dtype=np.int32, mode="r")

    def documents(self) -> Iterator[NDArray[np.int32]]:
        """The words of each document that has any."""
        ids, start = self.ids, 0
        for end in self.ends.tolist():
            if end > start:
                yield ids[start:end]
            start = end


def write_words(
    corpus: Corpus,
    path: str | Path,
    *,
    unit: Unit = "words",
    lowercase: bool = True,
    min_count: int = 5,
    max_words: int = 400_000,
    on_progress: OnProgress | None = None,
) -> WordFile:
    """The words of ``corpus`` into the file ``path``.

    Args:
        corpus: of any tokenizer.
        path: a new file.
        unit: ``tokens``, as the tokenizer has them, without special ones; or ``words``, which are the tokens where its
            kind is ``words``, and are cut from the decoded text otherwise: runs of letters, digits and ``_``, and each
            punctuation mark alone.
        lowercase: the words, where they are cut from the text; tokens stay as they are.
        min_count: words that stand there less often are left out.
        max_words: at most so many, the most frequent.
        on_progress: how far it is.

    Raises:
        UserError: no word stands there often enough.
    """
    cut: _Tokens | _Text
    if unit == "tokens" or corpus.tokenizer.kind == "words":
        cut = _Tokens(corpus)
    else:
        cut = _Text(corpus, lowercase=lowercase)
    counts = cut.count(_half_progress(on_progress, 0))
    kept = [(word, count) for word, count in counts.items() if count >= min_count]
    if len(kept) < 2:
        most = f", and its {len(counts):,} different {unit} stand there less often than min_count" if counts else ""
        raise UserError(
            f"corpus {corpus.path} has no {unit} to train vectors of{most} ({min_count}); lower min_count, or build it "
            f"with more text or a larger vocabulary"
        )
    kept.sort(key=lambda entry: (-entry[1], entry[0]))
    kept = kept[:max_words]
    places = {word: place for place, (word, _) in enumerate(kept)}
    ends = np.zeros(len(corpus), np.int64)
    written = 0
    with open(path, "wb") as stream:
        for number, ids in enumerate(cut.documents(places, _half_progress(on_progress, 1))):
            stream.write(ids.astype(np.int32).tobytes())
            written += len(ids)
            ends[number] = written
    return WordFile(Path(path), [w for w, _ in kept], np.array([c for _, c in kept], np.int64), ends)


def _half_progress(on_progress: OnProgress | None, half: int) -> OnProgress:
    return (lambda share: None) if on_progress is None else (lambda share: on_progress((half + share) / 2))


class _Tokens:
    """The tokens themselves, without special ones."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        tokenizer = corpus.tokenizer
        self.names = tokenizer.tokens
        self.special = tokenizer.special_mask

    def count(self, on_progress: OnProgress) -> dict[str, int]:
        counts = np.zeros(len(self.special), np.int64)
        for number in range(len(self.corpus)):
            counts += np.bincount(self.corpus.tokens(number), minlength=len(counts))
            on_progress((number + 1) / len(self.corpus))
        counts[self.special] = 0
        return {self.names[i]: int(counts[i]) for i in np.flatnonzero(counts)}

    def documents(self, places: dict[str, int], on_progress: OnProgress) -> Iterator[NDArray[np.int32]]:
        table = np.full(len(self.special), -1, np.int32)
        for i, name in enumerate(self.names):
            if not self.special[i]:
                table[i] = places.get(name, -1)
        for number in range(len(self.corpus)):
            ids = table[self.corpus.tokens(number)]
            yield ids[ids >= 0]
            on_progress((number + 1) / len(self.corpus))


class _Text:
    """Words cut from the decoded text."""

    def __init__(self, corpus: Corpus, *, lowercase: bool) -> None:
        self.corpus, self.lowercase = corpus, lowercase

    def _words(self, on_progress: OnProgress) -> Iterator[list[str]]:
        total = len(self.corpus)
        for start in range(0, total, _AT_ONCE):
            numbers = range(start, min(start + _AT_ONCE, total))
            for text in self.corpus.tokenizer.decode_batch([self.corpus.tokens(number) for number in numbers]):
                yield _WORD.findall(text.lower() if self.lowercase else text)
            on_progress((numbers[-1] + 1) / total)

    def count(self, on_progress: OnProgress) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for words in self._words(on_progress):
            counts.update(words)
        return counts

    def documents(self, places: dict[str, int], on_progress: OnProgress) -> Iterator[NDArray[np.int32]]:
        for words in self._words(on_progress):
            yield np.fromiter((places[word] for word in words if word in places), np.int32)


def split_into_lines(documents: Iterable[NDArray[np.int32]], longest: int) -> Iterator[Sequence[int]]:
    """The documents' words in pieces of at most ``longest``."""
    for ids in documents:
        for start in range(0, len(ids), longest):
            yield ids[start : start + longest].tolist()
