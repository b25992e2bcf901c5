import pytest
from tiny_language import tiny_tokenizer

from homespun.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """24 words and the five special tokens."""
    return tiny_tokenizer()
