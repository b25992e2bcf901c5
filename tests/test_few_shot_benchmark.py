"""The benchmark of few-shot prompting by size: its tests of the effect of examples."""

import pytest
from benchmarks.few_shot import effects


def test_the_effect_of_examples_is_tested_by_size_and_between_sizes() -> None:
    small = [[0.40, 0.45, 0.41], [0.42, 0.50, 0.43], [0.44, 0.30, 0.45]]
    large = [[0.40, 0.45, 0.60], [0.42, 0.50, 0.61], [0.44, 0.30, 0.65]]
    found = effects({"small": small, "large": large})
    assert list(found) == ["small", "large", "small, large"]
    assert found["small"]["mean"] == pytest.approx(0.01)
    assert found["small, large"]["mean"] == pytest.approx(0.19)
    assert found["large"]["p"] < 0.001 < 0.05 < found["small"]["p"]
    assert found["small, large"]["detectable"] > found["small"]["detectable"] > 0.0
