"""Rows of a stream: every token once, in order, whatever the shards; few shards mapped at a time."""

import numpy as np
import pytest
from made_up_texts import made_up

from homespun.data import corpus_build as store
from homespun.data import encoding, shards
from homespun.data.corpus import Corpus
from homespun.data.corpus_build import build_corpus
from homespun.data.stream_rows import StreamRows, split_shards
from homespun.errors import UserError


@pytest.fixture
def corpus(tmp_path, tokenizer, monkeypatch) -> Corpus:
    monkeypatch.setattr(store, "SHARD_TOKENS", 499)
    monkeypatch.setattr(encoding, "BATCH_CHARACTERS", 700)
    return build_corpus(made_up(61), tokenizer, tmp_path / "c")


def stream(corpus: Corpus, shard: int) -> np.ndarray:
    """Tokens of a shard with special tokens, and the number of their document."""
    first = int(corpus.records.documents[:shard].sum())
    cls, sep = corpus.tokenizer.cls_id, corpus.tokenizer.sep_id
    documents = [[cls, *corpus.tokens(first + d), sep] for d in range(corpus.records[shard].documents)]
    numbers = np.repeat(np.arange(len(documents)), [len(document) for document in documents])
    return np.stack([np.concatenate(documents), numbers])


@pytest.mark.parametrize("length", [8, 31, 128])
def test_rows_are_the_stream_in_pieces(corpus: Corpus, length: int) -> None:
    numbers = np.array([0, 2, 3])
    rows = StreamRows(corpus, numbers, length=length)
    assert rows.lengths.strides == (0,)
    index = 0
    for shard in numbers:
        ids, documents = stream(corpus, shard)
        for begin in range(0, len(ids), length):
            start = min(begin, len(ids) - length)
            row, index = rows[index], index + 1
            np.testing.assert_array_equal(row.input_ids, ids[start : start + length])
            expected = documents[start : start + length] - documents[start]
            np.testing.assert_array_equal(expected if expected[-1] else None, row.documents)
    assert index == len(rows)


def test_few_shards_are_mapped_at_a_time(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MAX_OPEN", 3)
    lazy = Corpus.open(corpus.path)
    assert len(lazy.shards) == len(corpus.records) > 9
    tokens = [lazy.tokens(index) for index in range(len(corpus))]  # views outlive their shard
    for index, found in enumerate(tokens):
        np.testing.assert_array_equal(found, corpus.tokens(index))
    np.testing.assert_array_equal(lazy.lengths, corpus.lengths)
    (corpus.path / corpus.records[5].name).unlink()
    with pytest.raises(UserError, match="missing"):
        Corpus.open(corpus.path)


def test_shards_are_split(corpus: Corpus) -> None:
    count = len(corpus.records)
    training, validation = split_shards(corpus, 0.3, seed=7)
    assert len(validation) == round(0.3 * count)
    assert sorted([*training, *validation]) == list(range(count))
    assert not np.array_equal(validation, split_shards(corpus, 0.3, seed=8)[1])


def test_what_has_no_rows_is_refused(corpus: Corpus, tmp_path, tokenizer, monkeypatch) -> None:
    with pytest.raises(UserError, match=r"max_length=9999"):
        StreamRows(corpus, np.arange(3), length=9999)
    monkeypatch.undo()
    one = build_corpus(made_up(3), tokenizer, tmp_path / "one")
    with pytest.raises(UserError, match=r"packing=documents"):
        split_shards(one, 0.02, seed=0)
