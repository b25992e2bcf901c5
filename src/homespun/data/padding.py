"""Padding of rows to a batch of tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from homespun.batch import Batch
from homespun.data.rows import Row


def pad(rows: Sequence[Row], pad_id: int) -> Batch:
    """Pad rows at the right to the longest: ids, mask, documents, positions, token types.

    In packed rows ``documents`` numbers the documents (padding: -1) and positions restart at each. Inputs that no row
    needs are None.
    """
    lengths = np.array([len(row.input_ids) for row in rows])
    shape = (len(rows), int(lengths.max()))
    input_ids = np.full(shape, pad_id, dtype=np.int64)
    for padded, row in zip(input_ids, rows, strict=True):
        padded[: len(row.input_ids)] = row.input_ids
    keep = np.arange(shape[1]) < lengths[:, None]
    documents = positions = segments = None
    if any(row.documents is not None and row.documents[-1] > 0 for row in rows):
        documents = np.full(shape, -1, dtype=np.int64)
        for padded, row in zip(documents, rows, strict=True):
            padded[: len(row.input_ids)] = 0 if row.documents is None else row.documents
        column = np.broadcast_to(np.arange(shape[1]), shape)
        begins = np.concatenate([np.ones((shape[0], 1), bool), documents[:, 1:] != documents[:, :-1]], axis=1)
        positions = column - np.maximum.accumulate(np.where(begins, column, 0), axis=1)
    if any(row.token_type_ids is not None for row in rows):
        segments = np.zeros(shape, dtype=np.int64)
        for padded, row in zip(segments, rows, strict=True):
            if row.token_type_ids is not None:
                padded[: len(row.token_type_ids)] = row.token_type_ids
    return Batch(
        input_ids=torch.from_numpy(input_ids),
        attention_mask=None if keep.all() else torch.from_numpy(keep),
        documents=None if documents is None else torch.from_numpy(documents),
        position_ids=None if positions is None else torch.from_numpy(positions),
        token_type_ids=None if segments is None else torch.from_numpy(segments),
    )
