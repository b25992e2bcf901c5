"""Recurrent models, by size.

The language models of Zaremba et al. 2014, section 4.1, are ``lstm-medium`` and ``lstm-large``; the translation model
of Bahdanau et al. 2015, section 4.2, is ``rnn-seq2seq-base``, with GRUs for its gated units. Tiny and mini are ours.
"""

from __future__ import annotations

from homespun.config import Tree


def _stack(cell: str, width: int, layers: int = 2, **fields: object) -> Tree:
    return {"kind": "recurrent", "cell": cell, "hidden_size": width, "num_hidden_layers": layers} | fields


def _two(width: int, embedding: int, *, attention: str = "additive") -> Tree:
    """Both of GRUs; each direction of the encoder is as wide as the decoder."""
    encoder = _stack("gru", 2 * width, 1, embedding_size=embedding, bidirectional=True)
    return {
        "kind": "encoder_decoder",
        "encoder": encoder,
        "decoder": {"hidden_size": width, "attention": {"kind": attention}},
    }


_SMALL = {"tiny": 128, "mini": 256}

RECURRENT: dict[str, Tree] = {
    **{f"{cell}-{size}": _stack(cell, width) for cell in ("rnn", "lstm", "gru") for size, width in _SMALL.items()},
    "lstm-medium": _stack("lstm", 650, hidden_dropout_prob=0.5),
    "lstm-large": _stack("lstm", 1500, hidden_dropout_prob=0.65),
    # of two directions half each: as wide, a direction, as the stack in one
    **{
        f"bi{cell}-{size}": _stack(cell, 2 * width, embedding_size=width, bidirectional=True)
        for cell in ("lstm", "gru")
        for size, width in _SMALL.items()
    },
    **{f"rnn-seq2seq-{size}": _two(width, width) for size, width in _SMALL.items()},
    "rnn-seq2seq-base": _two(1000, 620),
    "rnn-seq2seq-plain-mini": _two(256, 256, attention="none"),
}


def _elmo(width: int, cell: int, characters: Tree) -> Tree:
    """``width``: of a direction, and of the words."""
    return {
        "kind": "recurrent",
        "cell": "lstm",
        "hidden_size": 2 * width,
        "cell_size": cell,
        "num_hidden_layers": 2,
        "bidirectional": True,
        "independent_directions": True,
        "characters": characters,
    }


ELMO: dict[str, Tree] = {
    "elmo-tiny": _elmo(32, 64, {"max_word_length": 20, "filters": ((1, 8), (2, 16), (3, 24), (4, 16))}),
    "elmo-mini": _elmo(128, 512, {"max_word_length": 30, "filters": ((1, 16), (2, 32), (3, 64), (4, 64), (5, 80))}),
    "elmo-original": _elmo(512, 4096, {}),
}
