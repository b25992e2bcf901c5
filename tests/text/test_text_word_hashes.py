"""Words from token ids against words from the text."""

import pickle
import re

import numpy as np
import pytest
from benchmarks.lra.fixed_vocabularies import byte_tokenizer

from homespun.choices import TokenizerKind
from homespun.objectives.gap_selection import WordHashes
from homespun.text.tokenizer import KINDS, Tokenizer

TEXT = (
    "The mat (a red mat) lay on the well-known unbelievable floor. Mat and mat's cousin, "
    "the café, paid 1,234 euros; naïve people believe in floors and in unknown mats.\nIn 1999 the Mat knew!"
)

SIZES = {"bpe": 300, "bpe-characters": 90, "wordpiece": 90, "unigram": 50, "words": 43}


def words_of(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def same(numbers: np.ndarray) -> list[int]:
    """Each word's first place in the list: equal lists where the same words are equal."""
    listed = numbers.tolist()
    return [listed.index(number) for number in listed]


def of_kind(kind: TokenizerKind) -> Tokenizer:
    return Tokenizer.train([TEXT] * 3, kind=kind, vocab_size=SIZES[kind])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("unigram", "bpe-characters")])
def test_words_are_those_of_the_text(kind: TokenizerKind) -> None:
    tokenizer = of_kind(kind)
    words = WordHashes.of(tokenizer)
    ids = tokenizer.encode_batch([TEXT])[0].astype(np.int64)
    numbers, places = words(ids, np.array([], np.int64))
    # "mat's" is one word in byte-level vocabularies, whose pieces begin words by their space alone
    text = TEXT.replace("mat's", "mats") if kind == "bpe" else TEXT
    expected = words_of(text)
    assert same(numbers) == [expected.index(word) for word in expected]
    assert (np.diff(places) > 0).all()
    assert len(ids) > len(places)


@pytest.mark.parametrize("kind", ["unigram", "bpe-characters"])
def test_words_with_a_mark_at_their_front_are_those_between_spaces(kind: TokenizerKind) -> None:
    tokenizer = of_kind(kind)
    numbers, _ = WordHashes.of(tokenizer)(tokenizer.encode_batch([TEXT])[0].astype(np.int64), np.array([], np.int64))
    found = same(numbers)
    assert len(found) >= len(TEXT.split())
    first = [word.strip("(),.;!") for word in TEXT.split()][:5]
    assert found[:5] == [first.index(word) for word in first]  # "mat" and "mat)" are one word


def test_bytes_and_merged_bytes_give_the_same_numbers() -> None:
    """However a word is cut into tokens."""
    merged, single = of_kind("bpe"), byte_tokenizer()
    numbers = [
        WordHashes.of(tokenizer)(tokenizer.encode_batch([" naïve mat"])[0].astype(np.int64), np.array([], np.int64))[0]
        for tokenizer in (merged, single)
    ]
    assert len(merged.encode_batch([" naïve mat"])[0]) < len(single.encode_batch([" naïve mat"])[0])
    assert np.array_equal(numbers[0], numbers[1])
    assert len(numbers[0]) == 2


def test_a_break_begins_a_word() -> None:
    tokenizer = byte_tokenizer()
    words = WordHashes.of(tokenizer)
    ids = tokenizer.encode_batch(["matmat mat"])[0].astype(np.int64)
    assert same(words(ids, np.array([], np.int64))[0]) == [0, 1]
    numbers, places = words(ids, np.array([3]))
    assert same(numbers) == [0, 0, 0]
    assert places.tolist() == [0, 3, 7]


def test_special_tokens_and_marks_are_no_words() -> None:
    tokenizer = of_kind("wordpiece")
    dot = tokenizer.encode_batch(["."])[0].astype(np.int64)
    numbers, places = WordHashes.of(tokenizer)(np.append(dot, tokenizer.sep_id), np.array([0]))
    assert len(numbers) == len(places) == 0


def test_it_travels_to_other_processes() -> None:
    words = WordHashes.of(of_kind("wordpiece"))
    ids = of_kind("wordpiece").encode_batch([TEXT])[0].astype(np.int64)
    for one, other in zip(
        words(ids, np.array([3])), pickle.loads(pickle.dumps(words))(ids, np.array([3])), strict=True
    ):
        assert np.array_equal(one, other)
