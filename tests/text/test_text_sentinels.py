"""Sentinels: behind the ids that are there, counted down, never in a text, known to transformers as special."""

from pathlib import Path

import pytest

from homespun.choices import TokenizerKind
from homespun.errors import UserError
from homespun.text.tokenizer import KINDS, Tokenizer
from homespun.text.vocabulary_extension import extend, find_added_tokens, with_sentinels

TEXTS = [
    "The market rose and fell, while rates held steady in a quiet week of trade between two old houses.",
    "What comes of <extra_id_0> in a text? It is seven marks and words, and no token of its own.",
] * 3


def trained(kind: TokenizerKind, size: int = 0) -> Tokenizer:
    sizes = {"bpe": 290, "bpe-characters": 70, "wordpiece": 90, "unigram": 60, "words": 37}
    return Tokenizer.train(TEXTS, kind=kind, vocab_size=size or sizes[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_they_come_behind_and_change_nothing_else(kind: TokenizerKind, tmp_path: Path) -> None:
    before = trained(kind)
    after = with_sentinels(before, 7)
    assert after.vocab_size == before.vocab_size + 7
    assert after.sentinel_ids.tolist() == list(range(after.vocab_size - 1, before.vocab_size - 1, -1))
    assert after.special_mask[before.vocab_size :].all()
    assert (after.special_mask[: before.vocab_size] == before.special_mask).all()
    for one, other in zip(before.encode_batch(TEXTS), after.encode_batch(TEXTS), strict=True):
        assert one.tolist() == other.tolist()  # the one that stands in a text is ordinary characters
    assert after.decode(after.sentinel_ids[:1], skip_special_tokens=False) == "<extra_id_0>"
    assert after.decode([*before.encode_batch(TEXTS)[0], after.sentinel_ids[3]]) == before.decode(
        before.encode_batch(TEXTS)[0]
    )
    after.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.sentinel_ids.tolist() == after.sentinel_ids.tolist()
    assert again.fingerprint == after.fingerprint


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_can_go_on_with_them(kind: TokenizerKind) -> None:
    before = trained(kind)
    words = find_added_tokens(before, with_sentinels(before, 5))
    assert words.first == before.vocab_size
    assert len(words.pieces) == 5
    assert all(words.pieces)


def test_words_can_be_added_before_them_and_behind() -> None:
    before = trained("bpe")
    words = ["a steadiest, a steadiest; a marketplace, a marketplace"]
    first = with_sentinels(extend(before, words, 2)[0], 3)
    assert find_added_tokens(before, first) is not None
    assert first.sentinel_ids.tolist() == [first.vocab_size - 1, first.vocab_size - 2, first.vocab_size - 3]
    then = extend(with_sentinels(before, 3), words, 2)[0]
    assert then.sentinel_ids.tolist() == [before.vocab_size + 2, before.vocab_size + 1, before.vocab_size]
    assert find_added_tokens(before, then) is not None


def test_transformers_takes_them_for_special(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = with_sentinels(trained("bpe"), 4)
    tokenizer.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.convert_tokens_to_ids([f"<extra_id_{n}>" for n in range(4)]) == tokenizer.sentinel_ids.tolist()
    ids = [*tokenizer.encode_batch(["rates held"])[0].tolist(), int(tokenizer.sentinel_ids[2])]
    assert theirs.decode(ids, skip_special_tokens=True) == "rates held"


def test_what_cannot_be() -> None:
    before = trained("bpe")
    assert not len(before.sentinel_ids)
    with pytest.raises(UserError, match=r" 4 sentinels.*--sentinels"):
        with_sentinels(with_sentinels(before, 4), 4)
    with pytest.raises(UserError, match=r"--sentinels -1 .*1 or more"):
        with_sentinels(before, -1)
