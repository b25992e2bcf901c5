"""Plan of the extractive summarizer of a fit, and its last training."""

import pytest

from homespun.data.source_target import SourceTargetPair
from homespun.extractive import fit_ranker
from homespun.fitting.summarizer import fit_summarizer, plan_summarizer
from homespun.tasks.seq2seq_data import TextPairsData


def pairs(count: int, first: int = 0) -> list[SourceTargetPair]:
    """Pairs of eight words, of which the second sentence is the target."""
    numbers = range(first, first + count)
    return [SourceTargetPair(f"A river is {n}. The stone is {n}.", (f"The stone is {n}.",)) for n in numbers]


@pytest.mark.parametrize(("seconds", "share"), [(1000.0, 1.0), (800 * 15e-6, 0.5)])
def test_the_time_limits_the_share_of_the_examples(seconds: float, share: float) -> None:
    plan = plan_summarizer(pairs(100), seconds)
    assert plan.share == share
    assert plan.seconds == pytest.approx(2 * 800 * share * 15e-6)


def test_the_last_training_has_all_examples() -> None:
    pytest.importorskip("rouge_score")
    parts = {"train": pairs(20), "validation": pairs(10, 20), "test": pairs(5, 30)}
    fitted = fit_summarizer(TextPairsData(), parts, plan_summarizer(parts["train"], 100.0))
    assert fitted.model.model.count == 1
    assert fitted.measure("test")["rougeL"] == 1.0
    assert {*fitted.baselines()} == {"lead-3", "central-3", "lead-1", "central-1"}
    last = fitted.with_validation().model.model
    everything = [*parts["train"], *parts["validation"]]
    direct = fit_ranker([pair.source for pair in everything], [pair.targets for pair in everything])
    assert last.words.idf.tolist() == direct.words.idf.tolist() != fitted.model.model.words.idf.tolist()
    assert last.weights.tolist() == direct.weights.tolist()
