"""Forward passes over rows: logits and text vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
from numpy.typing import NDArray

from homespun.batch import Batch
from homespun.data.long_inputs import pad_chunks
from homespun.data.rows import Row, Rows
from homespun.errors import NotFinite, UserError
from homespun.models.model import Model
from homespun.models.sequence_heads import PICKS
from homespun.nn.eval_mode import eval_mode
from homespun.nn.packed import MIN_NUMBERS, packed_linears

_EMBEDDED = 32  # rows of a batch of `embed_rows`
_PACKED_TOKENS = 2_048  # from which packing the linear layers for one call saves time
_CPU_UNPADDED = 1_024  # tokens of a batch on a CPU for models that compute no padding
_CPU_TOKENS, _CPU_NUMBERS = 256, 2**17
"""Padded tokens of a batch on a CPU for other models, or numbers of its hidden states; more have more padding, and take
up to 40 % longer.
"""


def forward_logits(
    model: Model, rows: Rows, to_batch: Callable[[Sequence[Row]], Batch], *, batch_size: int
) -> Iterator[tuple[list[int], NDArray[np.float32]]]:
    """Yield row indices and (rows, ...) logits of each batch, in evaluation mode.

    Rows are sorted by length to reduce padding, the longest first, so that a batch that is too large fails immediately.

    Raises:
        NotFinite: a logit is not finite.
    """
    with _for_inference(model, rows):
        for indices, batch in _batches(model, rows, to_batch, batch_size):
            logits = model(batch.input_ids, **batch.context, chunks=batch.chunks).float().cpu().numpy()
            if not np.isfinite(logits).all():
                raise NotFinite("a logit of the model is not finite; train with a lower train.optimizer.learning_rate")
            yield indices, logits


@contextmanager
def _for_inference(model: Model, rows: Rows) -> Iterator[None]:
    """Context of evaluation mode; its linear layers are packed if there are enough tokens."""
    with eval_mode(model):
        if rows.lengths.sum() < _PACKED_TOKENS:
            yield
        else:
            with packed_linears(model, min_numbers=MIN_NUMBERS):
                yield


def _batches(
    model: Model, rows: Rows, to_batch: Callable[[Sequence[Row]], Batch], batch_size: int
) -> Iterator[tuple[list[int], Batch]]:
    device = next(model.parameters()).device
    order = np.argsort(-rows.lengths, kind="stable").tolist()
    unpadded = all(stack.reads_unpadded for stack in model.backbone.stacks)
    tokens = _CPU_UNPADDED if unpadded else max(_CPU_TOKENS, _CPU_NUMBERS // model.backbone.hidden_size)
    start = 0
    while start < len(order):
        count = batch_size
        if device.type == "cpu":
            count = min(count, max(1, tokens // max(1, int(rows.lengths[order[start]]))))
        indices = order[start : start + count]
        yield indices, to_batch([rows[index] for index in indices]).to(device)
        start += count


def embed_rows(
    model: Model, rows: Rows, *, pad_id: int, poolings: Sequence[str] = ("mean",)
) -> dict[str, NDArray[np.float32]]:
    """Pool the last hidden states of each row to (rows, hidden) vectors, for several poolings in one forward pass.

    Args:
        model: an encoder or a decoder, used on its device.
        rows: texts of one chunk.
        pad_id: padding token.
        poolings: names of `homespun.models.sequence_heads.PICKS`: ``mean``, ``first``, ``last``.

    Raises:
        UserError: an unknown pooling.
    """
    for name in poolings:
        if name not in PICKS:
            raise UserError(f"pooling={name!r} must be one of {', '.join(PICKS)}")
    shape = len(rows.lengths), model.backbone.hidden_size
    result = {name: np.empty(shape, dtype=np.float32) for name in poolings}
    with _for_inference(model, rows):
        for indices, batch in _batches(model, rows, partial(pad_chunks, pad_id=pad_id), _EMBEDDED):
            hidden = model.backbone(batch.input_ids, **batch.context)  # also for heads that read other layers
            for name in poolings:
                result[name][indices] = PICKS[name](hidden, batch.attention_mask).float().cpu().numpy()
    return result


def predict_logits(model: Model, rows: Rows, *, pad_id: int, batch_size: int = 32) -> NDArray[np.float32]:
    """Compute (rows, classes) logits in the order of the rows, by `forward_logits`."""
    if not len(rows):
        raise ValueError("no rows to predict")
    result: NDArray[np.float32] | None = None
    for indices, logits in forward_logits(model, rows, partial(pad_chunks, pad_id=pad_id), batch_size=batch_size):
        if result is None:
            result = np.empty((len(rows), logits.shape[1]), dtype=np.float32)
        result[indices] = logits
    assert result is not None
    return result
