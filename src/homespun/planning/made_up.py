"""Text that means nothing, of any vocabulary and length: what is planned and probed on where there is none yet."""

from __future__ import annotations

import random
from collections.abc import Iterator

from homespun.text.tokenizer import Tokenizer

_SENTENCE = 23  # words


def made_up_tokenizer(vocab_size: int) -> Tokenizer:
    """A tokenizer of ``vocab_size`` tokens, one for each word of `made_up_text`."""
    words = (f"w{number}" for number in range(vocab_size))
    return Tokenizer.train([" ".join([".", *words])], kind="words", vocab_size=vocab_size, lowercase=True)


def made_up_texts(vocab_size: int, *, tokens: int, seed: int = 0) -> Iterator[str]:
    """Endless texts of ``tokens`` tokens each, in sentences, their words drawn alike."""
    draw = random.Random(seed)
    highest = max(1, vocab_size - 8)
    while True:
        words = [f"w{draw.randrange(highest)}" for _ in range(tokens)]
        for end in range(_SENTENCE, tokens, _SENTENCE):
            words[end - 1] = "."
            words[end] = words[end].capitalize()
        yield " ".join(words).replace(" .", ".")
