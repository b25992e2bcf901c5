"""Leakage between training and test examples."""

from pathlib import Path
from typing import Any

import numpy as np

from homespun.commands.leakage import summarize_leakage
from homespun.commands.trials import Trial, write_run_predictions
from homespun.data.near_duplicates import NearDuplicatePairs


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
