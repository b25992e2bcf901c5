"""Paragraph selection from several documents: ranking, order, length limit."""

import numpy as np
import pytest

from homespun.data.source_target import (
    Paragraphs,
    SourceTargetPair,
    SourceTargetRows,
    SourceTargetTemplate,
    parse_pair,
    rank_paragraphs,
)
from homespun.text.tokenizer import Tokenizer

LINES = ["the team won the match", "profit rose in the quarter", "soup and bread", "the market and the profit fell"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([*LINES, "a b c d e f g"], kind="wordpiece", vocab_size=89)


def words(tokenizer: Tokenizer, text: str) -> int:
    return len(tokenizer.encode_batch([text])[0])


def test_paragraphs_like_the_title_come_first_and_others_as_they_stand() -> None:
    assert rank_paragraphs(LINES, "Profit of the market")[:2] == [3, 1]
    assert rank_paragraphs(LINES, "nothing known") == [0, 1, 2, 3]
    assert rank_paragraphs(["profit rose", "soup", "profit rose today", "tea"], "") == [0, 2, 1, 3]
    assert rank_paragraphs([], "profit") == rank_paragraphs([], "") == []
    assert rank_paragraphs(["...", "?!"], "profit") == [0, 1]


def test_what_fits_is_taken_and_what_does_not_is_counted(tokenizer: Tokenizer) -> None:
    text = "\n".join(LINES)
    sizes = [words(tokenizer, line) for line in LINES]
    everything = Paragraphs(max_length=50).read(text, "profit market", tokenizer, 1000)
    assert everything.left_out == 0
    assert not everything.cut
    assert np.bincount(everything.documents).tolist() == [sizes[3], sizes[1], sizes[0], sizes[2]]
    two = Paragraphs(max_paragraphs=2, max_length=4).read(text, "profit market", tokenizer, 1000)
    assert two.left_out == 2
    assert two.cut
    assert np.bincount(two.documents).tolist() == [4, 4]
    little = Paragraphs(max_length=50).read(text, "profit market", tokenizer, sizes[3] + 2)
    assert np.bincount(little.documents).tolist() == [sizes[3], 2]
    assert little.left_out == 2
    ordered = Paragraphs(max_paragraphs=2, max_length=50, order="text").read(text, "profit market", tokenizer, 1000)
    assert tokenizer.decode(ordered.ids).split()[0] == "profit"
    assert np.bincount(ordered.documents).tolist() == [sizes[1], sizes[3]]


def test_rows_have_the_numbers_of_their_paragraphs_and_the_frame_is_of_the_outer_ones(tokenizer: Tokenizer) -> None:
    pairs = [
        SourceTargetPair("\n".join(LINES), ("profit",), title="soup"),
        SourceTargetPair("", ("a",)),
        SourceTargetPair("a b", ("c", "d")),
    ]
    rows = SourceTargetRows(
        pairs,
        tokenizer,
        source_length=31,
        target_length=11,
        template=SourceTargetTemplate((2,), (3,), (3,), (2,)),
        paragraphs=Paragraphs(max_paragraphs=3, max_length=5),
    )
    assert len(rows) == 3
    assert rows.counts["paragraphs_left_out"] == 1
    assert rows.counts["empty"] == 1
    first = rows[0]
    assert len(first.documents) == len(first.input_ids) == rows.lengths[0] - len(first.target_ids)
    assert (first.documents[0], first.documents[1], first.documents[-2], first.documents[-1]) == (0, 0, 2, 2)
    assert (np.diff(first.documents) >= 0).all()
    assert set(rows[1].documents.tolist()) == {0}


def test_a_list_and_several_columns_are_several_documents() -> None:
    record = {"title": "profits", "pages": ["one\ntwo", "three"], "notes": "four", "lead": "five"}
    sources = ["pages", "notes"]
    pair = parse_pair(record, source=sources, target=["lead"], between="\n", title="title", where="row 1")
    assert pair == SourceTargetPair("one\ntwo\nthree\nfour", ("five",), title="profits")
