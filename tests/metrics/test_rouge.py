"""ROUGE by hand, several references, the message without the package."""

import math
import sys

import pytest

from homespun.data.source_target import SourceTargetPair
from homespun.errors import UserError
from homespun.metrics.text import Rouge, mean_scores, unsupported_numbers
from homespun.tasks.seq2seq_data import TextPairsData
from homespun.tasks.summaries import central_sentences, measure_baselines, sentence_baselines


def test_scores_are_those_by_hand() -> None:
    pytest.importorskip("rouge_score")
    scores = Rouge().scores("the cat sat", ["the cat lay down"])
    assert scores["rouge1"] == pytest.approx(2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4))
    assert scores["rouge2"] == pytest.approx(2 * (1 / 2) * (1 / 3) / (1 / 2 + 1 / 3))
    assert scores["rougeL"] == scores["rouge1"]
    assert Rouge().scores("the cat sat", ["a dog", "the cat sat"])["rougeL"] == 1.0
    assert Rouge().scores("", ["a dog"])["rouge1"] == 0.0


def test_means_of_texts() -> None:
    given = [{"rouge1": 0.5, "rouge2": 0.0, "rougeL": 0.25}] * 4
    found = mean_scores(given, ["a b", "", "a b c d", "a b"], ["x", "x", "y", "x"])
    assert found == given[0] | {"rows": 4, "words": 2.0, "commonest": 0.5, "commonest_target": 0.75}


def test_numbers_that_are_not_in_their_sources_are_counted() -> None:
    texts = ["Sales rose 4 % to $1,200.5.", "no number", "2 and 2 and 7"]
    sources = ["It rose 4 % from 3 to $1,200.5", "5", "2 of 17"]
    found = unsupported_numbers(texts, ["1,200", "4", "17"], sources)
    assert found == {"unsupported_numbers": 1 / 4, "unsupported_numbers_target": 2 / 3}
    assert unsupported_numbers(["none"], ["1"], ["1"])["unsupported_numbers"] == 0


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(UserError, match=r"'homespun\[metrics\]'"):
        Rouge()


def test_first_sentences_and_random_ones() -> None:
    source = "One is here. Two is there. Three is gone. Four is back. Five is last."
    made = sentence_baselines(["Only one."], [source, "Short.", ""])
    assert made.keys() == {"lead-3", "random-3", "central-3", "lead-1", "random-1", "central-1", "copy"}
    assert made["copy"] == [source, "Short.", ""]
    assert made["central-3"][1:] == ["Short.", ""]
    assert made["lead-3"] == ["One is here. Two is there. Three is gone.", "Short.", ""]
    assert made["lead-1"][0] == "One is here."
    assert all(sentence in source for sentence in made["random-3"][0].split(". "))
    assert len(made["random-3"][0].split(". ")) == 3
    assert made == sentence_baselines(["Only one."], [source, "Short.", ""])
    drawn = sentence_baselines(["Only one."], [source] * 50)["random-1"]
    assert set(drawn) == {"One is here.", "Two is there.", "Three is gone.", "Four is back.", "Five is last."}
    three = sentence_baselines(["One is here. Two is there. Three is gone."], [source])
    assert three.keys() == {"lead-3", "random-3", "central-3", "copy"}


def test_a_trained_baseline_of_texts_with_words() -> None:
    pytest.importorskip("rouge_score")
    data = TextPairsData()
    pairs = [SourceTargetPair(f"A river is {n}. The stone is {n}.", (f"The stone is {n}.",)) for n in range(9)]
    found = measure_baselines(data, pairs, pairs, Rouge())
    assert found["extractive"].metrics["rouge1"] == 1.0 > found["lead-1"].metrics["rouge1"]
    empty = [SourceTargetPair("?! ...", ("...",))]
    assert "extractive" not in measure_baselines(data, empty, pairs, Rouge())


def test_central_sentences_have_the_highest_bm25() -> None:
    sentences = ["Profit rose in spring.", "The weather was fine, as ever."]
    sentences += ["Profit and sales rose in spring and in autumn.", "Sales rose.", "Cats sleep."]
    words = [sentence.lower().replace(",", "").strip(".").split() for sentence in sentences]
    mean = sum(map(len, words)) / len(words)

    def score(document: list[str]) -> float:
        total = 0.0
        for word in (word for query in words if query is not document for word in query):
            containing = sum(word in other for other in words)
            frequency = document.count(word)
            rarity = math.log(1 + (len(words) - containing + 0.5) / (containing + 0.5))
            total += rarity * frequency * 2.2 / (frequency + 1.2 * (0.25 + 0.75 * len(document) / mean))
        return total

    scores = [score(document) for document in words]
    for count in (1, 2, 3):
        best = sorted(range(5), key=lambda index: -scores[index])[:count]
        assert central_sentences(sentences, count) == [sentences[index] for index in sorted(best)]
    assert len(set(scores)) == len(scores) - 1  # two have no word in common with others
    assert central_sentences(sentences, 7) == sentences
