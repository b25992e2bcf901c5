"""ELMo, by size: words of characters under two language models that read in either direction.

The original is that of Peters et al. 2018, section 3.4, with the filters of the released checkpoint. Tiny and mini are
ours.
"""

from __future__ import annotations

from homespun.config import Tree


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
