"""New words: old ids stay, other words are cut as before, texts come back, the most pieces are saved."""

import json
import pickle
from pathlib import Path

import pytest

from homespun.errors import UserError
from homespun.text import vocabulary_extension
from homespun.text.tokenizer import KINDS, Tokenizer
from homespun.text.vocabulary_extension import Word, extend, find_added_tokens

OLD = ["the quick brown fox jumps over the lazy dog, and the dog sleeps well"] * 7
NEW = [
    "The stenosis of the aorta, the aortic stenosis. A tachycardia!",
    "A tachycardia, (tachycardia) stenosis fox",
    "stenoses, a stenosis and a stenosis and a stenosis",
]
SIZES = {"bpe": 283, "bpe-characters": 61, "wordpiece": 61, "unigram": 33, "words": 17}


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer.train(OLD, kind=request.param, vocab_size=SIZES[request.param], lowercase=True)


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return [int(i) for i in tokenizer.encode_batch([text])[0]]


def test_old_ids_stay_and_old_words_are_cut_as_before(tokenizer: Tokenizer) -> None:
    extended, words = extend(tokenizer, NEW, 2)
    assert extended.vocab_size == tokenizer.vocab_size + 2
    assert extended.kind == tokenizer.kind
    assert [w.token.strip("Ġ▁") for w in words] == ["stenosis", "tachycardia"]
    for text in (*OLD, "stenose tachycard aorta", "a [MASK] and a fox", ""):
        assert ids(extended, text) == ids(tokenizer, text)
    assert (extended.special_mask[: tokenizer.vocab_size] == tokenizer.special_mask).all()
    assert not extended.special_mask[tokenizer.vocab_size :].any()
    assert extended.word_starts[tokenizer.vocab_size :].all()
    assert (extended.pad_id, extended.mask_id, extended.cls_id) == (
        tokenizer.pad_id,
        tokenizer.mask_id,
        tokenizer.cls_id,
    )


def test_a_new_word_is_one_token_and_comes_back(tokenizer: Tokenizer) -> None:
    extended, _ = extend(tokenizer, NEW, 2)
    first = tokenizer.vocab_size
    text = "the fox and stenosis, the fox and TACHYCARDIA"
    assert [i for i in ids(extended, text) if i >= first] == [first, first + 1]
    if tokenizer.kind == "words":
        assert extended.decode(ids(extended, "stenosis")) == "stenosis"
    else:
        assert extended.decode(ids(extended, text)) == tokenizer.decode(ids(tokenizer, text))
        saved = len(ids(tokenizer, text)) - len(ids(extended, text))
        assert saved == len(ids(tokenizer, " stenosis")) + len(ids(tokenizer, " tachycardia")) - 2


def test_it_is_saved_and_loaded_and_pickled(tokenizer: Tokenizer, tmp_path: Path) -> None:
    extended, _ = extend(tokenizer, NEW, 2)
    extended.save(tmp_path)
    for again in (Tokenizer.load(tmp_path), pickle.loads(pickle.dumps(extended))):
        assert again.fingerprint == extended.fingerprint
        assert ids(again, NEW[0]) == ids(extended, NEW[0])
    assert extended.fingerprint == extend(tokenizer, iter(NEW), 2)[0].fingerprint


def test_transformers_reads_the_same_ids(tokenizer: Tokenizer, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    extended, _ = extend(tokenizer, NEW, 2)
    extended.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in (*NEW, *OLD[:1]):
        assert theirs(text, add_special_tokens=False)["input_ids"] == ids(extended, text)


def test_the_words_that_save_most_are_taken() -> None:
    tokenizer = Tokenizer.train(OLD, kind="bpe", vocab_size=283)
    _, words = extend(tokenizer, [" stenosis"] * 5 + [" aorta"] * 13 + [" rarely"], 2)
    assert [(word.token, word.count) for word in words] == [("Ġaorta", 13), ("Ġstenosis", 5)]
    assert [word.gain for word in words] == sorted((word.gain for word in words), reverse=True)
    assert words[0].gain == 13 * (len(ids(tokenizer, " aorta")) - 1)
    assert Word("x", 3, 1).gain == 3


def test_memory_is_bounded_and_no_frequent_word_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary_extension, "_CAPACITY", 17)
    tokenizer = Tokenizer.train(OLD, kind="wordpiece", vocab_size=61)
    letters = "abcdefghijklmnop"
    noise = [f"{a}{b}{c}" for a in letters for b in letters for c in letters]
    texts = [f"{word} stenosis" if number % 3 == 0 else word for number, word in enumerate(noise)]
    _, words = extend(tokenizer, texts, 1)
    assert words[0].token == "stenosis"
    assert words[0].count <= len(noise) // 3 + 1


def test_what_is_new_is_known_by_its_pieces(tokenizer: Tokenizer) -> None:
    extended, _ = extend(tokenizer, NEW, 2)
    found = find_added_tokens(tokenizer, extended)
    assert found.first == tokenizer.vocab_size
    assert len(found.pieces) == 2
    mark = " " if tokenizer.kind == "bpe" else ""
    assert list(found.pieces[0]) == ids(tokenizer, f"{mark}stenosis")
    same = find_added_tokens(tokenizer, tokenizer)
    assert same.pieces == ()
    assert find_added_tokens(extended, tokenizer) is None
    again, _ = extend(extended, ["aorta valve valve aorta"], 1)
    assert find_added_tokens(tokenizer, again) is not None


@pytest.mark.parametrize("key", ["normalizer", "vocabulary"])
def test_another_tokenizer_is_no_extension(tokenizer: Tokenizer, key: str) -> None:
    tree = json.loads(extend(tokenizer, NEW, 2)[0].content)
    if key == "normalizer":
        tree["normalizer"] = {"type": "NFKC"}
    else:
        vocabulary = tree["model"]["vocab"]
        if isinstance(vocabulary, list):
            vocabulary[7], vocabulary[8] = vocabulary[8], vocabulary[7]
        else:
            names = [name for name, number in vocabulary.items() if number in (7, 8)]
            vocabulary[names[0]], vocabulary[names[1]] = vocabulary[names[1]], vocabulary[names[0]]
    assert find_added_tokens(tokenizer, Tokenizer(json.dumps(tree), tokenizer.roles)) is None


def test_added_tokens_keep_their_ids() -> None:
    engines = pytest.importorskip("tokenizers")
    plain = Tokenizer.train(OLD, kind="wordpiece", vocab_size=61)
    engine = engines.Tokenizer.from_str(plain.content)
    engine.add_tokens(["[ENTITY]", "foxtrot"])
    added = Tokenizer(engine.to_str(), plain.roles)
    assert find_added_tokens(plain, added) is not None
    extended, _ = extend(added, NEW, 2)
    assert extended.vocab_size == 65
    assert ids(extended, "a foxtrot fox [ENTITY]") == ids(added, "a foxtrot fox [ENTITY]")


@pytest.mark.parametrize(("add", "message"), [(0, "1 or more"), (4000, "only . words"), (-3, "1 or more")])
def test_errors(add: int, message: str) -> None:
    tokenizer = Tokenizer.train(OLD, kind="bpe", vocab_size=283)
    with pytest.raises(UserError, match=message):
        extend(tokenizer, NEW, add)


def test_a_tokenizer_that_marks_ends_of_words_is_refused() -> None:
    tokenizer = Tokenizer.train(OLD, kind="bpe-characters", vocab_size=61)
    tree = json.loads(tokenizer.content)
    tree["model"]["end_of_word_suffix"] = "</w>"
    with pytest.raises(UserError, match="ends of words"):
        extend(Tokenizer(json.dumps(tree), tokenizer.roles), NEW, 1)
