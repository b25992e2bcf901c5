"""Token classification: tag probabilities of words, and entities of tags."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from homespun.data.labels import Labels
from homespun.data.rows import pad
from homespun.data.token_labels import TokenLabelRows
from homespun.inference.predict import forward_logits
from homespun.models.model import Model


def predict_tag_probabilities(
    model: Model, rows: TokenLabelRows, *, tags: int, pad_id: int, batch_size: int = 32
) -> list[NDArray[np.float64]]:
    """Tag probabilities (words, tags) of each sentence; zeros for a word without tokens."""
    found = [np.zeros((len(sentence.words), tags)) for sentence in rows.sentences]
    for numbers, logits in forward_logits(model, rows, partial(pad, pad_id=pad_id), batch_size=batch_size):
        for number, values in zip(numbers, logits, strict=True):
            positions, words = rows.first_pieces(number)
            own = values[positions].astype(np.float64)
            own = np.exp(own - own.max(axis=1, keepdims=True))
            found[rows.owner(number)][words] = own / own.sum(axis=1, keepdims=True)
    return found


def decode_tags(probabilities: NDArray[np.float64], labels: Labels) -> list[str]:
    """Most probable tag of each word; ``O``, or else the first tag, for a word without tokens."""
    unseen = labels.names.index("O") if "O" in labels.names else 0
    numbers = np.where(probabilities.any(axis=1), probabilities.argmax(axis=1), unseen)
    return [labels.names[number] for number in numbers.tolist()]


def extract_entities(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """Entities of the tags: name, first and last word, as seqeval's default mode reads them.

    The schemes are IOB, IOBES and BILOU; ``I-`` after another name begins an entity, other tags are outside.
    """
    found: list[tuple[str, int, int]] = []
    open_name = ""
    for index, tag in enumerate(tags):
        mark, dash, name = tag.partition("-")
        if not dash or mark not in "BIESLU" or not name:
            open_name = ""
            continue
        goes_on = mark in "IEL" and open_name == name
        if goes_on:
            found[-1] = (name, found[-1][1], index)
        else:
            found.append((name, index, index))
        open_name = "" if mark in "ESLU" else name
    return found
