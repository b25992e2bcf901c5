"""Normalisation, duplicates and sentences: invariants and hard cases."""

import itertools
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homespun.errors import UserError
from homespun.text.clean import normalise, sentence_spans
from homespun.text.duplicates import ExactDuplicates, NearDuplicates, _shingles, similarity

TEXT = st.text(
    alphabet=st.one_of(st.sampled_from(" \n\t\r.!?…A a1\u0301\xa0\u2028\u200b\x00\"'"), st.characters(codec="utf-8"))
)


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("e\u0301te\u0301", "été"),
        ("a\r\nb\rc\u2028d", "a\nb\nc\nd"),
        ("a \t\xa0 b", "a b"),
        ("a  \n\n \n\n\n  b", "a\n\nb"),
        ("\ufeffa\x00b\x07\u200bc", "abc"),
        ("  indented\n    more", "indented\nmore"),
        ("", ""),
    ],
)
def test_normalise(raw: str, clean: str) -> None:
    assert normalise(raw) == clean


@given(TEXT)
def test_normalise_is_idempotent_and_keeps_words(text: str) -> None:
    once = normalise(text)
    assert normalise(once) == once
    assert "\n\n\n" not in once
    assert "  " not in once
    assert "\r" not in once


def test_exact_duplicates() -> None:
    seen = ExactDuplicates()
    assert [seen.is_new(t) for t in ("a b", "a  b\r\n", "a b.", "a b", "A b")] == [True, False, True, False, True]


def test_exact_duplicates_among_many_texts() -> None:
    seen, known = ExactDuplicates(), set[str]()
    for number in random.Random(1).choices(range(20_000), k=30_000):
        assert seen.is_new(str(number)) == (str(number) not in known)
        known.add(str(number))


def words(rng: random.Random, count: int) -> list[str]:
    return [f"word{rng.randrange(5003)}" for _ in range(count)]


def edited(rng: random.Random, text: list[str], edits: int) -> list[str]:
    text = list(text)
    for i, at in enumerate(rng.sample(range(len(text)), edits)):
        text[at] = f"edit{i}x{rng.randrange(10**9)}"
    return text


@pytest.mark.parametrize("threshold", [0.5, 0.8, 0.9])
def test_near_duplicates_recall_and_precision(threshold: float) -> None:
    rng = random.Random(17)
    found: dict[bool, list[bool]] = {True: [], False: []}
    for _ in range(701):
        text = words(rng, 211)
        other = edited(rng, text, rng.randrange(41))
        first, second = (set(_shingles([" ".join(t)])[0].tolist()) for t in (text, other))
        similarity = len(first & second) / len(first | second)
        if abs(similarity - threshold) < 0.1 and similarity != 1.0:
            continue
        seen = NearDuplicates(threshold, capacity=100)
        assert seen.are_new([" ".join(text)]) == [True]
        found[similarity > threshold].append(not seen.are_new([" ".join(other)])[0])
    recall = sum(found[True]) / len(found[True])
    wrong = sum(found[False]) / len(found[False])
    assert recall > 0.95, recall
    assert wrong < 0.06, wrong


def test_near_duplicates_among_many_are_deterministic() -> None:
    rng = random.Random(19)
    texts = [" ".join(words(rng, 31)) for _ in range(503)]
    copies = [f"{text.upper()}!" for text in texts]  # case and punctuation aside, the same
    first, second = (NearDuplicates(capacity=2000) for _ in range(2))
    answers = first.are_new(texts + copies)
    assert answers == [True] * 503 + [False] * 503
    assert answers == [second.are_new([text])[0] for text in texts + copies]  # alone or together


def test_near_duplicates_of_short_texts() -> None:
    seen = NearDuplicates(capacity=100)
    assert seen.are_new(["", "one", "one two", "One, two!", "two one", ""]) == [
        True,
        True,
        True,
        False,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("text", "like"),
    [
        (
            "東京は日本の首都です。今日は天気がいいので、公園まで歩いて行きました",
            "東京は日本の首都です。今日は天気がいいので、公園まで歩いて行きました。",
        ),
        (
            "公司第三季度的净利润比去年同期增长了百分之十五，超过预期",
            "公司第三季度的净利润比去年同期增长了百分之十五，超过了预期",
        ),
        ("กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย", "กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย!"),
    ],
)
def test_near_duplicates_in_scripts_without_spaces(text: str, like: str) -> None:
    assert similarity(text, text) == 1.0
    assert 0.75 < similarity(text, like) <= 1.0
    assert similarity(text, text[::-1]) == 0.0


def test_near_duplicates_bound_their_memory() -> None:
    rng = random.Random(23)
    seen = NearDuplicates(capacity=50)
    size = seen._tags.nbytes
    texts = [" ".join(words(rng, 13)) for _ in range(1009)]
    new = sum(seen.are_new(texts))
    assert seen._tags.nbytes == size
    assert new > 1000  # what is forgotten lets copies pass; it never refuses what is new
    assert seen.are_new(texts[-1:]) == [False]


@pytest.mark.parametrize("threshold", [0.0, 1.0, -1.0, 7.0])
def test_near_duplicates_threshold(threshold: float) -> None:
    with pytest.raises(UserError, match="threshold"):
        NearDuplicates(threshold)


@pytest.mark.parametrize(
    "marked",  # | stands where one sentence ends and the next begins
    [
        "One.|Two!|Three?|Four",
        "Mr. Smith met Dr. Jones at St. Mary's.|They spoke.",
        "J. K. Rowling and J.R.R. Tolkien wrote.|Both were read.",
        "It rose 3.5 percent to $4.25 a share.|Then it fell.",
        "The U.S. Senate voted.|He left the U.S.|The end.",
        "Apple Inc. Chairman Smith spoke.|He left Apple Inc.|The firm grew.",
        "See Fig. 3 and Eq. (2), pp. 5-7, No. 4.|No.|I do not.",
        'He said "Go."|Then he went.',
        '"Really?" he asked.|"Yes!"|She left.',
        "He waited... and waited.|Then...|Nothing.",
        "Wait… what?|Yes.",
        "Fruits, e.g. Apples, i.e. Food, etc.|It ended.",
        "Smith et al. (2010) disagree.|(See below.)|Fine.",
        "1. Introduction|2. Methods".replace("|", "\n\n"),
        "Visit example.com or mail a.b@c.org.|Now.",
        "At 5 p.m. Monday it began.|It ended at 6 p.m.|They left.",
        "In Jan. 2020 it opened.|It closed in Dec.|Nobody came.",
        "What?!|No way!!!|Yes.",
        "He has a Ph.D. in physics.|She does not.",
        "Heading without a stop\n\nA sentence.|Another one.",
        "The list.\n\nfirst item\n\nAsk Mr.\n \t\nSmith.\r\n\r\nno capital",
        "這是一句。|那是另一句！|好嗎？|好",
        "Это первое предложение.|Это второе.",
        "Plan B. It failed.".replace("B. It", "B.|It"),
        "Version 2.0 vs. Version 3.0 was tested.|Python 3.11 won.",
    ],
)
def test_sentences(marked: str) -> None:
    expected = [part.strip() for block in re.split(r"\n\s*\n", marked) for part in block.split("|")]
    ideographic = "。" in marked
    text = marked.replace("|", "" if ideographic else " ")
    assert [text[start:end] for start, end in sentence_spans(text)] == expected


@pytest.mark.parametrize("run", [".", " ", " \n ", '."', ". "])
def test_sentences_of_long_runs_take_linear_time(run: str) -> None:
    text = "A" + run * 100_000 + "b"  # takes minutes in quadratic time
    assert len(sentence_spans(text)) == (1 if run in (".", " ", '."') else 2)


@settings(max_examples=200)
@given(TEXT)
def test_sentence_spans_cover_all_that_is_not_space(text: str) -> None:
    spans = sentence_spans(text)
    assert all(start < end for start, end in spans)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
    assert all(text[start:end] == text[start:end].strip() for start, end in spans)
    inside = "".join(text[start:end] for start, end in spans)
    assert "".join(inside.split()) == "".join(text.split())
