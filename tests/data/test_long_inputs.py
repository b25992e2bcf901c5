"""Texts longer than the model: pieces, rows, batches, refusals."""

from typing import Any, get_args

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from homespun.batch import Batch, RowSeed
from homespun.commands.recipe import load_recipe
from homespun.data.labels import LabelledRows
from homespun.data.loader import Loader
from homespun.data.long_inputs import ChunkMean, ChunkPool, HeadTail, LongInputs, Truncate, pad_chunks
from homespun.data.rows import Row
from homespun.errors import UserError
from homespun.tasks.stored_data import StoredData, stored_data
from homespun.tasks.texts import LabelledData

KINDS = get_args(get_args(LongInputs)[0])
EXAMPLES = [*(kind() for kind in KINDS), HeadTail(head=0.0), HeadTail(head=0.99), ChunkMean(chunks=1)]
EXAMPLES += [ChunkMean(chunks=3, overlap=0.5), ChunkPool(chunks=5, overlap=0.9, layers=2)]
EXAMPLES += [kind(chunks=2) for kind in (ChunkMean, ChunkPool)]


class Letters:
    """A tokenizer in miniature: one id a letter."""

    vocab_size, pad_id, dtype = 40, 0, np.dtype(np.int64)
    template, pair_template = ([2], [3]), ([2], [3], [3])

    def encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        return [np.array([ord(letter) - 90 for letter in text], dtype=np.int64) for text in texts]


tokenizer: Any = Letters()


def rows(texts: list[str], long_inputs: Any, length: int = 9) -> LabelledRows:
    return LabelledRows(texts, None, tokenizer, length=length, long_inputs=long_inputs)


class TestPieces:
    @pytest.mark.parametrize("long_inputs", EXAMPLES, ids=str)
    @pytest.mark.parametrize("room", [6, 7, 126])
    def test_of_texts_of_every_length(self, long_inputs: Any, room: int) -> None:
        for size in (*range(3 * room), 20 * room):
            ids = np.arange(size)
            pieces = long_inputs.pieces(ids, room)
            read = np.unique(np.concatenate(pieces))
            assert len(pieces) >= 1
            assert all(len(piece) == room for piece in pieces[:-1])
            assert len(pieces[-1]) <= room
            assert len(read) == min(size, long_inputs.reach(room))
            if size <= room:
                assert [piece.tolist() for piece in pieces] == [ids.tolist()]

    def test_head_and_tail_are_the_paper_s(self) -> None:
        (piece,) = HeadTail().pieces(np.arange(1000), 510)
        assert piece.tolist() == [*range(128), *range(1000 - 382, 1000)]
        (piece,) = HeadTail(head=0.0).pieces(np.arange(1000), 510)
        assert piece.tolist() == list(range(490, 1000))

    def test_chunks_overlap(self) -> None:
        pieces = ChunkMean(chunks=3, overlap=0.5).pieces(np.arange(15), 6)
        assert [piece.tolist() for piece in pieces] == [[0, 1, 2, 3, 4, 5], [3, 4, 5, 6, 7, 8], [6, 7, 8, 9, 10, 11]]
        pieces = ChunkMean(overlap=0.5).pieces(np.arange(10), 6)
        assert [piece.tolist() for piece in pieces][1:] == [[3, 4, 5, 6, 7, 8], [6, 7, 8, 9]]


class TestRows:
    def test_a_row_holds_its_chunks_one_after_the_other(self) -> None:
        made = rows(["abcdefghij", "klm", "a" * 100], ChunkMean(chunks=3), length=6)
        assert made.lengths.tolist() == [16, 5, 18]
        row = made[0]
        assert row.input_ids.tolist() == [2, 7, 8, 9, 10, 3, 2, 11, 12, 13, 14, 3, 2, 15, 16, 3]
        assert row.documents.tolist() == [0] * 6 + [1] * 6 + [2] * 4
        assert made[1].documents is None
        assert made.cut.tolist() == [False, False, True]

    @pytest.mark.parametrize(
        ("long_inputs", "counts"),
        [
            (Truncate(), {"longer": 2, "truncated": 2, "chunked": 0}),
            (HeadTail(), {"longer": 2, "truncated": 2, "chunked": 0}),
            (ChunkMean(chunks=2), {"longer": 2, "truncated": 1, "chunked": 2}),
            (ChunkPool(), {"longer": 2, "truncated": 0, "chunked": 2}),
            (ChunkMean(chunks=1), {"longer": 2, "truncated": 2, "chunked": 0}),
        ],
    )
    def test_counts(self, long_inputs: Any, counts: dict[str, int]) -> None:
        made = rows(["a" * size for size in (0, 7, 8, 15)], long_inputs)
        assert made.counts == counts
        assert made.truncated == counts["truncated"]

    @pytest.mark.parametrize("size", [0, 1, 7, 8, 40])
    def test_one_chunk_is_truncation(self, size: int) -> None:
        text = ["abcdefghijklmnopqrstu"[:size] * 2]
        one, other = rows(text, ChunkMean(chunks=1))[0], rows(text, Truncate())[0]
        assert one.input_ids.tolist() == other.input_ids.tolist()
        assert one.documents is None

    @pytest.mark.parametrize("long_inputs", [HeadTail(), ChunkMean(), ChunkPool()])
    def test_pairs_are_truncated_only(self, long_inputs: Any) -> None:
        with pytest.raises(UserError, match=rf"{long_inputs.kind}.* kind=truncate"):
            LabelledRows(["a"], None, tokenizer, length=9, long_inputs=long_inputs, pairs=["b"])


class TestBatches:
    def test_a_sequence_a_chunk(self) -> None:
        made = rows(["abcdefghij", "klm", "nopqrstu"], ChunkPool(), length=6)
        batch = pad_chunks([made[0], made[1], made[2]], 0)
        assert batch.chunks.tolist() == [[0, 1, 2], [3, -1, -1], [4, 5, -1]]
        assert batch.input_ids.shape == (6, 6)
        assert batch.input_ids[2].tolist() == [2, 15, 16, 3, 0, 0]
        assert int(batch.attention_mask.sum()) == int(made.lengths.sum())
        assert (batch.documents, batch.position_ids) == (None, None)
        assert batch.num_rows == 3
        assert batch.to("meta").chunks is not None

    def test_short_texts_make_a_plain_batch(self) -> None:
        made = rows(["ab", "", "abcdefg"], ChunkPool())
        batch = pad_chunks([made[0], made[1], made[2]], 0)
        assert batch.chunks is None
        assert batch.num_rows == 3

    def test_micro_batches_count_texts_and_little_is_padded(self) -> None:
        generator = np.random.default_rng(3)
        made = rows(["a" * size for size in generator.integers(0, 200, 640)], ChunkMean(chunks=16), length=16)

        def collate(batch_rows: Any, row_seeds: list[RowSeed]) -> Batch:
            return pad_chunks(batch_rows, 0)

        loader = Loader(made, collate, batch_size=16, micro_batch_size=4, seed=1, order="bucketed")
        parts = [part for number in range(loader.steps_per_epoch) for part in loader.step(number)]
        assert [part.num_rows for part in parts] == [4] * 160
        real = sum(part.num_tokens if (m := part.attention_mask) is None else int(m.sum()) for part in parts)
        assert real == made.lengths.sum()
        assert 1 - real / sum(part.num_tokens for part in parts) < 0.1  # only last chunks are padded


class StoredTexts(StoredData):
    data: LabelledData


class TestSettings:
    @pytest.mark.parametrize("long_inputs", EXAMPLES, ids=str)
    def test_a_model_remembers_its_setting(self, long_inputs: Any) -> None:
        task = LabelledData(max_length=9, truncation=long_inputs).stored_settings()
        data = stored_data(StoredTexts, task, source="x")
        assert isinstance(data, LabelledData)
        assert data.truncation == long_inputs

    def test_a_model_without_one_truncates(self) -> None:
        data = stored_data(StoredTexts, {"max_length": 9}, source="x")
        assert isinstance(data, LabelledData)
        assert data.truncation == Truncate()

    def test_a_damaged_one_is_one_line(self) -> None:
        with pytest.raises(UserError, match=r"^runs/a: data\.truncation\.kind: .*'chunk_max'.*'chunk"):
            stored_data(StoredTexts, {"truncation": {"kind": "chunk_max"}}, source="runs/a")

    def test_an_unknown_kind_or_key_names_the_nearest(self) -> None:
        with pytest.raises(UserError, match=r"data\.truncation\.kind: .*'headtail'.*'head_tail'"):
            load_recipe("classify", ["data.truncation.kind=headtail"])
        with pytest.raises(UserError, match=r"data\.truncation\.overlp'.*'data\.truncation\.overlap'"):
            load_recipe("classify", ["data.truncation.kind=chunk_mean", "data.truncation.overlp=0.1"])

    @pytest.mark.parametrize(
        "given",
        [
            {"kind": "truncate", "chunks": 3},
            {"kind": "head_tail", "head": 1.0},
            {"kind": "head_tail", "head": -0.1},
            {"kind": "head_tail", "head": float("nan")},
            {"kind": "chunk_mean", "chunks": 0},
            {"kind": "chunk_mean", "chunks": 2000},
            {"kind": "chunk_mean", "chunks": 1.5},
            {"kind": "chunk_mean", "overlap": 1.0},
            {"kind": "chunk_mean", "overlap": -0.5},
            {"kind": "chunk_mean", "layers": 1},
            {"kind": "chunk_pool", "layers": 0},
            {},
        ],
    )
    def test_bad_numbers_are_refused(self, given: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            TypeAdapter[Any](LongInputs).validate_python(given)


def test_a_packed_row_of_other_sizes_is_split_where_its_documents_change() -> None:
    row = Row(np.array([2, 7, 3, 2, 8, 9, 3]), documents=np.array([0, 0, 0, 1, 1, 1, 1]))
    batch = pad_chunks([row], 0)
    assert batch.input_ids.tolist() == [[2, 7, 3, 0], [2, 8, 9, 3]]
    assert torch.equal(batch.chunks, torch.tensor([[0, 1]]))
