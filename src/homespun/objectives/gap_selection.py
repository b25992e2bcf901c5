"""Selection of principal sentences by ROUGE-1 F1 against the rest of the document (Zhang et al. 2020, section 3.1)."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Protocol

import numpy as np
import torch
from tokenizers.pre_tokenizers import ByteLevel

from homespun.text.hashing import splitmix64
from homespun.text.tokenizer import Tokenizer
from homespun.text.vocabularies import WORD_START

_BASE = 0x9E3779B97F4A7C15  # odd base of the polynomial hashes of words, modulo 2^64


@dataclass(frozen=True)
class WordHashes:
    """Hashes of the letters and digits of each token of a vocabulary; picklable."""

    numbers: np.ndarray  # (vocab,) uint64 hash of the letters; 0 without letters
    letters: np.ndarray  # (vocab,) int64 number of letters
    begins: np.ndarray  # (vocab,) bool, True if the token begins a word

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> WordHashes:
        """Hash the tokens of ``tokenizer``, case-sensitive. Special tokens have no letters."""
        numbers = np.zeros(tokenizer.vocab_size, np.uint64)
        letters = np.zeros(tokenizer.vocab_size, np.int64)
        model = json.loads(tokenizer.content)["model"]
        prefix = model.get("continuing_subword_prefix") or ""
        suffix = model.get("end_of_word_suffix") or ""
        symbols = _bytes_of_characters() if tokenizer.kind == "bpe" else None
        special = tokenizer.special_mask
        for token, token_id in _vocabulary(model).items():
            if special[token_id]:
                continue
            codes = _letters(token.removeprefix(prefix).removesuffix(suffix), symbols)
            number = 0
            for mixed in splitmix64((np.array(codes, np.uint64) + np.uint64(1)) * np.uint64(_BASE)).tolist():
                number = (number * _BASE + mixed) % 2**64
            numbers[token_id], letters[token_id] = number, len(codes)
        return cls(numbers, letters, tokenizer.word_starts.copy())

    def __call__(self, ids: np.ndarray, breaks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Hash the words of a text, in order.

        Args:
            ids: (seq,) token ids.
            breaks: positions where a word always begins: sentence starts.

        Returns:
            (words,) uint64 hashes, equal for equal words, and (words,) int64 positions of their first tokens.
        """
        letters = self.letters[ids]
        begins = self.begins[ids]
        begins[1:] |= letters[:-1] == 0  # punctuation separates words
        begins[breaks] = True
        places = np.flatnonzero(letters)
        if not len(places):
            return np.empty(0, np.uint64), places
        # after a break on a token without letters the next word begins, see above
        starts = np.flatnonzero(begins[places])
        if not len(starts) or starts[0]:
            starts = np.append(0, starts)
        total = letters[places].cumsum()  # letters up to the end of each token
        last = np.append(starts[1:], len(places)) - 1  # last token of each word
        following = np.repeat(total[last], last - starts + 1) - total  # letters of the word after each token
        powers = np.full(int(following.max()) + 1, _BASE, np.uint64)
        powers[0] = 1
        parts = self.numbers[ids[places]] * np.multiply.accumulate(powers)[following]
        return np.add.reduceat(parts, starts), places[starts]


def _vocabulary(model: Mapping[str, Any]) -> dict[str, int]:
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        return vocabulary
    return {token: token_id for token_id, (token, _) in enumerate(vocabulary)}  # unigram: (token, score)


def _letters(token: str, symbols: Mapping[str, int] | None) -> list[int]:
    """Return the codes of a token's letters, digits and combining marks.

    Args:
        token: token of a vocabulary.
        symbols: byte of each character of a byte-level vocabulary; bytes are then returned.
    """
    if symbols is None:
        return [ord(c) for c in token.replace(WORD_START, "") if c.isalnum() or unicodedata.category(c)[0] == "M"]
    codes = [symbols[c] for c in token if c in symbols]
    # a byte of a multi-byte character counts as a letter
    return [code for code in codes if code >= 0x80 or chr(code).isalnum()]


@cache
def _bytes_of_characters() -> dict[str, int]:
    """Return the byte of each character of a byte-level vocabulary (GPT-2)."""
    alphabet = set(ByteLevel.alphabet())
    printable = [byte for byte in range(256) if chr(byte) in alphabet]
    others = [byte for byte in range(256) if chr(byte) not in alphabet]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


@dataclass(frozen=True)
class Counting:
    """Count of repeated words, one of `COUNTINGS`."""

    most: int  # maximum count of a word on either side
    both: int  # added to the document's count of a word on both sides


COUNTINGS = {"original": Counting(most=2**62, both=0), "unique": Counting(most=1, both=1)}
Rouge = Literal["original", "unique"]


@dataclass(frozen=True)
class WordCounts:
    """Sparse counts of words by sentence."""

    word: np.ndarray  # (pairs,) int64 word numbers, ascending
    sentence: np.ndarray  # (pairs,) int64 sentence numbers
    count: np.ndarray  # (pairs,) int64 counts of the word in the sentence
    total: np.ndarray  # (words,) int64 counts in the document
    sentences: int  # number of sentences

    def f1(self, overlap: np.ndarray, counting: Counting) -> np.ndarray:
        """Compute the (n,) ROUGE-1 F1 of parts against the rest, from the (n,) numbers of shared words."""
        size = np.minimum(self.total, counting.most).sum() + counting.both * overlap
        return np.asarray(2.0 * overlap / np.maximum(size, 1))


def count_words(words: WordHashes, ids: np.ndarray, ends: np.ndarray) -> WordCounts:
    """Count the words of a text by sentence.

    Args:
        words: hashes of the tokenizer.
        ids: (seq,) token ids.
        ends: (sentences,) end of each in ``ids``, exclusive; later tokens are ignored.
    """
    numbers, positions = words(ids[: ends[-1]], ends[:-1])
    sentences = len(ends)
    distinct, word = np.unique(numbers, return_inverse=True)
    pairs, count = np.unique(word * sentences + np.searchsorted(ends, positions, side="right"), return_counts=True)
    word, sentence = np.divmod(pairs, sentences)
    total = np.bincount(word, weights=count, minlength=len(distinct)).astype(np.int64)
    return WordCounts(word, sentence, count, total, sentences)


def score_independently(counts: WordCounts, counting: Counting) -> np.ndarray:
    """Compute the (sentences,) ROUGE-1 F1 of each sentence against all others."""
    both = _shared_count(counts.count, counts.total[counts.word], counting)
    return counts.f1(np.bincount(counts.sentence, weights=both, minlength=counts.sentences), counting)


def select_independent(counts: WordCounts, counting: Counting, factors: np.ndarray, number: int) -> np.ndarray:
    """Select the (number,) sentences with the highest scores times factors, in ascending order.

    The earlier sentence is selected if scores are equal.
    """
    scores = score_independently(counts, counting) * factors
    return np.sort(np.argsort(-scores, kind="stable")[:number])


def select_sequential(counts: WordCounts, counting: Counting, factors: np.ndarray, number: int) -> np.ndarray:
    """Select ``number`` sentences one by one, so that the selection scores highest against the rest.

    A candidate's score is multiplied by its factor. The earlier sentence is selected if scores are equal.

    Returns:
        (number,) ascending sentences.
    """
    selected = np.zeros(number, np.int64)
    inside = np.zeros_like(counts.total)  # (words,) counts in the selection
    totals = counts.total[counts.word]
    shared = 0.0  # words that the selection shares with the rest
    gains = _shared_count(counts.count, totals, counting)  # (pairs,) increase of `shared`
    gain = np.bincount(counts.sentence, weights=gains, minlength=counts.sentences)  # (sentences,)
    candidates = np.ones(counts.sentences, np.bool_)
    for step in range(number):
        scores = np.where(candidates, counts.f1(shared + gain, counting) * factors, -1.0)
        best = selected[step] = int(scores.argmax())
        shared += gain[best]
        candidates[best] = False
        mask = counts.sentence == best
        inside[counts.word[mask]] += counts.count[mask]
        # gains change for the words of this sentence only
        changed = np.zeros(len(inside), np.bool_)
        changed[counts.word[mask]] = True
        pairs = np.flatnonzero(changed[counts.word])
        old, total = inside[counts.word[pairs]], totals[pairs]
        new = _shared_count(old + counts.count[pairs], total, counting) - _shared_count(old, total, counting)
        gain += np.bincount(counts.sentence[pairs], weights=new - gains[pairs], minlength=counts.sentences)
        gains[pairs] = new
    return np.sort(selected)


def _shared_count(part: np.ndarray, total: np.ndarray, counting: Counting) -> np.ndarray:
    """Compute the clipped count of each word that a part shares with the rest, given its ``total``."""
    return np.minimum(np.minimum(part, total - part), counting.most)


class SentenceSelector(Protocol):
    """Interface of sentence selection."""

    def __call__(self, ids: np.ndarray, ends: np.ndarray, number: int, generator: torch.Generator) -> np.ndarray:
        """Select (number,) ascending sentences of (seq,) ids with (sentences,) ends."""


def select_random(ids: np.ndarray, ends: np.ndarray, number: int, generator: torch.Generator) -> np.ndarray:
    """Select (number,) random sentences."""
    return np.sort(torch.randperm(len(ends), generator=generator).numpy()[:number])


def select_lead(ids: np.ndarray, ends: np.ndarray, number: int, generator: torch.Generator) -> np.ndarray:
    """Select the (number,) first sentences."""
    return np.arange(number)


@dataclass(frozen=True)
class PrincipalSelector:
    """Select principal sentences by `select_independent` or `select_sequential`."""

    words: WordHashes
    choose: Callable[[WordCounts, Counting, np.ndarray, int], np.ndarray]
    counting: Counting
    noise: float  # scores are multiplied by random factors from 1 - noise to 1 + noise

    def __call__(self, ids: np.ndarray, ends: np.ndarray, number: int, generator: torch.Generator) -> np.ndarray:
        factors = np.ones(len(ends))
        if self.noise:
            factors += self.noise * (2.0 * torch.rand(len(ends), generator=generator).numpy() - 1.0)
        return self.choose(count_words(self.words, ids, ends), self.counting, factors, number)
