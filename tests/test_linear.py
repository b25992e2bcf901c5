"""Linear models on TF-IDF n-grams: folds equal separate fits, stored models equal fitted ones, damage is refused."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.svm import LinearSVC

from homespun.data.labels import Labels
from homespun.errors import UserError
from homespun.linear import PLAIN, Candidate, LinearModel, _folds, fit_linear
from homespun.ngrams import CHARACTERS, WORDS, Ngrams, Texts, count_ngrams, features, fit_vectorizers, fold_features

WORD_LISTS = {"sport": "match goal team coach", "money": "market share profit bank", "food": "soup bread salt oven"}


def texts(rows: int, seed: int = 0) -> tuple[list[str], list[str]]:
    draw = np.random.default_rng(seed)
    names = list(WORD_LISTS)
    labels = [names[row % 3] for row in range(rows)]
    filler = ["the", "a", "of", "in", "and", "was", "with", "for", "new", "old"]
    found = [
        " ".join(draw.choice(WORD_LISTS[label].split() if draw.random() < 0.3 else filler) for _ in range(12))
        for label in labels
    ]
    return found, labels


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("ngrams", [WORDS, CHARACTERS])
def test_features_of_a_fold_are_those_of_a_separate_fit(ngrams: tuple, paired: bool) -> None:
    first, _ = texts(30)
    both = Texts(first, texts(30, seed=1)[0] if paired else None)
    train, test = np.arange(0, 20), np.arange(20, 30)
    known, unseen = fold_features([(block, count_ngrams(block, both)) for block in ngrams], train, test, len(both))
    vectorizers = fit_vectorizers(ngrams, both.take(train))
    np.testing.assert_allclose(known.toarray(), features(vectorizers, both.take(train)).toarray(), atol=1e-12)
    np.testing.assert_allclose(unseen.toarray(), features(vectorizers, both.take(test)).toarray(), atol=1e-12)


@pytest.mark.parametrize("block", [*CHARACTERS, Ngrams(analyzer="char_wb", shortest=5, longest=7)])
def test_features_are_those_of_scikit_learn(block: Ngrams) -> None:
    known, _ = texts(30)
    unseen = [*texts(9, seed=1)[0], "", "a", "\u0130stanbul \t bread\u00a0 2,5 \ufb01 _", "xyz"]
    options = {"token_pattern": r"(?u)\b\w+\b"} if block.analyzer == "word" else {}
    options |= {"analyzer": block.analyzer, "ngram_range": (block.shortest, block.longest), "min_df": block.min_texts}
    expected = TfidfVectorizer(**options, sublinear_tf=True).fit(known)
    found = block.fit(known)
    assert found.names == tuple(expected.get_feature_names_out())
    np.testing.assert_array_equal(found.transform(unseen).toarray(), expected.transform(unseen).toarray())


def test_without_a_search_it_is_scikit_learns_model() -> None:
    train, names = texts(60)
    test, _ = texts(30, seed=5)
    labels = Labels.collect(names)
    found = fit_linear(Texts(train), labels.encode(names), labels, settings=PLAIN).model.outputs(Texts(test))
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\b\w+\b")
    machine = LinearSVC(random_state=0).fit(vectorizer.fit_transform(train), names)
    expected = machine.decision_function(vectorizer.transform(test))
    order = [list(machine.classes_).index(name) for name in labels.names]
    # liblinear stops at a tolerance of 1e-4, and draws its order anew for each class here
    np.testing.assert_allclose(found, expected[:, order], atol=5e-4)


def test_search_tries_features_and_strengths_and_calibrates() -> None:
    train, names = texts(120)
    labels = Labels.collect(names)
    found = fit_linear(Texts(train), labels.encode(names), labels)
    assert {candidate.ngrams for candidate in found.candidates} == {WORDS, CHARACTERS}
    assert sorted(c.strength for c in found.candidates) == [0.1, 0.3, 1.0, 1.0, 3.0]
    assert [c.score for c in found.candidates] == sorted((c.score for c in found.candidates), reverse=True)
    assert found.model.ngrams == found.candidates[0].ngrams
    assert 0.01 < found.temperature < 1.0  # distances of a margin of 1 are too flat as logits
    test, truth = texts(60, seed=9)
    assert (found.model.outputs(Texts(test)).argmax(axis=1) == labels.encode(truth)).mean() > 0.9
    assert "goal" in " ".join(found.model.top_ngrams(labels.names.index("sport")))


def test_a_search_without_time_tries_only_the_first_features() -> None:
    some, names = texts(200)
    labels = Labels.collect(names)
    found = fit_linear(Texts(some), labels.encode(names), labels, seconds=0.0)
    assert [one.ngrams for one in found.candidates] == [WORDS]


@pytest.mark.parametrize("kind", ["two classes", "several labels", "numbers", "pairs"])
def test_a_stored_model_has_the_same_outputs(kind: str, tmp_path: Path) -> None:
    train, _ = texts(40)
    second = texts(40, seed=3)[0] if kind == "pairs" else None
    labels: Labels | None = Labels(("a", "b"), multi_label=kind == "several labels")
    numbers = np.arange(40) % 2
    targets = np.stack([numbers, np.arange(40) % 3 == 0], axis=1).astype(np.int64)
    if kind == "numbers":
        labels, numbers = None, np.linspace(-1.0, 2.0, 40)
    chosen = targets if kind == "several labels" else numbers
    fitted = fit_linear(Texts(train, second), chosen, labels, settings=Candidate(CHARACTERS, 0.3, 0.0)).model
    fitted.save(tmp_path)
    opened = LinearModel.load(tmp_path)
    np.testing.assert_array_equal(fitted.outputs(Texts(train, second)), opened.outputs(Texts(train, second)))
    assert opened.labels == labels
    assert opened.parameters == fitted.parameters
    if kind == "numbers":
        assert fitted.outputs(Texts(train)).min() >= -1.0  # within the range of the training


@pytest.mark.parametrize("seed", range(4))
def test_a_search_without_examples_of_the_second_class(seed: int) -> None:
    """The search reads a part of the examples, which may lack a rare class."""
    known, _ = texts(90)
    targets = np.zeros(90, dtype=np.int64)
    targets[7] = 1
    fit = fit_linear(Texts(known), targets, Labels(("a", "b")), search_rows=30, seed=seed)
    assert fit.candidates == (PLAIN,)
    assert fit.temperature == 1.0


def test_the_examples_of_a_rare_class_are_in_different_folds() -> None:
    targets = np.array([0, 1] * 20 + [2] * 3 + [3])
    folds = list(_folds(targets, Labels(("a", "b", "c", "d")), 0))
    assert np.sort(np.concatenate([test for _, test in folds])).tolist() == list(range(44))
    for train, test in folds:
        assert sorted([*train, *test]) == list(range(44))
        assert np.bincount(targets[test])[:2].tolist() == [4, 4]
        assert (targets[test] == 2).sum() <= 1


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("first", [["!", "?"] * 9 + ["a word"], [chr(0x4E00 + row) for row in range(19)]])
def test_a_search_whose_folds_lack_words_or_recurring_characters(first: list[str], paired: bool) -> None:
    targets = np.arange(19) % 2
    found = fit_linear(Texts(first, first[::-1] if paired else None), targets, Labels(("a", "b")))
    assert {one.ngrams for one in found.candidates} == {WORDS, CHARACTERS}


def test_a_class_without_examples_is_never_predicted() -> None:
    train, names = texts(30)
    labels = Labels((*sorted(WORD_LISTS), "zebra"))
    found = fit_linear(Texts(train), labels.encode(names), labels, settings=PLAIN).model
    assert (found.outputs(Texts(train)).argmax(axis=1) != 3).all()


@pytest.mark.parametrize("damage", ["weights", "cut", "version", "vocabulary", "nothing", "json"])
def test_damaged_files_are_refused_in_one_line(damage: str, tmp_path: Path) -> None:
    train, names = texts(30)
    labels = Labels.collect(names)
    fit_linear(Texts(train), labels.encode(names), labels, settings=PLAIN).model.save(tmp_path)
    description, weights = tmp_path / "linear.json", tmp_path / "linear.safetensors"
    text = description.read_text(encoding="utf-8")
    if damage == "weights":
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(content)
    elif damage == "cut":
        weights.write_bytes(weights.read_bytes()[:-5])
    elif damage == "nothing":
        weights.unlink()
    else:
        changed = {"version": ('"format": 1', '"format": 9'), "vocabulary": ('"goal", ', ""), "json": ("{", "[")}
        description.write_text(text.replace(*changed[damage], 1), encoding="utf-8")
    with pytest.raises(UserError) as error:
        LinearModel.load(tmp_path)
    assert "\n" not in str(error.value)


def test_texts_without_a_word_are_refused() -> None:
    labels = Labels(("a", "b"))
    with pytest.raises(UserError, match="no word"):
        fit_linear(Texts(["", "  "] * 4), np.array([0, 1] * 4), labels)
