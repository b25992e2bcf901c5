"""Thresholds of labels, and their cross-validated score."""

from itertools import product

import numpy as np
import pytest
from sklearn.metrics import f1_score

from homespun.data.labels import Labels
from homespun.metrics.calibration import best_threshold, cross_val_f1, cross_val_predict, f1, find_thresholds
from homespun.metrics.classification import classify
from homespun.tasks.calibration import Calibration, calibrate


def _made_up(rows: int, labels: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.Generator(np.random.PCG64(seed))
    truth = (draw.random((rows, labels)) < np.linspace(0.1, 0.5, labels)).astype(np.int64)
    return np.clip(0.15 + 0.3 * truth + 0.2 * draw.standard_normal(truth.shape), 0, 1), truth


def test_the_best_threshold_is_that_of_trying_all() -> None:
    for seed in range(7):
        probabilities, truth = (table[:, 0] for table in _made_up(29, 1, seed))
        found = best_threshold(probabilities, truth)
        every = max(f1(probabilities[:, None], truth[:, None], (cut,), "macro_f1") for cut in [-1.0, *probabilities])
        assert f1(probabilities[:, None], truth[:, None], (found,), "macro_f1") == pytest.approx(every)


@pytest.mark.parametrize("scope", ["global", "per_label"])
@pytest.mark.parametrize("average", ["micro_f1", "macro_f1"])
def test_one_row_is_too_few_for_thresholds(scope: str, average: str) -> None:
    settings = Calibration(thresholds=scope, thresholds_for=average)
    rule, result = calibrate(np.ones((1, 3), np.float32), np.array([[1, 0, 1]]), settings)
    assert rule.thresholds is None
    assert result["thresholds"] == [0.5] * 3


def test_f1_is_that_of_scikit_learn() -> None:
    probabilities, truth = _made_up(29, 5, 2)
    truth[:, 3], probabilities[:, 3] = 0, 0.1
    for average in ("micro_f1", "macro_f1"):
        given = f1_score(truth, probabilities > 0.4, average=average[:5], zero_division=0.0)
        assert f1(probabilities, truth, (0.4,) * 5, average) == pytest.approx(given)


def test_thresholds_of_a_label_that_is_never_true_and_of_equal_probabilities() -> None:
    assert best_threshold(np.array([0.2, 0.9]), np.array([0, 0])) == 0.5
    assert best_threshold(np.array([0.3, 0.3, 0.1]), np.array([1, 0, 0])) == pytest.approx(0.2)


@pytest.mark.parametrize(("scope", "average"), product(("global", "per_label"), ("micro_f1", "macro_f1")))
def test_thresholds_do_better_than_one_half(scope: str, average: str) -> None:
    probabilities, truth = _made_up(211, 5, 3)
    found = find_thresholds(probabilities, truth, scope=scope, average=average)
    assert len(found) == 5
    assert f1(probabilities, truth, found, average) > f1(probabilities, truth, (0.5,) * 5, average) + 0.05


def test_micro_f1_by_label_is_no_worse_than_the_best_of_a_grid() -> None:
    probabilities, truth = _made_up(31, 2, 5)
    grid = product(np.linspace(0, 1, 41), repeat=2)
    best = max(f1(probabilities, truth, cuts, "micro_f1") for cuts in grid)
    found = find_thresholds(probabilities, truth, scope="per_label", average="micro_f1")
    assert f1(probabilities, truth, found, "micro_f1") >= best - 1e-12


def test_what_is_held_up_was_found_on_other_rows() -> None:
    asked: list[tuple[int, ...]] = []

    def find(rows: np.ndarray) -> object:
        asked.append(tuple(rows))
        return lambda others: np.array([float(other in rows) for other in others])

    assert cross_val_predict(23, find).sum() == 0.0
    assert len(asked) == 5
    assert all(len(rows) in (18, 19) for rows in asked)


def test_thresholds_of_noise_do_not_hold_up() -> None:
    draw = np.random.Generator(np.random.PCG64(7))
    truth = (draw.random((37, 11)) < 0.2).astype(np.int64)
    noise = draw.random(truth.shape)
    found = find_thresholds(noise, truth, scope="per_label", average="macro_f1")
    held_up = cross_val_f1(noise, truth, scope="per_label", average="macro_f1")
    assert held_up < f1(noise, truth, found, "macro_f1") - 0.05


def test_large_logits_have_thresholds_without_overflow() -> None:
    logits = np.array([[2e3, -2e3], [-2e3, 2e3]] * 20, dtype=np.float32)
    decision, result = calibrate(logits, (logits > 0).astype(np.int64), Calibration(temperature=False))
    labels = Labels(("a", "b"), multi_label=True)
    assert classify(np.array([[0.9, 0.1]]), labels, decision.thresholds).tolist() == [[1, 0]]
    assert result["micro_f1"] == 1.0
