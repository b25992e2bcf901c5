"""A tokenizer of made-up texts, and corpora."""

from collections.abc import Callable
from pathlib import Path

import pytest
from made_up_texts import made_up

from homespun.data.corpus import Corpus
from homespun.data.corpus_build import build_corpus
from homespun.text.sources import Document
from homespun.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.train((d.text for d in made_up(200)), kind="bpe", vocab_size=300)


@pytest.fixture(scope="session")
def other_tokenizer() -> Tokenizer:
    return Tokenizer.train((d.text for d in made_up(200)), kind="bpe", vocab_size=307)


@pytest.fixture
def corpus_of(tmp_path: Path, tokenizer: Tokenizer) -> Callable[..., Corpus]:
    """Builds a corpus of texts or documents."""

    def build(documents: list[Document] | list[str], *, sentences: bool = False) -> Corpus:
        made = [Document(d) if isinstance(d, str) else d for d in documents]
        return build_corpus(made, tokenizer, tmp_path / "corpus", sentences=sentences)

    return build
