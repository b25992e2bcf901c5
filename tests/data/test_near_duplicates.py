"""Near-duplicates of training texts in the test set."""

import random

import pytest

from homespun.text.duplicates import find_near_duplicates, similarity


def _text(seed: int, words: int = 61) -> str:
    draw = random.Random(seed)
    return " ".join(f"w{draw.randrange(997)}" for _ in range(words))


def _changed(text: str, places: tuple[int, ...]) -> str:
    words = text.split()
    for place in places:
        words[place] = "other"
    return " ".join(words)


def test_finds_the_same_and_the_nearly_same_and_whose_they_are() -> None:
    training = [_text(seed) for seed in range(23)]
    test = [_text(101), training[7].upper() + "!", _changed(training[5], (0,)), _changed(training[3], (9, 29, 49))]
    found = find_near_duplicates(training, test)
    assert found.rows == (1, 2)
    assert found.of == (7, 5)
    assert found.similarity[0] == 1.0
    assert found.similarity[1] == pytest.approx(56 / 58)
    assert found.same == 1
    assert found.compared == 4


def test_a_text_twice_in_the_test_alone_is_no_overlap() -> None:
    assert find_near_duplicates([_text(1)], [_text(2), _text(2)]).rows == ()


def test_empty_texts_are_not_duplicates() -> None:
    found = find_near_duplicates(["", _text(1)], ["", "  ", _text(1)])
    assert found.rows == (2,)
    assert found.compared == 1
    assert find_near_duplicates(["a"], [" "]).compared == 0
    assert find_near_duplicates([], ["a b"]).rows == ()


def test_short_texts_are_duplicates_only_if_equal() -> None:
    found = find_near_duplicates(["Profit rose.", "sales fell in may"], ["profit rose", "profit fell", "sales fell"])
    assert found.rows == (0,)
    assert found.of == (0,)


def test_most_similar_text_across_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("homespun.text.duplicates._TRAINING_CHUNK", 2)
    text = _text(3)
    training = [_changed(text, (0,)), _text(5), _text(7), text, _changed(text, (60,))]
    assert find_near_duplicates(training, [text]).of == (3,)


def test_similarity_is_of_words_in_a_row() -> None:
    assert similarity("a b c d e f", "a b c d e g") == pytest.approx(1 / 3)
    assert similarity("a b c d e", "A, b c d e.") == 1.0
