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

from homespun.text.clean import splitmix64
from homespun.text.tokenizer import Tokenizer
from homespun.text.vocabularies import WORD_START

_BASE = 0x9E3779B97F4A7C15  # odd, and without a pattern: numbers of words are polynomials in it, modulo 2^64


@dataclass(frozen=True)
class WordHashes:
    """Letters and digits of every token of a vocabulary. Picklable."""

    numbers: np.ndarray  # (vocab,) uint64: of the token's letters; 0 where it has none
    letters: np.ndarray  # (vocab,) int64: how many it has
    begins: np.ndarray  # (vocab,) bool: a word begins with it

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
            breaks: positions where a word begins in any case: sentences.

        Returns:
            (words,) uint64, equal for equal words, and (words,) int64, the position of the first token of each.
        """
        letters = self.letters[ids]
        begins = self.begins[ids]
        begins[1:] |= letters[:-1] == 0  # a hyphen or a bracket is between words
        begins[breaks] = True
        places = np.flatnonzero(letters)
        if not len(places):
            return np.empty(0, np.uint64), places
        # a break may stand on a token without letters, and the word after it then begins all the same, see above
        starts = np.flatnonzero(begins[places])
        if not len(starts) or starts[0]:
            starts = np.append(0, starts)
        read = letters[places].cumsum()  # letters up to the end of each token
        last = np.append(starts[1:], len(places)) - 1  # the last token of each word
        behind = np.repeat(read[last], last - starts + 1) - read  # letters of the word behind each token
        powers = np.full(int(behind.max()) + 1, _BASE, np.uint64)
        powers[0] = 1
        parts = self.numbers[ids[places]] * np.multiply.accumulate(powers)[behind]
        return np.add.reduceat(parts, starts), places[starts]


def _vocabulary(model: Mapping[str, Any]) -> dict[str, int]:
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        return vocabulary
    return {token: token_id for token_id, (token, _) in enumerate(vocabulary)}  # unigram: pairs with a score


def _letters(token: str, symbols: Mapping[str, int] | None) -> list[int]:
    """Codes of a token's letters, digits and combining marks; of its bytes if ``symbols`` names them."""
    if symbols is None:
        return [ord(c) for c in token.replace(WORD_START, "") if c.isalnum() or unicodedata.category(c)[0] == "M"]
    codes = [symbols[c] for c in token if c in symbols]
    # a byte of a multi-byte character counts as a letter
    return [code for code in codes if code >= 0x80 or chr(code).isalnum()]


@cache
def _bytes_of_characters() -> dict[str, int]:
    """Byte of each character of a byte-level vocabulary (GPT-2)."""
    alphabet = set(ByteLevel.alphabet())
    printable = [byte for byte in range(256) if chr(byte) in alphabet]
    others = [byte for byte in range(256) if chr(byte) not in alphabet]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


@dataclass(frozen=True)
class Counting:
    """Counting of repeated words: `COUNTINGS`."""

    most: int  # clip of a word's count on either side
    both: int  # added to the document's count for a word that both sides have


COUNTINGS = {"original": Counting(most=2**62, both=0), "unique": Counting(most=1, both=1)}
Rouge = Literal["original", "unique"]


@dataclass(frozen=True)
class WordCounts:
    """Counts of words by sentence, sparse: pairs of a word and a sentence that has it."""

    word: np.ndarray  # (pairs,) int64, ascending: the number of a word
    sentence: np.ndarray  # (pairs,) int64
    count: np.ndarray  # (pairs,) int64
    total: np.ndarray  # (words,) int64: of the word in the document
    sentences: int

    def f1(self, overlap: np.ndarray, counting: Counting) -> np.ndarray:
        """(n,) words that a part and the rest both have -> (n,) ROUGE-1 F1 of the part against the rest."""
        size = np.minimum(self.total, counting.most).sum() + counting.both * overlap
        return np.asarray(2.0 * overlap / np.maximum(size, 1))


def count_words(words: WordHashes, ids: np.ndarray, ends: np.ndarray) -> WordCounts:
    """The words of a text by sentence.

    Args:
        words: of the tokenizer.
        ids: (seq,) token ids.
        ends: (sentences,) where each ends in ``ids``, exclusive; what stands behind the last is of no sentence.
    """
    numbers, positions = words(ids[: ends[-1]], ends[:-1])
    sentences = len(ends)
    distinct, word = np.unique(numbers, return_inverse=True)
    pairs, count = np.unique(word * sentences + np.searchsorted(ends, positions, side="right"), return_counts=True)
    word, sentence = np.divmod(pairs, sentences)
    total = np.bincount(word, weights=count, minlength=len(distinct)).astype(np.int64)
    return WordCounts(word, sentence, count, total, sentences)


def score_independently(counts: WordCounts, counting: Counting) -> np.ndarray:
    """(sentences,) ROUGE-1 F1 of each sentence against all others."""
    both = _shared_count(counts.count, counts.total[counts.word], counting)
    return counts.f1(np.bincount(counts.sentence, weights=both, minlength=counts.sentences), counting)


def select_independent(counts: WordCounts, counting: Counting, factors: np.ndarray, number: int) -> np.ndarray:
    """(number,) sentences with the highest scores, each times its factor; of equal ones the earlier."""
    scores = score_independently(counts, counting) * factors
    best: np.ndarray = np.sort(np.argsort(-scores, kind="stable")[:number])
    return best


def select_sequential(counts: WordCounts, counting: Counting, factors: np.ndarray, number: int) -> np.ndarray:
    """(number,) sentences, taken one by one: each time that which, with those taken, scores highest against the rest.

    Of equal ones the earlier. A candidate's score is times its factor.
    """
    taken = np.zeros(number, np.int64)
    inside = np.zeros_like(counts.total)  # (words,) how often each stands in what is taken
    totals = counts.total[counts.word]
    shared = 0.0  # words that what is taken and the rest both have
    gains = _shared_count(counts.count, totals, counting)  # (pairs,) what each pair would add to that
    gain = np.bincount(counts.sentence, weights=gains, minlength=counts.sentences)  # (sentences,)
    open_ = np.ones(counts.sentences, np.bool_)
    for step in range(number):
        scores = np.where(open_, counts.f1(shared + gain, counting) * factors, -1.0)
        best = taken[step] = int(scores.argmax())
        shared += gain[best]
        open_[best] = False
        own = counts.sentence == best
        inside[counts.word[own]] += counts.count[own]
        # only the words of this sentence have other counts than before
        changed = np.zeros(len(inside), np.bool_)
        changed[counts.word[own]] = True
        pairs = np.flatnonzero(changed[counts.word])
        before, total = inside[counts.word[pairs]], totals[pairs]
        now = _shared_count(before + counts.count[pairs], total, counting) - _shared_count(before, total, counting)
        gain += np.bincount(counts.sentence[pairs], weights=now - gains[pairs], minlength=counts.sentences)
        gains[pairs] = now
    return np.sort(taken)


def _shared_count(part: np.ndarray, total: np.ndarray, counting: Counting) -> np.ndarray:
    """Clipped count of each word that a part shares with the rest, of ``total``."""
    both: np.ndarray = np.minimum(np.minimum(part, total - part), counting.most)
    return both


class SentenceSelector(Protocol):
    """Chooses sentences of a document."""

    def __call__(self, ids: np.ndarray, ends: np.ndarray, number: int, generator: torch.Generator) -> np.ndarray:
        """(seq,) ids and the (sentences,) ends in them -> (number,) ascending sentences."""
        ...


def select_random(ids: np.ndarray, ends: np.ndarray, number: int, generator: torch.Generator) -> np.ndarray:
    """Random sentences."""
    drawn: np.ndarray = torch.randperm(len(ends), generator=generator).numpy()[:number]
    return np.sort(drawn)


def select_lead(ids: np.ndarray, ends: np.ndarray, number: int, generator: torch.Generator) -> np.ndarray:
    """First sentences."""
    return np.arange(number)


@dataclass(frozen=True)
class PrincipalSelector:
    """Principal sentences, as `select_independent` or `select_sequential` choose them."""

    words: WordHashes
    choose: Callable[[WordCounts, Counting, np.ndarray, int], np.ndarray]
    counting: Counting
    noise: float  # each score is times a number from 1 - noise to 1 + noise

    def __call__(self, ids: np.ndarray, ends: np.ndarray, number: int, generator: torch.Generator) -> np.ndarray:
        factors = np.ones(len(ends))
        if self.noise:
            factors += self.noise * (2.0 * torch.rand(len(ends), generator=generator).numpy() - 1.0)
        return self.choose(count_words(self.words, ids, ends), self.counting, factors, number)
