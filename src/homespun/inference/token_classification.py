"""The tags of words: probabilities word by word, and the spans of text that tags make together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from homespun.data.labels import Labels
from homespun.data.padding import pad
from homespun.data.token_labels import TokenLabelRows
from homespun.inference.logits import forward_logits
from homespun.models.model import Model


def predict_tag_probabilities(
    model: Model, rows: TokenLabelRows, *, tags: int, pad_id: int, batch_size: int = 32
) -> list[NDArray[np.float64]]:
    """(words, tags) of each sentence; zeros for a word without pieces, of which the model sees nothing."""
    found = [np.zeros((len(sentence.words), tags)) for sentence in rows.sentences]
    for numbers, logits in forward_logits(model, rows, partial(pad, pad_id=pad_id), batch_size=batch_size):
        for number, values in zip(numbers, logits, strict=True):
            places, words = rows.first_pieces(number)
            own = values[places].astype(np.float64)
            own = np.exp(own - own.max(axis=1, keepdims=True))
            found[rows.owner(number)][words] = own / own.sum(axis=1, keepdims=True)
    return found


def decode_tags(probabilities: NDArray[np.float64], labels: Labels) -> list[str]:
    """The likeliest tag of each word; of a word that the model sees nothing of ``O``, or the first tag."""
    unseen = labels.names.index("O") if "O" in labels.names else 0
    numbers = np.where(probabilities.any(axis=1), probabilities.argmax(axis=1), unseen)
    return [labels.names[number] for number in numbers.tolist()]


def extract_entities(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """What tags make together: a name, and its first and last word. ``I-`` after another name begins one too.

    Tags without ``B-`` and ``I-`` make nothing; IOBES and BILOU are understood. As seqeval reads them by default.
    """
    found: list[tuple[str, int, int]] = []
    open_name = ""
    for place, tag in enumerate(tags):
        mark, dash, name = tag.partition("-")
        if not dash or mark not in "BIESLU" or not name:
            open_name = ""
            continue
        goes_on = mark in "IEL" and open_name == name
        if goes_on:
            found[-1] = (name, found[-1][1], place)
        else:
            found.append((name, place, place))
        open_name = "" if mark in "ESLU" else name
    return found
