"""Recurrent stacks in small: plain ones, and such as read in two directions that stay apart (ELMo's)."""

import itertools
from typing import Any

import torch
from torch import Tensor

from homespun.models.backbone import Encoder
from homespun.models.recurrent import RecurrentConfig

VOCAB, SEQ, MAXIMUM, WIDTH = 53, 13, 31, 11
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 2 * WIDTH,
    "embedding_size": 17,
    "max_position_embeddings": MAXIMUM,
    "initializer_range": 0.5,
}
STACKS = {
    f"{cell}-{layers}{'-both' * both}": RecurrentConfig.model_validate(
        SIZES | {"cell": cell, "num_hidden_layers": layers, "bidirectional": both}
    )
    for cell, layers, both in itertools.product(("rnn", "lstm", "gru"), (1, 2), (False, True))
}
CHARACTERS = {"embedding_size": 5, "max_word_length": 7, "filters": ((1, 3), (2, 5), (3, 7)), "num_highway_layers": 2}
FIELDS: dict[str, Any] = SIZES | {"embedding_size": 0, "bidirectional": True, "independent_directions": True}
APART = {
    name: RecurrentConfig.model_validate(FIELDS | fields)
    for name, fields in {
        "elmo": {"characters": CHARACTERS, "cell_size": 17},
        "three layers": {"characters": CHARACTERS, "cell_size": 17, "num_hidden_layers": 3},
        "words": {"embedding_size": 7},
        "gru": {"cell": "gru", "characters": CHARACTERS},
    }.items()
}


def build(config: RecurrentConfig, seed: int = 1, **fields: Any) -> Encoder:
    torch.manual_seed(seed)
    return config.model_copy(update=fields).build().eval()


def some_ids(*shape: int, seed: int = 1) -> Tensor:
    return torch.randint(5, VOCAB, shape, generator=torch.Generator().manual_seed(seed))
