"""Entities and words, by hand."""

import sys

import pytest

from homespun.errors import UserError
from homespun.metrics.sequence_labels import EntityMetrics, are_entities, word_metrics

TRUTH = [["B-X", "I-X", "O", "B-Y"], [], ["O", "B-X", "O"]]
PREDICTED = [["B-X", "I-X", "O", "B-X"], [], ["B-Y", "B-X", "O"]]


def test_entities() -> None:
    pytest.importorskip("seqeval")
    found = EntityMetrics()(TRUTH, PREDICTED)
    assert found["rows"] == 3
    assert (found["precision"], found["recall"]) == (0.5, pytest.approx(2 / 3))
    assert found["f1"] == pytest.approx(2 * 2 / 7)
    assert found["accuracy"] == pytest.approx(5 / 7)
    assert found["per_class"]["X"] == {"precision": pytest.approx(2 / 3), "recall": 1.0, "f1": 0.8, "support": 2}


def test_bilou_tags_have_the_metrics_of_iobes_tags() -> None:
    pytest.importorskip("seqeval")
    truth = [["B-X", "L-X", "U-X", "U-X", "O", "B-Y", "L-Y"]]
    predicted = [["B-X", "L-X", "U-X", "O", "O", "U-Y", "U-Y"]]
    iobes = [[[tag.replace("L-", "E-").replace("U-", "S-") for tag in tags[0]]] for tags in (truth, predicted)]
    found = EntityMetrics()(truth, predicted)
    assert found == EntityMetrics()(*iobes)
    assert {name: one["support"] for name, one in found["per_class"].items()} == {"X": 3, "Y": 1}
    assert (found["precision"], found["recall"]) == (2 / 4, 2 / 4)


def test_no_entity_at_all() -> None:
    pytest.importorskip("seqeval")
    found = EntityMetrics()([["O", "O"]], [["O", "O"]])
    assert (found["f1"], found["accuracy"], found["per_class"]) == (0.0, 1.0, {})
    assert EntityMetrics()([["O", "B-X"]], [["O", "O"]])["recall"] == 0.0
    with pytest.raises(UserError, match="no sentence"):
        EntityMetrics()([[]], [[]])


def test_words() -> None:
    found = word_metrics([["N", "V"], ["N"]], [["N", "N"], ["N"]])
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["macro_f1"] == pytest.approx(0.4)
    assert found["per_class"]["V"]["support"] == 1


def test_which_tags_mark_spans() -> None:
    assert are_entities(["O", "B-NP", "I-NP"])
    assert not are_entities(["O", "NN", "B-NP"])
    assert not are_entities(["O"])


def test_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "seqeval.metrics", None)
    with pytest.raises(UserError, match=r"'homespun\[metrics\]'"):
        EntityMetrics()
