"""Metrics against values worked out by hand and against scikit-learn's."""

import json

import numpy as np
import pytest
from sklearn.metrics import log_loss

from homespun.data.labels import Labels
from homespun.errors import UserError
from homespun.metrics.classification import check_memory, classification_metrics, classify, summarise

THREE = Labels(("a", "b", "c"))
TRUTH = np.array([0, 0, 0, 1, 1, 2])
PREDICTED = np.array([0, 0, 1, 1, 0, 2])


def test_single_label_by_hand() -> None:
    metrics = classification_metrics(THREE, TRUTH, PREDICTED)
    assert metrics["rows"] == 6
    assert metrics["accuracy"] == pytest.approx(4 / 6)
    assert metrics["per_class"]["a"] == pytest.approx({"precision": 2 / 3, "recall": 2 / 3, "f1": 2 / 3, "support": 3})
    assert metrics["per_class"]["b"] == pytest.approx({"precision": 0.5, "recall": 0.5, "f1": 0.5, "support": 2})
    assert metrics["macro_f1"] == pytest.approx((2 / 3 + 1 / 2 + 1) / 3)
    assert metrics["weighted_f1"] == pytest.approx((3 * 2 / 3 + 2 * 1 / 2 + 1) / 6)
    assert metrics["confusion"]["counts"] == [[2, 1, 0], [1, 1, 0], [0, 0, 1]]
    assert metrics["confusion"]["percent"] == [[66.67, 33.33, 0], [50, 50, 0], [0, 0, 100]]
    assert "log_loss" not in metrics
    assert "roc_auc" not in metrics
    assert json.loads(json.dumps(metrics)) == metrics


def test_log_loss_is_scikit_learns() -> None:
    probabilities = np.random.default_rng(1).dirichlet(np.ones(3), size=6)
    metrics = classification_metrics(THREE, TRUTH, classify(probabilities, THREE), probabilities=probabilities)
    assert metrics["log_loss"] == pytest.approx(log_loss(TRUTH, probabilities))


def test_a_certain_mistake_costs_much_but_not_everything() -> None:
    probabilities = np.array([[0.0, 1.0, 0.0]])
    loss = classification_metrics(THREE, np.array([0]), np.array([1]), probabilities=probabilities)["log_loss"]
    assert 10 < loss < 20


def test_a_class_that_does_not_occur() -> None:
    metrics = classification_metrics(THREE, np.array([0, 1]), np.array([0, 1]))
    assert metrics["macro_f1"] == 1.0
    assert metrics["per_class"]["c"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 0}
    assert metrics["confusion"]["percent"][2] == [0, 0, 0]


def test_two_classes_have_areas_under_curves() -> None:
    labels = Labels(("no", "yes"))
    truth, score = np.array([0, 1, 0, 1]), np.array([0.1, 0.4, 0.5, 0.9])
    probabilities = np.stack([1 - score, score], axis=1)
    metrics = classification_metrics(labels, truth, classify(probabilities, labels), probabilities=probabilities)
    assert metrics["roc_auc"] == pytest.approx(3 / 4)  # of four pairs, only (0.4, 0.5) is in the wrong order
    assert metrics["pr_auc"] == pytest.approx((1 + 2 / 3) / 2)
    assert metrics["positive"] == "yes"
    assert metrics["f1"] == metrics["per_class"]["yes"]["f1"] == pytest.approx(2 / 3)
    ranked = classification_metrics(labels, truth, truth, scores=probabilities * 7 - 3)
    assert ranked["roc_auc"] == metrics["roc_auc"]
    assert "log_loss" not in ranked


def test_areas_are_none_where_one_class_does_not_occur() -> None:
    truth = np.array([1, 1])
    metrics = classification_metrics(Labels(("no", "yes")), truth, truth, probabilities=np.full((2, 2), 0.5))
    assert metrics["roc_auc"] is None
    assert metrics["pr_auc"] is None


def test_several_labels_by_hand() -> None:
    labels = Labels(("a", "b"), multi_label=True)
    truth = np.array([[1, 0], [1, 1], [0, 0], [0, 1]])
    probabilities = np.array([[0.9, 0.2], [0.8, 0.4], [0.6, 0.1], [0.3, 0.7]])
    predicted = classify(probabilities, labels)
    assert predicted.tolist() == [[1, 0], [1, 0], [1, 0], [0, 1]]
    metrics = classification_metrics(labels, truth, predicted, probabilities=probabilities)
    assert metrics["accuracy"] == 0.5
    assert metrics["micro_f1"] == pytest.approx(2 * 3 / (4 + 4))
    assert metrics["macro_f1"] == pytest.approx((4 / 5 + 2 / 3) / 2)
    assert metrics["per_class"]["a"]["precision"] == pytest.approx(2 / 3)
    right = np.where(truth == 1, probabilities, 1 - probabilities)
    assert metrics["log_loss"] == pytest.approx(-np.log(right).mean())
    assert "confusion" not in metrics
    assert json.loads(json.dumps(metrics)) == metrics


def test_no_rows_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="not empty"):
        classification_metrics(THREE, np.array([], dtype=int), np.array([], dtype=int))


def test_classes_whose_tables_exceed_memory_are_refused() -> None:
    names = tuple(map(str, range(1_000_000)))
    with pytest.raises(UserError, match=r"1,000,000 .* 64,000 GB"):
        check_memory(Labels(names), 2_000)
    with pytest.raises(UserError, match="1,000,000 labels are more than 65,536; join"):
        check_memory(Labels(names, multi_label=True), 10)
    with pytest.raises(UserError, match=r"50,000 .* 16,000 GB"):
        check_memory(Labels(names[:50_000], multi_label=True), 20_000_000)
    with pytest.raises(UserError, match=r"50,000 .* 100,000 GB"):
        check_memory(Labels(names[:50_000], multi_label=True), 20_000_000, evaluated=True)
    check_memory(Labels(names[:1000]), 1_000_000)


def test_summary_of_seeds() -> None:
    runs = [{"rows": 7, "accuracy": a, "log_loss": 1.0, "per_class": {}} for a in (0.5, 0.75, 1.0)]
    summary = summarise([*runs[:2], {**runs[2], "log_loss": None}])
    assert summary == {"accuracy": {"mean": 0.75, "std": 0.25, "values": [0.5, 0.75, 1.0]}}
    assert summarise(runs[:1])["accuracy"] == {"mean": 0.5, "std": None, "values": [0.5]}
    assert summarise([]) == {}
