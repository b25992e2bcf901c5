"""The estimators in scikit-learn: its checks that apply to texts, cross-validation, searches, pipelines."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks

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


@pytest.mark.slow
def test_cross_validation_grid_search_and_pipelines() -> None:
    texts, labels = examples()
    assert cross_val_score(TextClassifier(time="10s"), texts, labels, cv=2).min() > 0.5
    search = GridSearchCV(TextClassifier(), {"time": ["9s", "10s"]}, cv=2).fit(texts, labels)
    assert search.best_params_["time"] in ("9s", "10s")
    lower = FunctionTransformer(lambda values: [value.lower() for value in values])
    assert make_pipeline(lower, TextClassifier(time="10s")).fit(texts, labels).score(texts, labels) > 0.9
    assert clone(TextClassifier(time="7s")).get_params()["time"] == "7s"


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
        (["a b"] * 4, [0.5, 0.25, 0.1, 0.3], "Unknown label type"),
    ],
)
def test_what_cannot_be_learned_is_refused(texts: object, labels: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TextClassifier(time="10s").fit(texts, labels)


def test_prediction_before_training_is_refused() -> None:
    with pytest.raises(NotFittedError):
        TextClassifier().predict(["a text"])
