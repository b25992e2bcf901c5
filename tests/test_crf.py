"""The conditional random field: exact probabilities, best tags, well-formed tags, storage."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from homespun.crf import DESCRIPTION, WEIGHTS, Crf, _Chain, feature_keys, fit_crf
from homespun.data.labels import Labels
from homespun.errors import UserError

SENTENCES = [
    ["The", "Old", "bridge", "of", "Ravel"],
    ["Mora", "sings"],
    ["Ravel", "and", "Mora", "Lane"],
    [],
    ["It", "rains"],
]
TAGS = [["O", "B-L", "I-L", "I-L", "I-L"], ["B-P", "O"], ["B-L", "O", "B-P", "I-P"], [], ["O", "O"]]
LABELS = Labels.collect([tag for tags in TAGS for tag in tags])


def trained(epochs: int = 8) -> Crf:
    *_, model = fit_crf(SENTENCES * 3, TAGS * 3, LABELS, epochs=epochs)
    return model


def test_probabilities_and_best_tags_are_those_of_all_taggings() -> None:
    random, lengths, tags = np.random.default_rng(0), np.array([4, 3, 1]), 3
    scores = random.normal(size=(8, tags)).astype(np.float32)
    transitions = random.normal(size=(tags + 1, tags + 1))
    chain = _Chain(scores, lengths, transitions)
    marginals, pairs = chain.marginals()
    expected_pairs, start = np.zeros((tags, tags)), 0
    for length in lengths:
        part, expected, total, best = scores[start : start + length], np.zeros((length, tags)), 0.0, (-np.inf, ())
        found = []
        for tagging in itertools.product(range(tags), repeat=int(length)):
            path = [tags, *tagging, tags]
            value = sum(part[i, tag] for i, tag in enumerate(tagging))
            value += sum(transitions[a, b] for a, b in itertools.pairwise(path))
            found.append((value, tagging))
        for value, tagging in found:
            total += np.exp(value)
            best = max(best, (value, tagging))
        for value, tagging in found:
            expected[np.arange(length), list(tagging)] += np.exp(value) / total
            for a, b in itertools.pairwise(tagging):
                expected_pairs[a, b] += np.exp(value) / total
        np.testing.assert_allclose(marginals[start : start + length], expected, rtol=1e-6)
        assert tuple(chain.best()[start : start + length]) == best[1]
        start += int(length)
    np.testing.assert_allclose(pairs, expected_pairs, rtol=1e-6)


def test_gradient_is_the_difference_of_expected_and_true_counts() -> None:
    chain = _Chain(np.zeros((3, 2), np.float32), np.array([2, 1]), np.zeros((3, 3)))
    slope, transitions = chain.gradient(np.array([0, 1, 0]))
    np.testing.assert_allclose(slope, [[-0.5, 0.5], [0.5, -0.5], [-0.5, 0.5]])
    np.testing.assert_allclose(transitions, [[0.25, -0.75, 0], [0.25, 0.25, 0], [0, 0, 0]])


def test_training_sentences_are_learned_in_their_order() -> None:
    found = trained().predict(SENTENCES)
    assert [tags for tags, _ in found] == TAGS
    assert all(((values > 0.5) & (values <= 1.0)).all() for _, values in found)


def test_tags_are_as_well_formed_as_the_training_tags() -> None:
    draw, words = np.random.default_rng(0), sorted({word for sentence in SENTENCES for word in sentence})
    sentences = [[str(word) for word in draw.choice(words, size=7)] for _ in range(80)]
    for tags, _ in trained(1).predict(sentences):
        for before, tag in itertools.pairwise(["O", *tags]):
            assert not tag.startswith("I-") or before[2:] == tag[2:]


def test_keys_depend_on_neighbours_and_borders_only() -> None:
    keys = feature_keys([["a", "b", "c"], ["a", "b", "c"], ["b"]])
    np.testing.assert_array_equal(keys[:3], keys[3:6])
    assert len(np.unique(keys[[1, 6]], axis=0)) == 2


def test_an_opened_model_predicts_the_same_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    model = trained()
    model.save(tmp_path)
    opened = Crf.load(tmp_path)
    assert (opened.labels, opened.parameters) == (model.labels, model.parameters)
    assert [tags for tags, _ in opened.predict(SENTENCES)] == TAGS
    (tmp_path / WEIGHTS).write_bytes((tmp_path / WEIGHTS).read_bytes()[:-1])
    with pytest.raises(UserError, match="was altered"):
        Crf.load(tmp_path)
    (tmp_path / DESCRIPTION).write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match=r"crf\.json"):
        Crf.load(tmp_path)
