"""Corpora of texts with known neighbours of each word."""

import random
from collections.abc import Sequence
from pathlib import Path

from homespun.choices import TokenizerKind
from homespun.data.corpus import Corpus
from homespun.data.corpus_build import build_corpus
from homespun.text.sources import Document
from homespun.text.tokenizer import Tokenizer

ANIMALS, TOOLS = ["cat", "dog", "cow", "hen"], ["saw", "axe", "file", "rasp"]
OF_ANIMALS, OF_TOOLS = ["eats", "runs", "sleeps", "breathes"], ["cuts", "lies", "rusts", "breaks"]


def two_topics(documents: int, seed: int = 0) -> list[str]:
    """Sentences of animals and sentences of tools, which share only their small words."""
    draw = random.Random(seed)
    found = []
    for _ in range(documents):
        names, verbs = draw.choice([(ANIMALS, OF_ANIMALS), (TOOLS, OF_TOOLS)])
        words = [draw.choice(names) if place % 2 else draw.choice(verbs) for place in range(10)]
        found.append(" ".join(["The", *words]) + ".")
    return found


def corpus_of(texts: Sequence[str], folder: Path, *, kind: TokenizerKind = "words", vocab_size: int = 0) -> Corpus:
    """A corpus of the texts. Without a size a `words` vocabulary has all of them."""
    size = vocab_size or 5 + len({word for text in texts for word in text.replace(".", " .").split()})
    tokenizer = Tokenizer.train(texts, kind=kind, vocab_size=size)
    return build_corpus([Document(text) for text in texts], tokenizer, folder)
