"""Rows: no token lost, no documents joined, lengths known beforehand."""

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_texts import Lists, made_up

from homespun.data import packed_rows
from homespun.data.corpus_build import build_corpus
from homespun.data.document_set import DocumentSet, split_documents
from homespun.data.packed_rows import SHORTEST_PIECE, PackedRows
from homespun.data.rows import NextSentenceRows
from homespun.errors import UserError


def fill(rows: PackedRows) -> float:
    """Share of the tokens of all rows that are not padding."""
    return rows.num_tokens / (len(rows) * rows.length)


def pieces(row):
    """The documents' tokens in a row, with what surrounds them checked."""
    ids, documents = row.input_ids, row.documents
    documents = np.zeros(len(ids), np.int64) if documents is None else documents
    assert ids.dtype == documents.dtype == np.int64
    assert sorted(set(documents)) == list(range(documents.max() + 1))
    assert (np.diff(documents) >= 0).all()
    for number in range(documents.max() + 1):
        piece = ids[documents == number]
        assert (piece[0], piece[-1]) == (2, 3)
        yield piece[1:-1]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 90), min_size=2, max_size=40), st.sampled_from([8, 11, 31, 64, 128]), st.integers(1, 50))
def test_packed_rows_lose_nothing_and_join_nothing(sizes, length, blocks):
    corpus = Lists(sizes)
    documents, _ = split_documents(len(sizes), len(sizes) // 2, key=length)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_rows, "_BLOCKS", blocks)  # so that a block has several documents
        patch.setattr(packed_rows, "_CHUNK", blocks)
        rows = PackedRows(corpus, documents, length=length)
    seen = []
    for i in range(len(rows)):
        row = rows[i]
        assert len(row.input_ids) == rows.lengths[i] <= length
        if i < len(rows) - 1:
            assert len(row.input_ids) > length - max(min(SHORTEST_PIECE, length // 8), 3)
        for piece in pieces(row):
            assert len(set(piece // 1000)) == 1
            seen.append(piece)
    np.testing.assert_array_equal(np.concatenate(seen), np.concatenate([corpus.ids[d] for d in np.asarray(documents)]))
    assert fill(rows) == sum(rows.lengths) / (len(rows) * length)


def test_a_row_is_filled_with_the_beginning_of_the_next_document():
    rows = PackedRows(Lists([50, 50, 50]), DocumentSet.all(3), length=128)
    assert rows.lengths.tolist() == [128, 30]
    assert rows[0].documents.tolist() == [0] * 52 + [1] * 52 + [2] * 24
    np.testing.assert_array_equal(rows[1].input_ids, [2, *range(3022, 3050), 3])
    assert rows[1].documents is None


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 90), min_size=1, max_size=40), st.sampled_from([8, 11, 31, 64]))
def test_rows_are_cut_where_their_documents_go_on(sizes, length):
    rows = PackedRows(Lists(sizes), DocumentSet.all(len(sizes)), length=length)
    made = [rows[i] for i in range(len(rows))]
    assert (made[0].cut[0], made[-1].cut[1]) == (False, False)
    for row, following in itertools.pairwise(made):
        same = row.input_ids[-2] // 1000 == following.input_ids[1] // 1000
        assert row.cut[1] == following.cut[0] == same


def test_short_texts_are_packed_with_little_padding():
    sizes = np.random.default_rng(0).normal(50, 15, 5000).clip(5).astype(int)
    assert fill(PackedRows(Lists(sizes), DocumentSet.all(5000), length=128)) > 0.97


def test_packing_ten_million_rows_takes_a_second_and_little_memory(monkeypatch):
    monkeypatch.setattr(packed_rows, "_BLOCKS", 1000)
    corpus = Lists([])
    corpus.lengths = np.full(100_000, 3001)
    tracemalloc.start()
    try:
        rows = PackedRows(corpus, DocumentSet.all(100_000), length=32)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(rows) == pytest.approx(100_000 * 3001 / 30, rel=0.02)
    assert len(rows.lengths) == packed_rows.MEASURED
    assert fill(rows) == pytest.approx(rows.lengths.mean() / 32, rel=1e-3)
    assert peak < 50_000_000


@pytest.mark.parametrize("index", [-1, 3])
def test_there_is_no_row_outside(index):
    rows = PackedRows(Lists([300]), DocumentSet.all(1), length=102)
    assert len(rows) == 3
    with pytest.raises(IndexError):
        rows[index]


@pytest.mark.parametrize("kind", [PackedRows, lambda *a, **k: NextSentenceRows(*a, **k, seed=0)])
def test_rows_have_a_least_length(kind):
    with pytest.raises(UserError, match=" 8 or more"):
        kind(Lists([300, 300], [[300], [300]]), DocumentSet.all(2), length=7)


def test_less_than_a_row_is_a_short_row_and_nothing_is_an_error():
    assert PackedRows(Lists([50, 50]), DocumentSet.all(2), length=128).lengths.tolist() == [104]
    with pytest.raises(UserError, match="no documents"):
        PackedRows(Lists([50, 50]), DocumentSet.all(0), length=128)


# ---- pairs


def with_sentences(count, *, seed=0, longest=30, sentences=(1, 40)):
    random = np.random.default_rng(seed)
    ends = [np.cumsum(random.integers(1, longest, random.integers(*sentences))) for _ in range(count)]
    return Lists([e[-1] for e in ends], ends)


def parts(row):
    ids, types = row.input_ids, row.token_type_ids
    assert (np.diff(types) >= 0).all()
    a, b = ids[types == 0], ids[types == 1]
    assert (a[0], a[-1], b[-1]) == (2, 3, 3)
    return a[1:-1], b[:-1]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=9), min_size=2, max_size=9),
    st.sampled_from([8, 13, 64]),
    st.integers(0, 99),
)
def test_labels_of_pairs_are_right(sentences, length, seed):
    ends = [np.cumsum(s) for s in sentences]
    corpus = Lists([e[-1] for e in ends], ends)
    if all(len(e) < 2 for e in ends):
        with pytest.raises(UserError, match="two sentences"):
            NextSentenceRows(corpus, np.arange(len(ends)), length=length, seed=seed)
        return
    rows = NextSentenceRows(corpus, np.arange(len(ends)), length=length, seed=seed)
    firsts = set()
    for i in range(len(rows)):
        row = rows[i]
        assert row.input_ids.dtype == row.token_type_ids.dtype == np.int64
        assert len(row.input_ids) == len(row.token_type_ids) == rows.lengths[i] <= length
        a, b = parts(row)
        assert len(a) > 0
        assert len(b) > 0
        first, second = a[0] // 1000 - 1, b[0] // 1000 - 1
        firsts.add(first)
        for part in (a, b):
            assert (np.diff(part) == 1).all()
        assert a[-1] % 1000 + 1 in ends[first][:-1], "A ends where a sentence does, and not the last"
        assert b[0] % 1000 in [0, *ends[second]], "B begins where a sentence does"
        assert row.label == (first != second)
        if row.label == 0:
            assert b[0] == a[-1] + 1
    assert firsts == {i for i, e in enumerate(ends) if len(e) > 1}


def test_half_of_the_pairs_are_random():
    rows = NextSentenceRows(with_sentences(400), np.arange(400), length=64, seed=3)
    labels = np.array([rows[i].label for i in range(len(rows))])
    assert len(rows) > 2000
    assert abs(labels.mean() - 0.5) < 4 * 0.5 / len(rows) ** 0.5


def test_pairs_fill_their_length_but_for_one_in_ten():
    rows = NextSentenceRows(with_sentences(20, sentences=(300, 400)), np.arange(20), length=128, seed=3)
    assert 0.8 < (rows.lengths == 128).mean() < 0.93
    assert (rows.lengths < 64).mean() > 0.03


def test_the_length_of_a_pair_does_not_give_its_label_away():
    rows = NextSentenceRows(with_sentences(2000, sentences=(2, 5)), np.arange(2000), length=128, seed=3)
    labels = np.array([rows[i].label for i in range(len(rows))], bool)
    random, following = rows.lengths[labels].mean(), rows.lengths[~labels].mean()
    assert abs(random - following) < 0.12 * following


def test_pairs_are_a_function_of_the_seed():
    corpus = with_sentences(20)
    one, again, other = (NextSentenceRows(corpus, np.arange(20), length=64, seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one._spans, again._spans)
    assert one._spans.tolist() != other._spans.tolist()


def test_nearly_all_of_a_text_is_read():
    """What a random B took the place of comes again; only what short rows cut off is lost."""
    corpus = with_sentences(30, sentences=(5, 20))
    rows = NextSentenceRows(corpus, np.arange(30), length=128, seed=1)
    seen = {int(t) for i in range(len(rows)) for part in parts(rows[i]) for t in part}
    assert len(seen) > 0.96 * corpus.lengths.sum()


def test_pairs_need_sentences_and_two_documents(tmp_path, tokenizer):
    plain = build_corpus(made_up(7), tokenizer, tmp_path / "plain")
    with pytest.raises(UserError, match=r"--sentences"):
        NextSentenceRows(plain, np.arange(7), length=64, seed=0)
    with pytest.raises(UserError, match=r"two documents.* 1"):
        NextSentenceRows(with_sentences(1), np.arange(1), length=64, seed=0)


def test_rows_of_a_real_corpus(tmp_path, tokenizer):
    documents = made_up(60, sentences=(3, 9))
    corpus = build_corpus(documents, tokenizer, tmp_path / "c", sentences=True)
    train, _ = corpus.split(0.1, seed=0)
    packed = PackedRows(corpus, train, length=64)
    text = "".join(tokenizer.decode(packed[i].input_ids) for i in range(len(packed)))
    assert text == "".join(documents[i].text for i in train.indices())
    pairs = NextSentenceRows(corpus, train, length=64, seed=0)
    a, b = parts(pairs[0])
    assert tokenizer.decode(a).endswith(".")
    assert tokenizer.decode(b).startswith(" ") or pairs[0].label
