"""Normalisation, exact and near duplicates, sentence splitting."""

from __future__ import annotations

import hashlib
import re
import string
import unicodedata
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from homespun.errors import UserError

# C0 and C1 controls but tab and line ends, zero-width characters, byte order marks, direction marks.
_CONTROLS = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u200b\u200e\u200f\u202a-\u202e\u2060\ufeff]")
_LINE_ENDS = re.compile("[\x0b\x0c\r\x85\u2028\u2029]")
_WIDE_SPACES = re.compile("[\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]")
_RUNS_OF_SPACES = re.compile("  +")
_BLANK_LINES = re.compile("\n\n\n+")
# Thai, Lao, Burmese, Khmer, Chinese and Japanese are written without spaces between words.
_UNSPACED = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003fffd])"
)


def normalise(text: str) -> str:
    r"""Normalise to NFC, without control characters, with single spaces and line ends ``\n``, at most one blank line.

    Idempotent. Removes indentation, so it is for prose.
    """
    # Most texts need little of this, and looking for a substring is far cheaper than a regular expression.
    if not text.isascii():
        text = _WIDE_SPACES.sub(" ", unicodedata.normalize("NFC", _CONTROLS.sub("", text)))
    elif not text.isprintable():
        text = _CONTROLS.sub("", text)
    text = _LINE_ENDS.sub("\n", text.replace("\r\n", "\n")) if not text.isprintable() else text
    text = text.replace("\t", " ")
    if "  " in text:
        text = _RUNS_OF_SPACES.sub(" ", text)
    text = text.replace(" \n", "\n").replace("\n ", "\n")
    if "\n\n\n" in text:
        text = _BLANK_LINES.sub("\n\n", text)
    return text.strip()


class ExactDuplicates:
    """Set of `normalise`d texts by digest, 16 bytes each (about 100 as Python objects)."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()

    def is_new(self, text: str) -> bool:
        digest = hashlib.blake2b(normalise(text).encode("utf-8", "surrogatepass"), digest_size=16).digest()
        before = len(self._seen)
        self._seen.add(digest)
        return len(self._seen) > before


class NearDuplicates:
    """Near-duplicate filter: MinHash (Broder 1997) over shingles of five words, without case and punctuation.

    Texts are near-duplicates if the Jaccard similarity of their shingles is at least ``threshold``; in scripts without
    spaces a shingle is five characters. With 240 hashes in bands, about half of the pairs at the threshold are found,
    nearly all 0.1 above it, hardly any 0.2 below it. Deterministic in the order of the texts; refused texts are not
    remembered.

    Memory is fixed: 4 bytes a band and slot, 17 bands at 0.8, at most 143 MB for a ``capacity`` of a million documents.
    Beyond it the newest overwrite the oldest.

    Raises:
        UserError: ``threshold`` not between 0 and 1.
    """

    def __init__(self, threshold: float = 0.8, *, capacity: int = 1_000_000) -> None:
        if not 0.0 < threshold < 1.0:
            raise UserError(f"threshold={threshold} must be between 0 and 1, exclusive; set it to 0.8")
        self._bands, self._rows = _banding(threshold)
        generator = np.random.Generator(np.random.PCG64(0x5EED))
        count = self._bands * self._rows
        # Odd multipliers and shifts: multiply-shift hashing (Dietzfelbinger 1997), one column a hash function.
        self._multipliers = generator.integers(1 << 63, dtype=np.uint64, size=(count, 1)) | np.uint64(1)
        self._offsets = generator.integers(1 << 63, dtype=np.uint64, size=(count, 1))
        self._mixers = generator.integers(1 << 63, dtype=np.uint64, size=self._rows) | np.uint64(1)
        self._slots = np.uint64(1 << (2 * capacity - 1).bit_length())
        self._tags = np.zeros((self._bands, int(self._slots)), dtype=np.uint32)  # 0: empty
        self._band_numbers = np.arange(self._bands)

    def is_new(self, text: str) -> bool:
        keys = self.keys(text)
        slots = (keys % self._slots).astype(np.int64)
        tags = (keys >> np.uint64(32)).astype(np.uint32) | np.uint32(1)
        if (self._tags[self._band_numbers, slots] == tags).any():
            return False
        self._tags[self._band_numbers, slots] = tags
        return True

    def keys(self, text: str) -> NDArray[np.uint64]:
        """(bands,) uint64 keys; texts that share one are taken for duplicates. Remembers nothing."""
        shingles = _shingles(text)
        minima = np.full(len(self._multipliers), np.iinfo(np.uint64).max, dtype=np.uint64)
        for start in range(0, len(shingles), 512):  # (hashes, 512) fits the cache
            hashes = shingles[None, start : start + 512] * self._multipliers
            hashes += self._offsets
            np.minimum(minima, hashes.min(axis=1), out=minima)
        minima ^= minima >> np.uint64(32)
        keys: NDArray[np.uint64] = (minima.reshape(self._bands, self._rows) * self._mixers).sum(axis=1, dtype=np.uint64)
        return splitmix64(keys)


def similarity(text: str, other: str) -> float:
    """Jaccard similarity that `NearDuplicates` estimates."""
    mine, theirs = np.unique(_shingles(text)), np.unique(_shingles(other))
    both = len(np.intersect1d(mine, theirs, assume_unique=True))
    return both / (len(mine) + len(theirs) - both)


_SHINGLE_WORDS = 5
_HASHES = 240
_POWERS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93, 1], dtype=np.uint64)


def _banding(threshold: float) -> tuple[int, int]:
    """Bands and rows of at most `_HASHES` hashes that find a pair at ``threshold`` with probability 1/2."""

    def middle(rows: int) -> float:
        return float((1.0 - 0.5 ** (1.0 / (_HASHES // rows))) ** (1.0 / rows))

    rows = min(range(1, 61), key=lambda r: abs(middle(r) - threshold))
    return _HASHES // rows, rows


def _shingles(text: str) -> NDArray[np.uint64]:
    """Hashes of every five consecutive words, or of all words if there are fewer.

    In scripts without spaces between words each character is a word.
    """
    text = text.lower()
    if not text.isascii():
        text = _UNSPACED.sub(r" \1 ", text)
    words = text.encode("utf-8", "surrogatepass").translate(None, string.punctuation.encode()).split()
    hashes = np.fromiter(map(zlib.crc32, words), dtype=np.uint64, count=len(words))
    if len(words) < _SHINGLE_WORDS:
        hashes = np.concatenate([hashes, np.zeros(_SHINGLE_WORDS - len(words), dtype=np.uint64)])
    windows = len(hashes) - _SHINGLE_WORDS + 1
    total = hashes[:windows] * _POWERS[0]
    for i in range(1, _SHINGLE_WORDS):
        total = splitmix64(total) + hashes[i : i + windows] * _POWERS[i]
    return splitmix64(total)


def splitmix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix the bits of each value: the finaliser of SplitMix64 (Steele, Lea and Flood 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


THRESHOLD = 0.8
_SAME = 1.0
_TRAINING_CHUNK = 4096  # training texts compared at a time, so that memory grows with the test alone


@dataclass(frozen=True)
class NearDuplicatePairs:
    """Test texts that are near-duplicates of training texts."""

    rows: tuple[int, ...]  # of the test, ascending
    of: tuple[int, ...]  # the most similar training text of each
    similarity: tuple[float, ...]  # Jaccard similarity of five-word shingles
    compared: int  # test texts that are not empty

    @property
    def same(self) -> int:
        """Number of test texts with the same words, up to case and punctuation."""
        return sum(value >= _SAME for value in self.similarity)


def find_near_duplicates(
    training: Sequence[str], test: Sequence[str], *, threshold: float = THRESHOLD
) -> NearDuplicatePairs:
    """Test texts with a Jaccard similarity of at least ``threshold`` to a training text, without empty ones.

    `NearDuplicates` finds candidates, but misses a few near the threshold; each is then compared in full. Memory is
    about 140 bytes a test text.

    Raises:
        UserError: ``threshold`` not between 0 and 1.
    """
    near = NearDuplicates(threshold, capacity=1)
    rows = [row for row, text in enumerate(test) if text.strip()]
    if not rows:
        return NearDuplicatePairs((), (), (), 0)
    keys = np.stack([near.keys(test[row]) for row in rows])  # (rows, bands)
    order = np.argsort(keys, axis=0)
    ordered = np.take_along_axis(keys, order, axis=0)
    best: dict[int, tuple[float, int]] = {}
    for start in range(0, len(training), _TRAINING_CHUNK):
        part = [index for index in range(start, min(start + _TRAINING_CHUNK, len(training))) if training[index].strip()]
        if not part:
            continue
        wanted = np.stack([near.keys(training[index]) for index in part])
        for place, row in _candidates(ordered, order, wanted):
            if row in best and best[row][0] >= _SAME:
                continue
            score = similarity(training[part[place]], test[rows[row]])
            if score >= threshold and score > best.get(row, (0.0, 0))[0]:
                best[row] = (score, part[place])
    found = sorted(best)
    return NearDuplicatePairs(
        tuple(rows[row] for row in found),
        tuple(best[row][1] for row in found),
        tuple(best[row][0] for row in found),
        len(rows),
    )


def _candidates(
    ordered: np.ndarray[tuple[int, int], np.dtype[np.uint64]],
    order: np.ndarray[tuple[int, int], np.dtype[np.int64]],
    wanted: np.ndarray[tuple[int, int], np.dtype[np.uint64]],
) -> list[tuple[int, int]]:
    """(training index in the chunk, test row) that agree in a band, each once, sorted.

    Args:
        ordered: (rows, bands) keys of the test, each band sorted; ``order`` has their rows.
        wanted: (texts, bands) keys of the training.
    """
    pairs: set[tuple[int, int]] = set()
    for band in range(ordered.shape[1]):
        column, asked = ordered[:, band], wanted[:, band]
        first, last = np.searchsorted(column, asked, "left"), np.searchsorted(column, asked, "right")
        for place in np.flatnonzero(last > first).tolist():
            pairs.update((place, int(row)) for row in order[first[place] : last[place], band])
    return sorted(pairs)


# Where a sentence may end: closing marks with what closes after them and white space; an ideographic full stop needs
# no space; a blank line always.
_END = re.compile(
    r"""(?P<mark>[.!?…]+)["'”’»)\]]*(?P<gap>\s+)|(?P<ideographic>[。！？]+["'”’」』）]*)\s*|\s*\n[ \t]*\n\s*"""
)
_LAST_WORD = re.compile(r"(?:[^\W_]|[.&'’-])+$")
_OPENING = "\"'“‘«([{—–-•*"


def _words(line: str) -> frozenset[str]:
    return frozenset(line.split())


# Never the end: a name, a number or the rest of the phrase follows.
_BINDING = _words(
    "mr mrs ms mx dr prof st gen sen rep gov sgt capt lt col maj cmdr rev hon messrs mme mlle fr pres supt amb "
    "e.g i.e eg ie cf viz vs v al approx ca resp esp incl excl ed eds trans dept univ assn bros mt ft"
)
# The end unless a number follows.
_BEFORE_NUMBERS = _words(
    "no nos fig figs eq eqs eqn sec secs ch chap vol vols p pp para art ref refs tab item ex "
    "jan feb mar apr jun jul aug sep sept oct nov dec"
)
# The end only where the next word looks like the beginning of a sentence.
_AMBIGUOUS = _words(
    "inc ltd co corp llc plc bros jr sr etc u.s u.k u.n e.u d.c a.m p.m am pm ph.d m.d b.a m.a b.sc m.sc ave "
    "blvd rd est"
)
_STARTERS = _words(
    "the a an this that these those it its he she they we i you his her their our my your in on at by for from to with "
    "as if when while where after before since because although though however but and or so yet then there here what "
    "who why how which one some many most all no not is are was were do does did can could will would should may might "
    "according also another both each during despite under over until unlike meanwhile moreover furthermore thus hence "
    "therefore instead still today yesterday now"
)


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """(start, end) of each sentence without surrounding white space, in order; together they hold all other characters.

    Rules for English, and for scripts without capitals: abbreviations, initials, decimals, quotes, ellipses and list
    numbers do not end a sentence; a blank line always does.
    """
    spans = []
    start = len(text) - len(text.lstrip())
    for match in _END.finditer(text, start):
        if match["mark"] is None or _ends(text, start, match):
            gap, ideographic = match.start("gap"), match.end("ideographic")
            end = gap if match["mark"] else ideographic if match["ideographic"] else match.start()
            if end > start:
                spans.append((start, end))
            start = match.end()
    end = len(text.rstrip())
    if end > start:
        spans.append((start, end))
    return spans


def _ends(text: str, start: int, match: re.Match[str]) -> bool:
    """True if the mark that ``match`` found ends the sentence from ``start``."""
    after = match.end()
    if after == len(text):
        return False  # what remains is the last sentence anyway
    first = text[after]
    while first in _OPENING and after + 1 < len(text):
        after += 1
        first = text[after]
    if first.islower():
        return False
    if match["mark"] != ".":
        return True
    found = _LAST_WORD.search(text, max(start, match.start() - 40), match.start())
    if found is None:
        return any(character.isalpha() for character in text[start : match.start()])
    word = found.group().lower().strip("-'’")
    if word.isdigit() and found.start() == start:
        return False  # "1. Introduction"
    if word in _BINDING:
        return False
    if word in _BEFORE_NUMBERS:
        return not first.isdigit()
    initials = len(word) == 1 or all(len(part) == 1 for part in word.split("."))
    if (initials and word.replace(".", "").isalpha()) or word in _AMBIGUOUS:
        following = re.match(r"[^\W\d_]+", text[after : after + 40])
        # "Plan B. It failed." ends; "J. Smith" and "the U.S. Senate" do not.
        return following is not None and following.group().lower() in _STARTERS
    return True
