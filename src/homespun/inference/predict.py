"""Labels for texts: a stream in, a stream out, in the same order and in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray

from homespun.data.labels import LabelledRows, Labels
from homespun.data.long_inputs import TRUNCATE, LongInputs, pad_chunks
from homespun.data.rows import Rows
from homespun.inference.decision_rule import DEFAULT_RULE, DecisionRule
from homespun.inference.logits import forward_logits
from homespun.models.model import Model
from homespun.text.tokenizer import Tokenizer

_CHUNK = 4096  # texts sorted by length together: enough that hardly anything is padded, few enough to stream


@dataclass(frozen=True)
class Prediction:
    """What a classifier says about one text."""

    label: str | tuple[str, ...]  # the likeliest class; where a text may have several, those above their thresholds
    probability: float | None  # of `label`; None where a text may have several
    probabilities: dict[str, float]
    truncated: bool  # the text was longer than the model reads, and a part of it was left out


class Predictor:
    """A fine-tuned classifier with all that it needs to read raw text.

    Args:
        model: gives (batch, classes) logits; used where it is, on whatever device.
        tokenizer: the one it was trained with.
        labels: the classes of its logits.
        length: the greatest number of tokens that it is given at a time, special tokens included.
        long_inputs: what it reads of a longer text.
        decision: how its logits are read.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        labels: Labels,
        *,
        length: int,
        long_inputs: LongInputs = TRUNCATE,
        decision: DecisionRule = DEFAULT_RULE,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.labels = labels
        self.length = length
        self.long_inputs = long_inputs
        self.decision = decision

    def predict(self, texts: Iterable[str], *, batch_size: int = 32) -> Iterator[Prediction]:
        """One prediction a text, in the order of the texts, of which a few thousand are read ahead."""
        texts = iter(texts)
        while chunk := list(islice(texts, _CHUNK)):
            rows = LabelledRows(chunk, None, self.tokenizer, length=self.length, long_inputs=self.long_inputs)
            yield from self.predict_rows(rows, batch_size=batch_size)

    def predict_rows(self, rows: LabelledRows, *, batch_size: int = 32) -> Iterator[Prediction]:
        """One prediction a row, of texts or pairs that were read already."""
        logits = predict_logits(self.model, rows, pad_id=self.tokenizer.pad_id, batch_size=batch_size)
        table = probabilities(logits, self.labels, temperature=self.decision.temperature)
        for row, truncated in zip(table, rows.cut, strict=True):
            yield self._prediction(row, bool(truncated))

    def _prediction(self, row: NDArray[np.float64], truncated: bool) -> Prediction:
        likeliest = int(row.argmax())
        several = self.labels.multi_label
        return Prediction(
            label=self.labels.decode(self.decision.predict_labels(row) if several else likeliest),
            probability=None if several else float(row[likeliest]),
            probabilities=dict(zip(self.labels.names, row.tolist(), strict=True)),
            truncated=truncated,
        )


def predict_logits(model: Model, rows: Rows, *, pad_id: int, batch_size: int = 32) -> NDArray[np.float32]:
    """(rows, classes) logits in the order of the rows, without dropout or gradients.

    The rows go through the model sorted by length, so that next to nothing is padded, and the longest first, so that
    too large a batch fails at once. Every part of the model is afterwards in the mode that it was in before.
    """
    if not len(rows):
        raise ValueError("no rows to predict")
    result: NDArray[np.float32] | None = None
    for chosen, logits in forward_logits(model, rows, lambda part: pad_chunks(part, pad_id), batch_size=batch_size):
        if result is None:
            result = np.empty((len(rows), logits.shape[1]), dtype=np.float32)
        result[chosen] = logits
    assert result is not None
    return result


def probabilities(logits: NDArray[np.float32], labels: Labels, *, temperature: float = 1.0) -> NDArray[np.float64]:
    """(rows, classes): a softmax, or of each class a sigmoid where a text may have several, of logits / temperature."""
    values = torch.from_numpy(logits).double() / temperature
    result: NDArray[np.float64] = (values.sigmoid() if labels.multi_label else values.softmax(dim=1)).numpy()
    return result
