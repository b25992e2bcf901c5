"""Hashes of words from token ids, for ROUGE without decoding.

A hash of 64 bits depends on the letters and digits of a word alone: ``mat`` has the same one with a space before it or
a full stop after it, in one token or in three.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
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
