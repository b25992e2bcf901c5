"""Forward passes over rows, without dropout and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from homespun.batch import Batch
from homespun.data.rows import Row, Rows
from homespun.errors import NotFinite
from homespun.models.model import Model, eval_mode


def forward_logits(
    model: Model, rows: Rows, to_batch: Callable[[Sequence[Row]], Batch], *, batch_size: int
) -> Iterator[tuple[list[int], NDArray[np.float32]]]:
    """Yield row numbers and their logits (rows, ...), a batch at a time.

    Rows are sorted by length, to save padding, the longest first, so that too large a batch fails at once. All modules
    are in evaluation mode meanwhile, and then in their previous mode.

    Raises:
        NotFinite: a logit is not finite.
    """
    device = next(model.parameters()).device
    order = np.argsort(-rows.lengths, kind="stable").tolist()
    with eval_mode(model):
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            batch = to_batch([rows[index] for index in chosen]).to(device)
            logits = model(batch.input_ids, **batch.context, chunks=batch.chunks).float().cpu().numpy()
            if not np.isfinite(logits).all():
                raise NotFinite(
                    "what the model says of a row is not finite; train it again, with a lower "
                    "train.optimizer.learning_rate"
                )
            yield chosen, logits
