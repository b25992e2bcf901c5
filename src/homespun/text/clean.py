"""Cleaning of texts: normalisation, exact and near duplicates, sentence splitting."""

from __future__ import annotations

import hashlib
import re
import string
import unicodedata
import zlib
from array import array
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
    r"""Normalise to NFC with single spaces, ``\n`` line ends and at most one blank line, without control characters.

    Idempotent. Removes indentation, so it suits only prose.
    """
    # Substring tests are far cheaper than regular expressions, and most texts need no change.
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
    """Filter of texts that are equal after `normalise`.

    Stores 8 bytes of a digest of each text in an open hash table: 12 to 24 bytes a text, where a set takes 100. Among a
    billion texts, the expected number that is rejected by mistake is below 0.1.
    """

    def __init__(self) -> None:
        self._table, self._count = _slots(1 << 12), 0

    @staticmethod
    def digest(text: str) -> bytes:
        """Compute a digest of 16 bytes of the normalised text."""
        return hashlib.blake2b(normalise(text).encode("utf-8", "surrogatepass"), digest_size=16).digest()

    def is_new(self, text: str) -> bool:
        key = int.from_bytes(self.digest(text)[:8], "little") or 1  # 0 marks a free slot
        slot = _find(self._table, key)
        if self._table[slot]:
            return False
        self._table[slot] = key
        self._count += 1
        if 3 * self._count > 2 * len(self._table):
            larger = _slots(2 * len(self._table))
            for known in filter(None, self._table):
                larger[_find(larger, known)] = known
            self._table = larger
        return True


def _slots(count: int) -> array[int]:
    return array("Q", bytes(8 * count))


def _find(table: array[int], key: int) -> int:
    """Slot of ``key``, or the free slot for it (linear probing)."""
    mask = len(table) - 1
    slot = key & mask
    while table[slot] not in (0, key):
        slot = (slot + 1) & mask
    return slot


THRESHOLD = 0.8
"""Jaccard similarity from which texts are near-duplicates."""


class NearDuplicates:
    """Near-duplicate filter: MinHash (Broder 1997) over shingles of five words, ignoring case and punctuation.

    Texts are near-duplicates if the Jaccard similarity of their shingles is at least ``threshold``; in scripts without
    spaces a shingle is five characters. With 240 hashes in bands, about half of the pairs at the threshold are found,
    nearly all pairs 0.1 above it and hardly any 0.2 below it. Deterministic in the order of the texts; rejected
    texts are not stored.

    Memory is constant: 4 bytes for each band and slot, with 17 bands at 0.8, at most 143 MB for a ``capacity`` of a
    million documents. A key has a choice of four slots; beyond the capacity new texts overwrite earlier ones.

    Raises:
        UserError: ``threshold`` is not between 0 and 1.
    """

    def __init__(self, threshold: float = THRESHOLD, *, capacity: int = 1_000_000) -> None:
        if not 0.0 < threshold < 1.0:
            raise UserError(f"threshold={threshold} must be between 0 and 1, exclusive; set it to 0.8")
        self._bands, self._rows = _banding(threshold)
        generator = np.random.Generator(np.random.PCG64(0x5EED))
        count = self._bands * self._rows
        # multiply-shift hashing with odd multipliers (Dietzfelbinger 1997), one column for each hash function
        self._multipliers = generator.integers(1 << 63, dtype=np.uint64, size=(count, 1)) | np.uint64(1)
        self._offsets = generator.integers(1 << 63, dtype=np.uint64, size=(count, 1))
        self._mixers = generator.integers(1 << 63, dtype=np.uint64, size=self._rows) | np.uint64(1)
        self._sets = np.uint64(max(1, (1 << (2 * capacity - 1).bit_length()) // _WAYS))
        self._tags = np.zeros((self._bands, int(self._sets), _WAYS), dtype=np.uint32)  # 0: empty
        self._band_numbers = np.arange(self._bands)

    def is_new(self, text: str) -> bool:
        keys = self.keys(text)
        sets = (keys % self._sets).astype(np.int64)
        tags = (keys >> np.uint64(32)).astype(np.uint32) | np.uint32(1)
        stored = self._tags[self._band_numbers, sets]  # (bands, slots)
        if (stored == tags[:, None]).any():
            return False
        empty = stored == 0
        slots = np.where(empty.any(1), empty.argmax(1), (tags >> np.uint32(1)) % _WAYS)
        self._tags[self._band_numbers, sets, slots] = tags
        return True

    def keys(self, text: str) -> NDArray[np.uint64]:
        """Compute (bands,) uint64 keys; texts that share a key are candidates. Stores nothing."""
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
    """Compute the Jaccard similarity that `NearDuplicates` estimates."""
    first, second = np.unique(_shingles(text)), np.unique(_shingles(other))
    shared = len(np.intersect1d(first, second, assume_unique=True))
    return shared / (len(first) + len(second) - shared)


_WAYS = 4  # slots of a key
_SHINGLE_WORDS = 5
_HASHES = 240
_POWERS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93, 1], dtype=np.uint64)


def _banding(threshold: float) -> tuple[int, int]:
    """Choose (bands, rows) with at most `_HASHES` hashes that detect a pair at ``threshold`` with probability 1/2."""

    def detected(rows: int) -> float:
        return float((1.0 - 0.5 ** (1.0 / (_HASHES // rows))) ** (1.0 / rows))

    rows = min(range(1, 61), key=lambda r: abs(detected(r) - threshold))
    return _HASHES // rows, rows


def split_words(text: str) -> list[str]:
    """Split a text at white space; in scripts without spaces each character is a word."""
    return (text if text.isascii() else _UNSPACED.sub(r" \1 ", text)).split()


def _shingles(text: str) -> NDArray[np.uint64]:
    """Compute (shingles,) uint64 hashes of each five consecutive words; a shorter text is padded to one shingle.

    In scripts without spaces each character is a word.
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
    """Mix the bits of each value by the finaliser of SplitMix64 (Steele, Lea and Flood 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


_SAME = 1.0
_TRAINING_CHUNK = 4096  # training texts compared at a time; memory grows with the test texts only


@dataclass(frozen=True)
class NearDuplicatePairs:
    """Test texts that are near-duplicates of training texts, in ascending order."""

    rows: tuple[int, ...]  # numbers of these test texts
    of: tuple[int, ...]  # number of the most similar training text of each
    similarity: tuple[float, ...]  # Jaccard similarity of both
    compared: int  # number of test texts that are not blank

    @property
    def same(self) -> int:
        """Number of test texts whose words equal those of a training text, ignoring case and punctuation."""
        return sum(value >= _SAME for value in self.similarity)


def find_near_duplicates(training: Sequence[str], test: Sequence[str]) -> NearDuplicatePairs:
    """Find test texts whose Jaccard similarity to a training text is at least `THRESHOLD`. Blank texts are skipped.

    Candidates come from `NearDuplicates`, which misses a few near the threshold; each is then compared exactly. Memory
    is about 140 bytes a test text.
    """
    near = NearDuplicates(THRESHOLD, capacity=1)
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
        for index, row in _candidates(ordered, order, np.stack([near.keys(training[index]) for index in part])):
            if row in best and best[row][0] >= _SAME:
                continue
            score = similarity(training[part[index]], test[rows[row]])
            if score >= THRESHOLD and score > best.get(row, (0.0, 0))[0]:
                best[row] = (score, part[index])
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
    keys: np.ndarray[tuple[int, int], np.dtype[np.uint64]],
) -> list[tuple[int, int]]:
    """Find (training index, test row) pairs with equal keys in a band, each once, sorted.

    Args:
        ordered: (rows, bands) keys of the test texts, each band sorted; ``order`` are their rows.
        keys: (texts, bands) keys of the training texts.
    """
    pairs: set[tuple[int, int]] = set()
    for band in range(ordered.shape[1]):
        first, last = (np.searchsorted(ordered[:, band], keys[:, band], side) for side in ("left", "right"))
        for index in np.flatnonzero(last > first).tolist():
            pairs.update((index, int(row)) for row in order[first[index] : last[index], band])
    return sorted(pairs)


# candidates for a sentence end: closing marks with closing quotes and white space; an ideographic full stop, which
# needs no space; a blank line. Runs are matched from their first character and without backtracking: a page may have
# thousands of dots or spaces in a row
_BLANK_LINE = r"\n[ \t\r]*\n"
_END = re.compile(
    r"""(?<![.!?…])(?P<mark>[.!?…]++)["'”’»)\]]*+(?P<gap>\s++)"""
    rf"""|(?P<ideographic>[。！？]+["'”’」』）]*)\s*|(?<!\s)\s*{_BLANK_LINE}\s*"""
)
_LETTER = re.compile(r"[^\W\d_]")
_LAST_WORD = re.compile(r"(?:[^\W_]|[.&'’-])+$")
_OPENING = "\"'“‘«([{—–-•*"


def _words(line: str) -> frozenset[str]:
    return frozenset(line.split())


# abbreviations that never end a sentence
_BINDING = _words(
    "mr mrs ms mx dr prof st gen sen rep gov sgt capt lt col maj cmdr rev hon messrs mme mlle fr pres supt amb "
    "e.g i.e eg ie cf viz vs v al approx ca resp esp incl excl ed eds trans dept univ assn bros mt ft"
)
# abbreviations that end a sentence unless a number follows
_BEFORE_NUMBERS = _words(
    "no nos fig figs eq eqs eqn sec secs ch chap vol vols p pp para art ref refs tab item ex "
    "jan feb mar apr jun jul aug sep sept oct nov dec"
)
# abbreviations that end a sentence only if the next word is in _STARTERS
_AMBIGUOUS = _words(
    "inc ltd co corp llc plc jr sr etc u.s u.k u.n e.u d.c a.m p.m am pm ph.d m.d b.a m.a b.sc m.sc ave blvd rd est"
)
_STARTERS = _words(
    "the a an this that these those it its he she they we i you his her their our my your in on at by for from to with "
    "as if when while where after before since because although though however but and or so yet then there here what "
    "who why how which one some many most all no not is are was were do does did can could will would should may might "
    "according also another both each during despite under over until unlike meanwhile moreover furthermore thus hence "
    "therefore instead still today yesterday now"
)


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Split a text into sentences, as (start, end) in characters without surrounding white space.

    Other characters belong to exactly one sentence. The rules are for English, and for scripts without capitals:
    abbreviations, initials, decimals, quotes, ellipses and list numbers do not end a sentence; a blank line always
    does.
    """
    spans = []
    start, letter = len(text) - len(text.lstrip()), -1  # of the sentence, and of the first letter from there on
    for match in _END.finditer(text, start):
        if letter < start:
            found = _LETTER.search(text, start)
            letter = len(text) if found is None else found.start()
        if match["mark"] is None or _ends(text, start, match, has_letter=letter < match.start()):
            gap, ideographic = match.start("gap"), match.end("ideographic")
            end = gap if match["mark"] else ideographic if match["ideographic"] else match.start()
            if end > start:
                spans.append((start, end))
            start = match.end()
    end = len(text.rstrip())
    if end > start:
        spans.append((start, end))
    return spans


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences, without the white space between them; see `sentence_spans`."""
    return [text[start:end] for start, end in sentence_spans(text)]


def _ends(text: str, start: int, match: re.Match[str], *, has_letter: bool) -> bool:
    """True if the mark of ``match`` ends the sentence that begins at ``start``, which may have a letter."""
    after = match.end()
    if after == len(text):
        return False  # the caller ends the last sentence
    if re.search(_BLANK_LINE, match["gap"]):
        return True
    first = text[after]
    while first in _OPENING and after + 1 < len(text):
        after += 1
        first = text[after]
    if first.islower():
        return False
    if match["mark"] != ".":
        return True
    last_word = _LAST_WORD.search(text, max(start, match.start() - 40), match.start())
    if last_word is None:
        return has_letter
    word = last_word.group().lower().strip("-'’")
    if word.isdigit() and last_word.start() == start:
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
