"""Vectors of texts by pooling the hidden states of a network."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from homespun.data.long_inputs import pad_chunks
from homespun.data.rows import Rows
from homespun.errors import UserError
from homespun.models.model import Model, eval_mode
from homespun.models.sequence_heads import PICKS


def embed_rows(
    model: Model, rows: Rows, *, pad_id: int, poolings: Sequence[str] = ("mean",), batch_size: int = 32
) -> dict[str, NDArray[np.float32]]:
    """Compute (rows, hidden) vectors for each pooling, one forward pass for all.

    Args:
        model: an encoder or a decoder, used on its device.
        rows: texts of one chunk each.
        pad_id: token of padding.
        poolings: names of `homespun.models.sequence_heads.PICKS`: ``mean``, ``first``, ``last``.
        batch_size: rows at a time, of similar length.

    Raises:
        UserError: an unknown pooling.
    """
    for name in poolings:
        if name not in PICKS:
            raise UserError(f"pooling={name!r} must be one of {', '.join(PICKS)}")
    device = next(model.parameters()).device
    order = np.argsort(-rows.lengths, kind="stable").tolist()
    found: dict[str, NDArray[np.float32]] = {}
    with eval_mode(model):
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            batch = pad_chunks([rows[index] for index in chosen], pad_id).to(device)
            hidden = model.read(batch.input_ids, batch.context)
            for name in poolings:
                vectors = PICKS[name](hidden, batch.attention_mask).float().cpu().numpy()
                table = found.setdefault(name, np.empty((len(rows.lengths), vectors.shape[1]), dtype=np.float32))
                table[chosen] = vectors
    return found
