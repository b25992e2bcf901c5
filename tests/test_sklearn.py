"""The estimators in scikit-learn: its checks that apply to texts, cross-validation, searches, pipelines."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks

import homespun
from homespun.sklearn import TextClassifier, TextRegressor

WORDS = {"sport": "match goal team coach", "money": "market share profit bank", "food": "soup bread salt oven"}
FILLER = ["the", "a", "of", "in", "and", "was", "with", "for", "new", "old"]


def examples(rows: int = 90, seed: int = 0) -> tuple[list[str], list[str]]:
    draw = np.random.default_rng(seed)
    labels = [list(WORDS)[row % 3] for row in range(rows)]
    texts = [
        " ".join(draw.choice(WORDS[label].split() if draw.random() < 0.4 else FILLER) for _ in range(10))
        for label in labels
    ]
    return texts, labels


CHECKS = (
    "check_estimator_cloneable",
    "check_estimator_tags_renamed",
    "check_valid_tag_types",
    "check_estimator_repr",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_get_params_invariance",
    "check_set_params",
    "check_mixin_order",
)


@pytest.mark.parametrize("estimator", [TextClassifier, TextRegressor])
@pytest.mark.parametrize("check", CHECKS)
def test_checks_of_scikit_learn_that_need_no_table_of_numbers(check: str, estimator: type) -> None:
    getattr(estimator_checks, check)(estimator.__name__, estimator())


def test_classifier_predicts_the_labels_it_was_given() -> None:
    texts, labels = examples()
    classifier = TextClassifier(time="15s").fit(texts, labels)
    assert classifier.classes_.tolist() == sorted(WORDS)
    test, truth = examples(30, seed=7)
    probabilities = classifier.predict_proba(test)
    assert probabilities.shape == (30, 3)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
    assert (classifier.predict(test) == classifier.classes_[probabilities.argmax(axis=1)]).all()
    assert classifier.score(test, truth) > 0.8
    assert {one["name"] for one in classifier.result_["candidates"]} >= {"constant", "linear"}


@pytest.mark.parametrize("kind", [int, bool])
def test_labels_keep_their_type(kind: type) -> None:
    texts, labels = examples()
    numbers = np.array([label == "food" for label in labels]).astype(kind)
    predicted = TextClassifier(time="15s").fit(texts, numbers).predict(texts[:6])
    assert predicted.dtype == numbers.dtype


@pytest.mark.parametrize("names", [("9", "10", "a"), ("1", "1.0", ""), (9.0, -10.0, 0.0)])
def test_probabilities_are_in_the_order_of_the_sorted_labels(names: tuple[object, ...]) -> None:
    texts, labels = examples(60)
    given = [names[list(WORDS).index(label)] for label in labels]
    classifier = TextClassifier(time="15s").fit(texts, given)
    assert classifier.classes_.tolist() == sorted(names)
    probabilities = classifier.predict_proba(texts)
    assert (classifier.classes_[probabilities.argmax(axis=1)] == given).mean() > 0.8


@pytest.mark.slow
def test_cross_validation_grid_search_and_pipelines() -> None:
    texts, labels = examples()
    assert cross_val_score(TextClassifier(time="10s"), texts, labels, cv=2).min() > 0.5
    search = GridSearchCV(TextClassifier(), {"time": ["9s", "10s"]}, cv=2).fit(texts, labels)
    assert search.best_params_["time"] in ("9s", "10s")
    lower = FunctionTransformer(lambda values: [value.lower() for value in values])
    assert make_pipeline(lower, TextClassifier(time="10s")).fit(texts, labels).score(texts, labels) > 0.9
    assert clone(TextClassifier(time="7s")).get_params()["time"] == "7s"


@pytest.mark.parametrize("kind", [None, np.random.RandomState])
def test_each_fit_draws_a_seed_from_a_generator(kind: type | None) -> None:
    texts, labels = examples(45)
    classifier = TextClassifier(time="5s", random_state=None if kind is None else kind(3))
    fits = [clone(classifier).fit(texts, labels), clone(classifier).fit(texts, labels)]
    seeds = [classifier.fit(texts, labels).result_["settings"]["seed"] for _ in range(2)]
    assert seeds[0] != seeds[1]
    copies = [one.result_["settings"]["seed"] for one in fits]
    assert (copies[0] == copies[1]) == (kind is not None)


def test_each_fit_has_a_new_folder(tmp_path: Path) -> None:
    texts, labels = examples(60)
    scores = cross_val_score(TextClassifier(time="5s", folder=tmp_path / "fits"), texts, labels, cv=2)
    assert not np.isnan(scores).any()
    classifier = TextClassifier(time="5s", folder=str(tmp_path / "fits")).fit(texts, labels)
    assert classifier.folder_ == tmp_path / "fits" / "fit-3"
    assert homespun.open(classifier.folder_).predict(texts) == classifier.predict(texts).tolist()
    assert TextClassifier(time="5s").fit(texts, labels).folder_ is None


def test_regressor_predicts_numbers() -> None:
    texts, labels = examples()
    numbers = [{"sport": -1.5, "money": 0.25, "food": 3.0}[label] for label in labels]
    regressor = TextRegressor(time="15s").fit(texts, numbers)
    assert regressor.score(texts, numbers) > 0.7


@pytest.mark.parametrize(
    ("texts", "labels", "message"),
    [
        (["a b"] * 4, ["x"] * 4, "one class"),
        (["a b"] * 4, ["x", "y"], "inconsistent numbers of samples"),
        ([], [], "no texts"),
        ("a text", ["x"], "sequence"),
        (["a b", None, "a b", "c"], ["x", "y"] * 2, r"X\[1\] is None"),
        (["a b", "c", float("nan"), "c"], ["x", "y"] * 2, r"X\[2\] is nan"),
        ([["a", "b"], ["c", "d"]], ["x", "y"] * 2, r"shape \(2, 2\)"),
        (["a b", "c"] * 2, ["x", "y", None, "y"], r"missing values: y\[2\] is None"),
        (["a b", "c"] * 2, ["x", float("nan"), "x", "y"], "missing values"),
        (["a b", "c"] * 2, pd.Series(["x", None, "x", "y"], dtype="string"), "missing values"),
        (["a b", "c"] * 2, [0, float("nan"), 0, 1], "missing values"),
        (["a b"] * 4, [0.5, 0.25, 0.1, 0.3], "Unknown label type"),
        (["a b"] * 4, ["x"] * 4, "one class, x$"),
        (csr_matrix(np.eye(2)), ["x", "y"], "not a csr_matrix"),
        ((text for text in ("a", "b")), ["x", "y"], "not a generator"),
    ],
)
def test_what_cannot_be_learned_is_refused(texts: object, labels: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TextClassifier(time="10s").fit(texts, labels)


@pytest.mark.parametrize(
    ("parameter", "value", "message"),
    [
        ("time", None, "seconds.*None"),
        ("time", "ten", "time.*'ten'"),
        ("random_state", -1, "Seed"),
        ("start_from", "runs/none", "runs/none"),
        ("start_from", Path("runs/none"), "runs/none"),
    ],
)
def test_a_wrong_parameter_is_refused_in_one_line(parameter: str, value: object, message: str) -> None:
    texts, labels = examples()
    with pytest.raises(ValueError, match=message) as error:
        TextClassifier(**{parameter: value}).fit(texts, labels)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("number", "message"), [(None, "missing"), (float("nan"), "missing"), (np.inf, "infinite")])
def test_numbers_that_are_not_finite_are_refused(number: float | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TextRegressor(time="10s").fit(["a b", "c", "d"], [0.5, number, 1.5])


def test_equal_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"all training labels are 0.5"):
        TextRegressor(time="10s").fit(examples()[0], [0.5] * 90)


def test_prediction_before_training_is_refused() -> None:
    with pytest.raises(NotFittedError):
        TextClassifier().predict(["a text"])
