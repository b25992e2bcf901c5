"""Tokenizers that are not learnt: every byte, character or word has its own token, and comes back from a folder."""

import pickle
from pathlib import Path

import pytest
from benchmarks.lra.fixed_vocabularies import byte_tokenizer, character_tokenizer, word_tokenizer

from homespun.text.tokenizer import Tokenizer

MADE = {
    "bytes": byte_tokenizer(),
    "characters": character_tokenizer([chr(code) for code in range(256)]),
    "words": word_tokenizer(["[MAX", "]", "7"], ignored="()"),
}


def test_a_token_a_byte() -> None:
    text = "Zürich [MASK]\n\x00 \t 日本 😀  end "
    (ids,) = MADE["bytes"].encode_batch([text])
    assert len(ids) == len(text.encode())
    assert MADE["bytes"].decode(ids) == text
    assert MADE["bytes"].vocab_size == 256 + 5
    assert not set(ids.tolist()) & set(range(5))


def test_a_token_a_character() -> None:
    every = bytes(range(256)).decode("latin-1")
    ids, unknown = MADE["characters"].encode_batch([every, "日"])
    assert ids.tolist() == list(range(5, 261))
    assert unknown.tolist() == [MADE["characters"].unk_id]
    assert MADE["characters"].decode(ids) == every


def test_a_token_a_word_and_nothing_for_what_is_ignored() -> None:
    ids, unknown = MADE["words"].encode_batch(["( ( [MAX 7 ) ] )", "[MAX 77"])
    assert ids.tolist() == [5, 7, 6]
    assert unknown.tolist() == [5, MADE["words"].unk_id]


@pytest.mark.parametrize("name", MADE)
def test_they_come_back(name: str, tmp_path: Path) -> None:
    MADE[name].save(tmp_path)
    for again in (Tokenizer.load(tmp_path), pickle.loads(pickle.dumps(MADE[name]))):
        assert again.fingerprint == MADE[name].fingerprint
        assert (again.pad_id, again.unk_id, again.cls_id, again.sep_id, again.mask_id) == (0, 1, 2, 3, 4)
