"""Baselines on texts with known results."""

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from homespun.baselines import baseline_report, text_features, tfidf, tfidf_ridge
from homespun.data.labels import Labels
from homespun.errors import UserError

WORDS = {"sport": "goal match team", "money": "bank share price", "art": "paint stage song"}


def texts_of(names: list[str]) -> list[str]:
    generator = np.random.default_rng(0)
    return [" ".join(generator.choice(WORDS[name].split(), 2)) + " of the day" for name in names]


def test_majority_and_tfidf() -> None:
    train, test = ["sport"] * 20 + ["money"] * 13 + ["art"] * 7, ["sport"] * 3 + ["money"] * 2 + ["art"] * 2
    labels = Labels.collect(train)
    report = baseline_report(texts_of(train), train, texts_of(test), test, labels)
    assert report["majority"]["accuracy"] == pytest.approx(3 / 7)
    assert report["majority"]["macro_f1"] == pytest.approx(2 * 3 / (7 + 3) / 3)
    shares = np.log(np.array([20, 20, 20, 13, 13, 7, 7]) / 40)
    assert report["majority"]["log_loss"] == pytest.approx(-shares.mean())
    assert report["tfidf"]["accuracy"] == 1.0
    assert report["tfidf"]["parameters"] % 3 == 0
    assert report["tfidf"]["seconds"] > 0
    assert json.loads(json.dumps(report)) == report


def test_two_classes_have_an_area_under_the_curve() -> None:
    train = ["sport", "money"] * 11
    report = baseline_report(texts_of(train), train, texts_of(train), train, Labels.collect(train))
    assert report["tfidf"]["roc_auc"] == 1.0
    assert report["majority"]["roc_auc"] == 0.5


def test_several_labels() -> None:
    train = [("news", "sport"), ("news", "money"), ("news",), ("news", "sport", "money")] * 5
    texts = [" ".join(WORDS[name] for name in names if name in WORDS) + " today" for names in train]
    report = baseline_report(texts, train, texts[:4], train[:4], Labels.collect(train, multi_label=True))
    assert report["tfidf"]["accuracy"] == 1.0
    assert report["majority"]["per_class"]["news"]["f1"] == 1.0
    assert report["majority"]["per_class"]["sport"]["recall"] == 0.0


def test_texts_without_a_word() -> None:
    with pytest.raises(UserError, match="no word"):
        baseline_report(["", "..."], ["a", "b"], ["x"], ["a"], Labels(("a", "b")))


AG_NEWS = Path(__file__).resolve().parents[2] / "shared" / "data" / "ag_news"


@pytest.mark.data
@pytest.mark.skipif(not AG_NEWS.exists(), reason="the shared data sets are not beside the checkout")
def test_tfidf_on_news() -> None:
    def read(name: str) -> tuple[list[str], list[str]]:
        with gzip.open(AG_NEWS / name, "rt", encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))[::4]
        return [" ".join(row[1:3]) for row in rows], [row[0] for row in rows]

    train, test = read("train.csv.gz"), read("test.csv.gz")
    report = baseline_report(*train, *test, Labels.collect(train[1]))
    assert report["tfidf"]["accuracy"] > 0.88  # a quarter of the rows; all of them give 0.917
    assert report["majority"]["accuracy"] < 0.3


def test_of_pairs_what_both_have_is_seen() -> None:
    generator = np.random.default_rng(1)
    words = [word for several in WORDS.values() for word in several.split()]
    first = [" ".join(generator.permutation(words)[:4]) for _ in range(157)]
    same_text = generator.random(157) < 0.5
    others = [" ".join(generator.permutation(words)[:4]) for _ in range(157)]
    second = [text if same else other for text, other, same in zip(first, others, same_text, strict=True)]
    labels, classes = Labels(("no", "yes")), same_text.astype(np.int64)
    sides = (second[:120], second[120:])
    seen = tfidf(first[:120], classes[:120], first[120:], classes[120:], labels, seconds=sides).metrics["accuracy"]
    joined = [f"{a} {b}" for a, b in zip(first, second, strict=True)]
    unseen = tfidf(joined[:120], classes[:120], joined[120:], classes[120:], labels).metrics["accuracy"]
    assert seen > 0.95 > unseen
    features, others = text_features(first[:7], first[7:9], seconds=(second[:7], second[7:9]))
    assert features.shape == (7, others.shape[1])
    numbers = np.where(same_text, 5.0, 1.0)
    predicted = tfidf_ridge(first[:120], numbers[:120], first[120:], seconds=sides)
    assert np.corrcoef(predicted, numbers[120:])[0, 1] > 0.9
    assert predicted.min() >= 1
    assert predicted.max() <= 5


def test_pairs_without_a_word_are_refused_and_empty_sides_are_not() -> None:
    with pytest.raises(UserError, match="hold no word"):
        text_features(["", "."], ["a"], seconds=(["", "!"], ["a"]))
    features, others = text_features(["a", ""], [""], seconds=(["a b", "b"], [""]))
    assert np.isfinite(features.toarray()).all()
    assert not others.toarray().any()
