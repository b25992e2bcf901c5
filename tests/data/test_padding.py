"""Rows side by side: what each part of a batch holds, and which parts are left out."""

import numpy as np
import torch

from homespun.data.rows import Row, pad

PAD = 3


def test_one_length_needs_no_mask() -> None:
    batch = pad([Row(np.array([7, 8, 9])), Row(np.array([5, 6, 7]))], PAD)
    assert batch.input_ids.tolist() == [[7, 8, 9], [5, 6, 7]]
    assert batch.input_ids.dtype == torch.int64
    for part in (batch.attention_mask, batch.documents, batch.position_ids, batch.token_type_ids, batch.labels):
        assert part is None


def test_padding_is_on_the_right() -> None:
    batch = pad([Row(np.array([7, 8, 9, 10, 11])), Row(np.array([5])), Row(np.array([], dtype=np.int64))], PAD)
    assert batch.input_ids.tolist() == [[7, 8, 9, 10, 11], [5] + 4 * [PAD], 5 * [PAD]]
    assert batch.attention_mask.dtype == torch.bool
    assert batch.attention_mask.sum(1).tolist() == [5, 1, 0]
    assert bool(batch.attention_mask[1, 0])
    assert batch.documents is None
    assert batch.position_ids is None


def test_positions_restart_at_every_packed_document() -> None:
    rows = [
        Row(np.arange(10, 17), documents=np.array([0, 0, 0, 1, 2, 2, 2])),
        Row(np.arange(20, 25)),
        Row(np.arange(30, 33), documents=np.array([0, 1, 1])),
    ]
    batch = pad(rows, PAD)
    assert batch.documents.tolist() == [[0, 0, 0, 1, 2, 2, 2], [0] * 5 + [-1] * 2, [0, 1, 1] + [-1] * 4]
    assert batch.position_ids.tolist()[0] == [0, 1, 2, 0, 0, 1, 2]
    assert batch.position_ids.tolist()[1][:5] == [0, 1, 2, 3, 4]
    assert batch.position_ids.tolist()[2][:3] == [0, 0, 1]
    assert int(batch.position_ids.max()) < 7  # at padding too they are places that exist


def test_a_single_document_needs_no_numbers() -> None:
    batch = pad([Row(np.arange(5), documents=np.zeros(5, dtype=np.int64)), Row(np.arange(3))], PAD)
    assert batch.documents is None
    assert batch.position_ids is None


def test_segments_are_zero_where_a_row_has_none() -> None:
    batch = pad([Row(np.arange(5), token_type_ids=np.array([0, 0, 1, 1, 1])), Row(np.arange(7))], PAD)
    assert batch.token_type_ids.tolist() == [[0, 0, 1, 1, 1, 0, 0], [0] * 7]


def test_ids_of_any_integer_type_and_read_only() -> None:
    ids = np.arange(5, dtype=np.uint16)
    ids.setflags(write=False)
    batch = pad([Row(ids), Row(np.arange(3, dtype=np.int32))], PAD)
    assert batch.input_ids.dtype == torch.int64
    batch.input_ids[0, 0] = 9
    assert int(ids[0]) == 0
