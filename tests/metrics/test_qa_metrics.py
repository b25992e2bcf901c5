"""Exact match and F1 of answers, by hand and as SQuAD's script has them."""

import pytest

from homespun.metrics.text import answer_scores, mean_answers, normalise_answer


def test_normalisation() -> None:
    assert normalise_answer("  The U.S. quay,\tand an  “Anchor” ") == "us quay and “anchor”"
    assert normalise_answer("theatre") == "theatre"


@pytest.mark.parametrize(
    ("predicted", "right", "exact", "f1"),
    [
        ("the Old Quay.", ["old quay", "harbour"], 1.0, 1.0),
        ("old quay", ["the harbour", "quay"], 0.0, 2 / 3),
        ("quay quay old", ["quay old pier"], 0.0, 2 / 3),
        ("", [], 1.0, 1.0),
        ("quay", [], 0.0, 0.0),
        ("", ["quay"], 0.0, 0.0),
        ("the", ["a"], 1.0, 1.0),
        ("pier", ["the", "pier"], 1.0, 1.0),
    ],
)
def test_scores(predicted: str, right: list[str], exact: float, f1: float) -> None:
    assert answer_scores(predicted, right) == pytest.approx({"exact_match": exact, "f1": f1})


def test_means() -> None:
    scores = [{"exact_match": 1.0, "f1": 1.0}, {"exact_match": 0.0, "f1": 0.5}, {"exact_match": 0.0, "f1": 0.0}]
    plain = mean_answers(scores, [True, True, True])
    assert plain == pytest.approx({"rows": 3, "exact_match": 1 / 3, "f1": 0.5})
    split = mean_answers(scores, [True, True, False])
    assert split["has_answer_f1"] == 0.75
    assert split["no_answer_exact_match"] == 0.0
