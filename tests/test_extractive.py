"""Extractive summaries: the target by ROUGE, features of position and words, order, storage."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from homespun.errors import UserError
from homespun.extractive import (
    DESCRIPTION,
    WEIGHTS,
    SentenceRanker,
    count_words,
    fit_ranker,
    is_extractive,
    overlap,
    with_count,
)

WORDS = "river stone market paper window garden winter letter bridge engine".split()  # noqa: SIM905


def sentences(draw: random.Random, count: int) -> list[str]:
    return [f"{' '.join(draw.choices(WORDS, k=7)).capitalize()}." for _ in range(count)]


def corpus(seed: int, *, cue: str = "", at: int | None = None) -> tuple[list[str], list[list[str]]]:
    """Texts of five sentences, of which the one with the cue, or the one at a position, is the summary."""
    draw = random.Random(seed)
    sources, references = [], []
    for _ in range(120):
        text = sentences(draw, 5)
        index = draw.randrange(5) if at is None else at
        text[index] = f"{cue} {text[index].lower()}".strip().capitalize()
        sources.append(" ".join(text))
        references.append([text[index]])
    return sources, references


@pytest.mark.parametrize("setup", [{"cue": "we propose"}, {"at": 2}, {"at": 4}])
def test_words_and_positions_of_summaries_are_learned(setup: dict[str, object]) -> None:
    ranker = fit_ranker(*corpus(0, **setup))  # type: ignore[arg-type]
    sources, references = corpus(1, **setup)  # type: ignore[arg-type]
    found = ranker.summarize(sources)
    assert np.mean([one == reference[0] for one, reference in zip(found, references, strict=True)]) > 0.95


def test_overlap_is_the_mean_of_rouge_1_and_2() -> None:
    scorer = pytest.importorskip("rouge_score.rouge_scorer").RougeScorer(["rouge1", "rouge2"])
    draw = random.Random(2)
    for _ in range(50):
        sentence, *references = (" ".join(draw.choices(WORDS, k=draw.randrange(1, 9))) for _ in range(3))
        scores = [scorer.score(reference, sentence) for reference in references]
        means = [(one["rouge1"].fmeasure + one["rouge2"].fmeasure) / 2 for one in scores]
        assert overlap(sentence, references) == pytest.approx(max(means))
    assert overlap("a b", []) == overlap("", ["a"]) == overlap("c", ["a b"]) == 0


def test_summaries_keep_the_order_of_the_text() -> None:
    ranker = with_count(fit_ranker(*corpus(0, at=4)), 2)
    source = "One is here. Two is there. Three is gone. Four is new. Five is last."
    ((best, second, *_),) = ranker.rank([source.split(". ")])
    assert best == 4
    assert ranker.summarize([source])[0].endswith("Five is last.")
    assert len(ranker.summarize([source])[0].split(". ")) == 2
    assert second < 4


@pytest.mark.parametrize("count", [1, 3])
def test_short_and_empty_texts(count: int) -> None:
    ranker = with_count(fit_ranker(*corpus(0, at=0)), count)
    assert ranker.summarize(["", "Only one", "  \n "]) == ["", "Only one", ""]
    assert ranker.summarize(["", ""]) == ["", ""]
    assert ranker.summarize([]) == []
    alone, among = ranker.summarize(["A river. B stone."]), ranker.summarize(["", "A river. B stone.", "C."])
    assert among == ["", alone[0], "C."]


def test_few_texts_without_common_words() -> None:
    ranker = fit_ranker(
        ["Rivers rise. Stones fall.", "Markets open. Papers burn."], [["Stones fall."], ["Papers burn."]]
    )
    assert ranker.summarize(["Gardens grow. Engines stop."]) == ["Engines stop."]


def test_texts_without_words_are_refused() -> None:
    for sources in (["?!", "..."], []):
        with pytest.raises(UserError, match="no word"):
            fit_ranker(sources, [["a"] for _ in sources])


def test_a_limit_of_words_takes_evenly_spaced_texts() -> None:
    sources, references = corpus(0, at=0)
    words = count_words(sources)
    for step, max_words in ((1, words), (1, 2 * words), (2, words // 2), (40, words // 40)):
        limited = fit_ranker(sources, references, max_words=max_words)
        chosen = [int(index) for index in np.arange(0, len(sources), max(1, words / max_words))]
        assert len(chosen) == pytest.approx(len(sources) / step, abs=1)
        alone = fit_ranker([sources[index] for index in chosen], [references[index] for index in chosen])
        assert limited.summarize(sources) == alone.summarize(sources)


def test_a_limit_of_words_whose_last_step_is_rounded_up() -> None:
    sources = [f"{'a ' * 7}river."] * 17
    assert np.arange(0, 17, count_words(sources) / 56)[-1] >= 17
    assert fit_ranker(sources, [["river"]] * 17, max_words=56).summarize(sources[:1]) == sources[:1]


def test_a_stored_ranker_is_the_same(tmp_path: Path) -> None:
    sources, references = corpus(0, cue="we propose")
    ranker = with_count(fit_ranker(sources, references), 2)
    assert not is_extractive(tmp_path)
    ranker.save(tmp_path)
    assert is_extractive(tmp_path)
    loaded = SentenceRanker.load(tmp_path)
    assert loaded.summarize(sources) == ranker.summarize(sources)
    assert (loaded.count, loaded.parameters) == (2, ranker.parameters)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": 0}, "count"),
        ({"format": 2}, "format"),
        ({"vocabulary": ["river"]}, "does not fit"),
        ({"weights": "0" * 16}, WEIGHTS),
    ],
)
def test_altered_files_are_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    fit_ranker(*corpus(0, at=0)).save(tmp_path)
    path = tmp_path / DESCRIPTION
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=message):
        SentenceRanker.load(tmp_path)
