"""Length statistics against what is counted by hand."""

import json

import numpy as np
import pytest

from homespun.data.lengths import length_statistics
from homespun.errors import UserError


def test_statistics_per_split_and_class():
    lengths = np.array([1, 2, 3, 200, 600, 128])
    splits = {"train": np.array([0, 1, 2, 3]), "validation": np.array([4, 5])}
    rows = length_statistics(lengths, splits=splits, classes=["b", "a", "b", None, "a", "a"])
    table = {(row["split"], row["class"]): row for row in rows}
    assert list(table) == [("train", None), ("train", "a"), ("train", "b"), ("validation", None), ("validation", "a")]
    assert (table["train", None] | {"histogram": None}) == {
        "split": "train",
        "class": None,
        "count": 4,
        "mean": 51.5,
        "median": 2.5,
        "minimum": 1,
        "maximum": 200,
        "tokens": 206,
        "above": {128: 0.25, 256: 0.0, 512: 0.0},
        "histogram": None,
    }
    assert table["train", "b"]["mean"] == 2.0
    assert table["validation", None]["above"] == {128: 0.5, 256: 0.5, 512: 0.5}
    assert json.loads(json.dumps(rows))[0]["count"] == 4


@pytest.mark.parametrize("lengths", [[1], [7, 7, 7], [0, 0], [0, 3], [1, 10**6], [50, 51, 52]])
def test_every_document_is_in_one_bin(lengths):
    (row,) = length_statistics(np.array(lengths))
    edges, counts = row["histogram"]["edges"], row["histogram"]["counts"]
    assert sum(counts) == len(lengths)
    assert len(edges) == len(counts) + 1
    assert edges == sorted(set(edges))
    assert edges[0] <= min(lengths)
    assert edges[-1] > max(lengths)
    assert len(counts) <= 30


def test_histograms_share_their_edges():
    lengths = np.arange(1, 900)
    rows = length_statistics(lengths, splits={"a": np.arange(10), "b": np.arange(10, 899)})
    assert rows[0]["histogram"]["edges"] == rows[1]["histogram"]["edges"]
    assert [sum(row["histogram"]["counts"]) for row in rows] == [10, 889]


def test_an_empty_split_has_no_row():
    rows = length_statistics(np.arange(1, 4), splits={"a": np.arange(3), "b": np.arange(0)})
    assert [row["split"] for row in rows] == ["a"]


def test_nothing_to_measure():
    with pytest.raises(UserError, match="no documents"):
        length_statistics(np.array([]))
