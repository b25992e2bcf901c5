"""Tests of the encoder that keeps the ids of words."""

import json
import threading
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Engine

from homespun.text import word_ids
from homespun.text.tokenizer import KINDS, Tokenizer
from homespun.text.word_ids import WordIds, encodes_words

WORDS = [f"{start}{end}{last}" for start in ("b", "ch", "d") for end in ("an", "o", "'s") for last in ("a", "", "33")]
TEXT = [" ".join(WORDS), "The fox's 2 cubs, 33 of them!  They\n\nran  \n home - to   Zürich. 中文 é ▁ Ġ"] * 3
KEEPING = {
    f"{kind}{'-lowercase' * lowercase}": Tokenizer.train(TEXT, kind=kind, vocab_size=size, lowercase=lowercase)
    for kind, size in dict(zip(KINDS, (280, 60, 80, 45, 30), strict=True)).items()
    for lowercase in (False, True)
}
PARTS = [*"ab 'é中.1\n\t\r\0\x1c▁Ġ", " ", " ", "  ", " \n", "\n ", "'s", "İ", "Σ", "[MASK]", "fox"]
PARTS += ["\u00a0", "\u2003", "\u0085", "\u200b", "\u0301", "\u00b4", "\ufdfa", "\ud800"]


def byte_level() -> Engine:
    engine = Engine(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=280, show_progress=False))
    return engine


def assert_as_engine(tokenizer: Tokenizer, texts: Sequence[str]) -> None:
    engine = Engine.from_str(tokenizer.content)
    engine.encode_special_tokens = True
    readable = [text.encode(errors="replace").decode() for text in texts]
    expected = [encoding.ids for encoding in engine.encode_batch_fast(readable, add_special_tokens=False)]
    encoded = tokenizer.encode_batch(texts)
    assert [ids.tolist() for ids in encoded] == expected
    assert all(ids.dtype == tokenizer.dtype and ids.flags.writeable for ids in encoded)


@pytest.mark.parametrize("tokenizer", KEEPING.values(), ids=KEEPING)
@given(st.lists(st.lists(st.sampled_from(PARTS), max_size=12).map("".join), max_size=6))
def test_ids_are_as_without_the_cache(tokenizer: Tokenizer, texts: list[str]) -> None:
    assert encodes_words(json.loads(tokenizer.content))
    assert_as_engine(tokenizer, texts)


@pytest.mark.parametrize("tokenizer", KEEPING.values(), ids=KEEPING)
def test_every_space_and_control_character(tokenizer: Tokenizer) -> None:
    characters = [
        chr(code) for code in range(0x110000) if chr(code).isspace() or unicodedata.category(chr(code)) == "Cf"
    ]
    texts = [text for c in characters for text in (f"a{c} b", f"a {c}b", f"a {c} b", f"a{c}b", f"{c} a {c}", f"a  {c}")]
    assert_as_engine(tokenizer, texts)


def test_no_other_character_becomes_a_space_at_its_end() -> None:
    """A word would then end in white space; see `encodes_words`."""
    others = [chr(code) for code in range(0x110000) if not chr(code).isspace()]
    for form in ("NFC", "NFD"):
        assert not any(space in unicodedata.normalize(form, c) for c in others for space in " \u00a0\u2003")


@pytest.mark.parametrize(
    ("change", "keeps"),
    [
        (lambda engine: None, True),
        (lambda engine: engine.add_tokens([AddedToken("two words")]), False),
        (lambda engine: engine.add_special_tokens([AddedToken("two words")]), True),
        (lambda engine: setattr(engine, "normalizer", normalizers.NFKC()), False),
        (lambda engine: setattr(engine, "normalizer", normalizers.Sequence([normalizers.Strip()])), False),
        (lambda engine: setattr(engine, "pre_tokenizer", pre_tokenizers.ByteLevel(False, use_regex=False)), False),
        (lambda engine: setattr(engine, "pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=True)), False),
        (lambda engine: setattr(engine, "pre_tokenizer", pre_tokenizers.Split(Regex(r"\w+ \w+"), "isolated")), False),
        (lambda engine: setattr(engine.model, "dropout", 0.5), False),
    ],
)
def test_others_are_encoded_text_by_text(change: Any, keeps: bool) -> None:
    engine = byte_level()
    change(engine)
    assert encodes_words(json.loads(engine.to_str())) is keeps


def test_no_pre_tokenizer_is_encoded_text_by_text() -> None:
    assert not encodes_words(json.loads(Engine(models.BPE()).to_str()))


def counting() -> tuple[WordIds, list[str]]:
    asked: list[str] = []

    def encode(texts: Sequence[str]) -> list[np.ndarray]:
        asked.extend(texts)
        return [np.array([len(text)] * (len(text) % 3), np.uint16) for text in texts]

    return WordIds(encode, np.dtype(np.uint16)), asked


def test_a_word_is_encoded_once() -> None:
    encode, asked = counting()
    assert [ids.tolist() for ids in encode(["one two two", "one"])] == [[4, 4], []]
    encode(["two two one", "and two"])
    assert sorted(asked) == [" one", " two", "and", "one", "two"]


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_ids, "_MOST_BYTES", 500)
    encode, asked = counting()
    for _ in range(2):
        for text in ("a b c", "d e f"):
            encode([text])
    assert len(asked) == 12


def test_threads_may_share_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_ids, "_MOST_BYTES", 2000)
    tokenizer = Tokenizer.train(TEXT, kind="bpe", vocab_size=280)
    texts = [" ".join(str(number * step) for number in range(40)) for step in range(1, 30)]
    expected = [ids.tolist() for ids in tokenizer.encode_batch(texts)]
    found: list[bool] = []

    def work() -> None:
        found.extend(
            tokenizer.encode_batch([text])[0].tolist() == ids for text, ids in zip(texts, expected, strict=True)
        )

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 * len(texts)
    assert all(found)
