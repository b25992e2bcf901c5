"""Leakage between training and test examples; examples with notable predictions."""

from pathlib import Path
from typing import Any

import numpy as np

from homespun.commands.error_analysis import notable_predictions, summarize_leakage
from homespun.commands.trials import Trial, write_run_predictions
from homespun.text.clean import NearDuplicatePairs


class Texts:
    """A task whose examples are their texts."""

    def texts(self, examples: Any) -> Any:
        return examples


def test_a_text_may_hold_what_ends_a_line_elsewhere(tmp_path: Path) -> None:
    texts = [f"one{end}two" for end in ("\u2028", "\u2029", "\x85", "\r", "\n")]
    truths = [*texts[:-1], "another"]
    predictions = [{"truth": truth, "predicted": text} for truth, text in zip(truths, texts, strict=True)]
    write_run_predictions(tmp_path, "model", np.arange(5), predictions)
    trial = Trial("seed-0", 0, 0, None, ["one two"], texts, None, np.arange(5), [])
    task: Any = Texts()
    output = summarize_leakage({0: NearDuplicatePairs((1,), (0,), (1.0,), 5)}, task, [trial], [tmp_path])
    assert (output.all, output.unseen) == (0.8, 0.75)


def test_worst_and_most_confident_predictions() -> None:
    pairs = [("a", "b", 3.0), ("a", "a", 0.5), ("b", "a", 5.0), ("b", "b", 0.1), (None, "b", 0.0)]
    predictions = [{"truth": truth, "predicted": predicted, "loss": loss} for truth, predicted, loss in pairs]
    trial = Trial("seed-0", 0, 0, None, [], [f"text {i}" for i in range(5)], None, np.arange(10, 15), [])
    task: Any = Texts()
    found = notable_predictions(task, trial, predictions)
    assert [one["row"] for one in found["top_errors"]] == [12, 10]
    assert [one["text"] for one in found["most_confident"]] == ["text 3", "text 1"]
    for prediction in predictions:
        del prediction["loss"]
    found = notable_predictions(task, trial, predictions)
    assert [one["row"] for one in found["top_errors"]] == [10, 12]
    assert found["most_confident"] == []
