"""Rows of one document each: nothing lost, whole sentences wherever they fit, their ends where they are."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_texts import Lists, made_up

from homespun.data.rows import SentenceRows
from homespun.errors import UserError


def corpus_of_sentences(documents):
    """Of documents that are lists of the sizes of their sentences."""
    return Lists([sum(sizes) for sizes in documents], [np.cumsum(sizes) for sizes in documents])


SENTENCES = st.lists(st.integers(1, 40), min_size=1, max_size=12)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(SENTENCES, min_size=1, max_size=12),
    st.sampled_from([8, 11, 31, 64]),
    st.sampled_from([None, 2]),
    st.booleans(),
)
def test_every_token_comes_once_in_rows_of_one_document(documents, length, begin_id, sentences):
    corpus = corpus_of_sentences(documents)
    corpus.has_sentences = sentences
    order = np.random.default_rng(len(documents)).permutation(len(documents))
    rows = SentenceRows(corpus, order, length=length, begin_id=begin_id, end_id=3)
    first = 0 if begin_id is None else 1
    body = length - 1 - first
    bodies = []
    for number in range(len(rows)):
        row = rows[number]
        assert row.input_ids.dtype == np.int64
        assert len(row.input_ids) == rows.lengths[number] <= length
        assert row.input_ids[-1] == 3
        assert row.documents is None
        if begin_id is not None:
            assert row.input_ids[0] == begin_id
        bodies.append(row.input_ids[first:-1])
        assert len(set(bodies[-1] // 1000)) == 1
        if not sentences:
            assert row.sentence_ends is None
            continue
        document = int(bodies[-1][0]) // 1000 - 1
        start = int(bodies[-1][0]) % 1000
        inside = [end - start + first for end in corpus.ends[document] if start < end < start + len(bodies[-1])]
        assert row.sentence_ends.tolist() == [*inside, first + len(bodies[-1])]
        # cut where no sentence ends only if one sentence fills the row
        if start + len(bodies[-1]) not in corpus.ends[document]:
            assert len(bodies[-1]) == body
            assert not inside
    assert np.array_equal(np.concatenate(bodies), np.concatenate([corpus.ids[i] for i in order]))


def test_by_hand():
    corpus = corpus_of_sentences([[3, 2, 5, 17, 4], [1]])
    rows = SentenceRows(corpus, np.arange(2), length=9, begin_id=2, end_id=3)  # 7 tokens of text
    assert [row.input_ids[1:-1].tolist() for row in map(rows.__getitem__, range(len(rows)))] == [
        [1000, 1001, 1002, 1003, 1004],
        [1005, 1006, 1007, 1008, 1009],
        [*range(1010, 1017)],
        [*range(1017, 1024)],
        [*range(1024, 1031)],  # what is left of the long sentence, and the next
        [2000],
    ]
    assert [row.sentence_ends.tolist() for row in map(rows.__getitem__, range(len(rows)))] == [
        [4, 6], [6], [8], [8], [4, 8], [2],
    ]  # fmt: skip


def test_without_sentences_a_document_is_cut_evenly():
    rows = SentenceRows(Lists([100]), np.arange(1), length=32, begin_id=None, end_id=3)
    assert rows.lengths.tolist() == [26, 26, 26, 26]


def test_they_are_built_of_a_corpus_and_travel(corpus_of):
    corpus = corpus_of(made_up(50), sentences=True)
    rows = SentenceRows(corpus, np.arange(len(corpus)), length=31, begin_id=2, end_id=3)
    again = pickle.loads(pickle.dumps(rows))
    assert len(rows) == len(again) > 50
    for number in (0, 7, len(rows) - 1):
        assert np.array_equal(rows[number].input_ids, again[number].input_ids)
        assert np.array_equal(rows[number].sentence_ends, again[number].sentence_ends)
    for number in (-1, len(rows)):
        with pytest.raises(IndexError):
            rows[number]


def test_rows_that_cannot_be(corpus_of):
    corpus = corpus_of(made_up(3))
    with pytest.raises(UserError, match=r"max_length=7 .*8 or more"):
        SentenceRows(corpus, np.arange(3), length=7, begin_id=None, end_id=3)
    with pytest.raises(UserError, match="no documents"):
        SentenceRows(corpus, np.arange(0), length=31, begin_id=None, end_id=3)
