"""Documents of made-up English, and a corpus of lists of ids."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from homespun.text.sources import Document

TEXT = "the market rose and fell while rates held steady in a quiet week of trade between two old houses"
WORDS = TEXT.split(" ")


def made_up(count: int, *, seed: int = 0, sentences: tuple[int, int] = (1, 7)) -> list[Document]:
    """Documents of a few sentences of made-up English, labelled by turns ``a``, ``b`` and not at all."""
    random = np.random.default_rng(seed)
    documents = []
    for i in range(count):
        lines = []
        for _ in range(random.integers(*sentences)):
            words = random.choice(WORDS, random.integers(3, 17))
            lines.append(" ".join(words).capitalize() + ".")
        documents.append(Document(" ".join(lines), label=("a", "b", None)[i % 3]))
    return documents


class Lists:
    """A corpus of lists of ids: document ``i`` is 1000 (i + 1) + 0, 1, ...; ``ends`` are the ends of its sentences."""

    path = Path("lists")

    class tokenizer:
        cls_id, sep_id = 2, 3

    def __init__(self, sizes: Sequence[int], ends: Sequence[Sequence[int]] | None = None) -> None:
        self.ids = [1000 * (i + 1) + np.arange(size, dtype=np.uint32) for i, size in enumerate(sizes)]
        self.lengths = np.array(sizes)
        self.has_sentences = ends is not None
        self.ends = [np.array(of_one, np.uint32) for of_one in ends or ()]

    def tokens(self, index: int) -> np.ndarray:
        return self.ids[index]

    def sizes(self, first: int, stop: int) -> np.ndarray:
        return self.lengths[first:stop]

    def sentence_ends(self, index: int) -> np.ndarray:
        return self.ends[index]
