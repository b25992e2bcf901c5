"""Documents of made-up English."""

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
