"""Temperature and expected calibration error."""

import numpy as np
import pytest

from homespun.metrics.calibration import cross_val_temperature, find_temperature, reliability, row_losses


def _drawn(rows: int, sharper: float) -> tuple[np.ndarray, np.ndarray]:
    """Logits of which the truth is drawn, then made ``sharper``."""
    draw = np.random.Generator(np.random.PCG64(11))
    logits = 1.5 * draw.standard_normal((rows, 3))
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    truth = np.array([draw.choice(3, p=p) for p in chances])
    return sharper * logits, truth


def test_finds_the_temperature_that_was_put_in() -> None:
    assert find_temperature(*_drawn(4001, 3.0)) == pytest.approx(3.0, rel=0.07)
    logits, truth = _drawn(4001, 0.5)
    assert find_temperature(logits, truth) == pytest.approx(0.5, rel=0.07)


def test_of_several_labels_it_is_that_of_their_sigmoids() -> None:
    draw = np.random.Generator(np.random.PCG64(13))
    logits = 2 * draw.standard_normal((1009, 5))
    truth = (draw.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(np.int64)
    assert find_temperature(2.5 * logits, truth) == pytest.approx(2.5, rel=0.07)


def test_losses_by_row_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    logits, truth = _drawn(17, 40.0)
    given = torch.nn.functional.cross_entropy(torch.tensor(logits), torch.tensor(truth), reduction="none")
    np.testing.assert_allclose(row_losses(logits, truth), given.numpy(), rtol=1e-12, atol=1e-15)
    several = (logits > 1).astype(np.int64)
    given = torch.nn.functional.binary_cross_entropy_with_logits(
        torch.tensor(logits), torch.tensor(several, dtype=torch.float64), reduction="none"
    ).mean(1)
    np.testing.assert_allclose(row_losses(logits, several), given.numpy(), rtol=1e-12, atol=1e-15)


def test_temperature_stays_1_if_none_is_better() -> None:
    draw = np.random.Generator(np.random.PCG64(5))
    noise = np.log(np.full((101, 2), 0.5)) + 1e-9 * draw.standard_normal((101, 2))
    for given, reason in (
        (_drawn(7, 3.0), "too few"),
        ((noise, draw.integers(2, size=101)), "cross-validated"),
        (_drawn(499, 0.01), "factor of 20"),
    ):
        temperature, why = cross_val_temperature(*given)
        assert temperature == 1.0
        assert reason in why
    kept, why = cross_val_temperature(*_drawn(499, 3.0))
    assert kept > 2
    assert not why


def test_the_expected_calibration_error_by_hand() -> None:
    confidence = np.array([0.91, 0.95, 0.97, 0.55, 0.57, 1.0])
    right = np.array([True, False, True, True, False, True])
    found = reliability(confidence, right)
    assert [one["count"] for one in found["bins"]] == [2, 1, 3]  # the last bin has 1.0 too; 0.91 is below 14/15
    by_hand = (2 * abs(0.56 - 0.5) + abs(0.91 - 1) + 3 * abs(2.92 / 3 - 2 / 3)) / 6
    assert found["ece"] == pytest.approx(by_hand)


def test_a_calibrated_model_is_off_by_little_and_a_sharp_one_by_much() -> None:
    def off(sharper: float) -> float:
        logits, truth = _drawn(4001, sharper)
        chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        return float(reliability(chances.max(axis=1), chances.argmax(axis=1) == truth)["ece"])

    assert off(1.0) < 0.025 < 0.15 < off(4.0)
