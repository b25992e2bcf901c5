"""Sizes, inputs and recurrent stacks for tests of small models; sizes are distinct, so that mixed-up axes show."""

import itertools
from typing import Any

import torch
from torch import Tensor

from homespun.models.backbone import Encoder
from homespun.models.recurrent import RecurrentConfig

VOCAB, SEQ, MAXIMUM, WIDTH = 53, 13, 31, 11
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 44,
    "num_attention_heads": 2,
    "intermediate_size": 23,
    "num_hidden_layers": 2,
    "max_position_embeddings": MAXIMUM,
    "initializer_range": 0.3,  # attention far from uniform, so that each visible token changes the output
}
RECURRENT_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 2 * WIDTH,
    "embedding_size": 17,
    "max_position_embeddings": MAXIMUM,
    "initializer_range": 0.5,
}
STACKS = {
    f"{cell}-{layers}{'-both' * both}": RecurrentConfig.model_validate(
        RECURRENT_SIZES | {"cell": cell, "num_hidden_layers": layers, "bidirectional": both}
    )
    for cell, layers, both in itertools.product(("rnn", "lstm", "gru"), (1, 2), (False, True))
}
CHARACTERS = {"embedding_size": 5, "max_word_length": 7, "filters": ((1, 3), (2, 5), (3, 7)), "num_highway_layers": 2}
TWO_DIRECTIONS: dict[str, Any] = RECURRENT_SIZES | {
    "embedding_size": 0,
    "bidirectional": True,
    "independent_directions": True,
}
INDEPENDENT = {
    name: RecurrentConfig.model_validate(TWO_DIRECTIONS | fields)
    for name, fields in {
        "elmo": {"characters": CHARACTERS, "cell_size": 17},
        "three layers": {"characters": CHARACTERS, "cell_size": 17, "num_hidden_layers": 3},
        "words": {"embedding_size": 7},
        "independent-gru": {"cell": "gru", "characters": CHARACTERS},
    }.items()
}


def build(config: RecurrentConfig, **fields: Any) -> Encoder:
    torch.manual_seed(1)
    return config.model_copy(update=fields).build().eval()


def some_ids(*shape: int, seed: int = 1, vocab_size: int = VOCAB) -> Tensor:
    return torch.randint(5, vocab_size, shape, generator=torch.Generator().manual_seed(seed))


def changed(ids: Tensor, place: int) -> Tensor:
    """``ids`` (batch, seq) with other tokens at one place."""
    other = ids.clone()
    other[:, place] = (ids[:, place] - 5 + 17) % (VOCAB - 5) + 5
    return other


def kept(length: int, *lengths: int) -> Tensor:
    """(batch, length) bool: texts of these lengths, padded on the right."""
    return torch.arange(length) < torch.tensor(lengths)[:, None]
