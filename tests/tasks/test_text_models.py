"""Evaluation of several models on the same examples."""

from collections.abc import Sequence

import pytest

from homespun.data.labels import Labels
from homespun.errors import UserError
from homespun.linear import fit_linear
from homespun.metrics import classification
from homespun.metrics.calibration import DecisionRule
from homespun.tasks.text_models import AverageTextModel, LinearTextModel, measure, measure_all
from homespun.tasks.text_outputs import Outputs, targets_of, texts_of
from homespun.tasks.texts import LabelledData, LabelledText

EXAMPLES = [
    LabelledText(f"{'good fine' if row % 3 else 'bad poor'} text {row}", "ab"[row % 3 > 0]) for row in range(60)
]
LABELS = Labels(("a", "b"))


class Counted(LinearTextModel):
    """Linear model that counts its predictions."""

    calls = 0

    def outputs(self, examples: Sequence[LabelledText]) -> Outputs:
        type(self).calls += 1
        return super().outputs(examples)


def test_a_member_of_averages_is_computed_once() -> None:
    texts = texts_of(EXAMPLES)
    found = fit_linear(texts, targets_of(EXAMPLES, LABELS), LABELS, search_rows=60, seed=0)
    counted = Counted(found.model, LabelledData())
    other = LinearTextModel(found.model, LabelledData(), DecisionRule(temperature=2.0))
    averages = {
        str(weight): AverageTextModel({"one": counted, "two": other}, (weight, 1 - weight)) for weight in (0.3, 0.6)
    }
    expected = {name: measure(model, EXAMPLES).metrics for name, model in averages.items()}
    assert Counted.calls == 2
    measured = measure_all({"one": counted} | averages, EXAMPLES)
    assert Counted.calls == 3
    assert {name: measured[name].metrics for name in averages} == expected
    assert measured["one"].metrics["log_loss"] != pytest.approx(expected["0.3"]["log_loss"])


def test_an_evaluation_beyond_the_memory_is_refused_before_the_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = texts_of(EXAMPLES)
    model = Counted(
        fit_linear(texts, targets_of(EXAMPLES, LABELS), LABELS, search_rows=60, seed=0).model, LabelledData()
    )
    monkeypatch.setattr(classification, "_CONFUSION_BYTES", 10**15)
    before = Counted.calls
    with pytest.raises(UserError, match=r"2 classes .* confusion matrix"):
        measure(model, EXAMPLES)
    assert Counted.calls == before
