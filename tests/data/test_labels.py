"""Labelled texts: reading, names, rows, and what users get wrong."""

import itertools
import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Engine
from tokenizers import models, pre_tokenizers

from homespun.data.labels import LabelledRows, Labels, get_text, read_labelled_texts, read_rows, single_label
from homespun.errors import UserError
from homespun.tasks.texts import LabelledData, PairsData
from homespun.text.tokenizer import Tokenizer


class Words:
    """A tokenizer in miniature: one id a word, its length and first letter."""

    vocab_size, pad_id, dtype = 500, 0, np.dtype(np.int32)
    template, pair_template = ([2], [3]), ([2], [3], [3])

    def encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        return [np.array([5 + len(word) for word in text.split()], dtype=np.int32) for text in texts]


tokenizer: Any = Words()


def rows(texts: list[str], **arguments: Any) -> LabelledRows:
    return LabelledRows(texts, None, tokenizer, **{"length": 11, **arguments})


class TestLabels:
    def test_numbers_are_ordered_by_value_and_names_by_the_alphabet(self) -> None:
        assert Labels.collect(["10", "2", "b", "a", "2"]).names == ("2", "10", "a", "b")

    def test_whole_numbers_have_no_fraction(self) -> None:
        labels = Labels.collect(["1.0", "0.0", "10"])
        assert labels.names == ("0", "1", "10")
        assert labels.encode(["1", "1.0", "10.00"]).tolist() == [1, 1, 2]
        assert Labels.collect(["1.0", "1.5"]).names == ("1.0", "1.5")

    def test_booleans_have_one_name_in_all_formats(self) -> None:
        labels = Labels.collect(["True", "False"])  # csv; JSON and parquet have true and false
        assert labels.names == ("False", "True")
        assert labels.encode(["true", "False"]).tolist() == [1, 0]
        assert Labels.collect(["true", "false"]).encode(["True", "false"]).tolist() == [1, 0]
        assert Labels.collect(["True", "False", "true"]).names == ("false", "true")
        assert Labels.collect(["True", "False", "Unknown"]).names == ("False", "True", "Unknown")

    def test_what_is_no_finite_number_is_a_name(self) -> None:
        numbers = [str(number) for number in range(23)]
        names = ["-inf", "NaN", "inf", "nan"]
        assert Labels.collect([*names, *numbers]).names == (*numbers, *names)

    def test_there_and_back(self) -> None:
        labels = Labels.collect(["b", "a", "c"])
        assert labels.encode(["c", "a"]).tolist() == [2, 0]
        assert labels.decode(2) == "c"
        assert Labels.from_dict(json.loads(json.dumps(labels.to_dict()))) == labels

    @pytest.mark.parametrize("values", [{}, {"names": "ab", "multi_label": False}, {"names": ["a"], "multi_label": 1}])
    def test_damaged_labels(self, values: dict[str, Any]) -> None:
        with pytest.raises(UserError, match="labels"):
            Labels.from_dict(values)

    def test_several_labels(self) -> None:
        labels = Labels.collect([("b", "a"), (), ("c",)], multi_label=True)
        table = labels.encode([("c", "a"), ()])
        assert table.tolist() == [[1, 0, 1], [0, 0, 0]]
        assert [labels.decode(row) for row in table] == [("a", "c"), ()]

    @pytest.mark.parametrize(("given", "several"), [(["a", "a"], False), ([("a",), ()], True), ([], False)])
    def test_a_single_class_is_refused(self, given: Any, several: bool) -> None:
        with pytest.raises(UserError, match="two or more classes"):
            Labels.collect(given, multi_label=several)

    @pytest.mark.parametrize(("given", "several"), [(["x"], False), ([("a", "x")], True)])
    def test_unseen_label_lists_the_labels(self, given: Any, several: bool) -> None:
        with pytest.raises(UserError, match=r"'x' .*: a, b"):
            Labels(("a", "b"), several).encode(given)


class TestRows:
    def test_special_tokens_and_lengths(self) -> None:
        two = rows(["a bb ccc", ""])
        assert two[0].input_ids.tolist() == [2, 6, 7, 8, 3]
        assert two[0].input_ids.dtype == np.int64
        assert two[1].input_ids.tolist() == [2, 3]
        assert two.lengths.tolist() == [5, 2]
        assert (two.empty, two.truncated, len(two)) == (1, 0, 2)
        assert two[-1].input_ids.tolist() == [2, 3]
        with pytest.raises(IndexError):
            two[2]

    def test_long_texts_are_cut_and_counted(self) -> None:
        cut = rows(["a " * 9, "a " * 10])
        assert cut.lengths.tolist() == [11, 11]
        assert cut[1].input_ids[-1] == 3
        assert cut.cut.tolist() == [False, True]
        assert cut.truncated == 1

    def test_labels_are_encoded(self) -> None:
        single = LabelledRows(["x", "y"], ["b", "a"], tokenizer, length=5, names=Labels(("a", "b")))
        assert [single[0].label, single[1].label] == [1, 0]
        several = LabelledRows(["x"], [("b",)], tokenizer, length=5, names=Labels(("a", "b"), multi_label=True))
        assert np.asarray(several[0].label).tolist() == [0, 1]

    @pytest.mark.parametrize(
        ("first", "second", "kept"),
        [(3, 2, (3, 2)), (20, 2, (6, 2)), (2, 20, (2, 6)), (20, 30, (4, 4)), (4, 5, (4, 4)), (0, 20, (0, 8))],
    )
    def test_of_a_pair_the_longer_is_cut(self, first: int, second: int, kept: tuple[int, int]) -> None:
        row = rows(["a " * first], pairs=["bb " * second])[0]
        expected = [2, *[6] * kept[0], 3, *[7] * kept[1], 3]
        assert row.input_ids.tolist() == expected
        assert row.token_type_ids.tolist() == [0] * (kept[0] + 2) + [1] * (kept[1] + 1)

    @pytest.mark.parametrize("length", [9, 10])  # with a token left over, and without
    def test_a_pair_is_cut_as_transformers_does_it(self, length: int) -> None:
        theirs = Engine(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
        theirs.pre_tokenizer = pre_tokenizers.Whitespace()
        theirs.enable_truncation(length - 3, strategy="longest_first")
        for first, second in itertools.product(range(9), repeat=2):
            row = rows(["a " * first], pairs=["bb " * second], length=length)[0]
            kept = theirs.encode("a " * first, "b " * second).sequence_ids
            assert [row.input_ids.tolist().count(6), row.input_ids.tolist().count(7)] == [kept.count(0), kept.count(1)]

    def test_pairs_with_an_empty_side_are_known_and_segments_are_for_those_that_have_two(self) -> None:
        made = rows(["a", "", " ", "a"], pairs=["bb", "bb", "", " "])
        assert made.one_sided.tolist() == [False, True, True, True]
        assert made.counts["one_sided"] == 3
        assert made[1].input_ids.tolist() == [2, 3, 7, 3]
        assert rows(["a"], pairs=["bb"], segments=False)[0].token_type_ids is None
        alone = rows(["a", ""])
        assert not alone.one_sided.any()
        assert "one_sided" not in alone.counts

    def test_many_texts_are_compact_and_travel(self) -> None:
        many = rows([f"{'a ' * (i % 7)}" for i in range(20_011)])
        assert len(pickle.dumps(many)) < 40 * len(many)
        again = pickle.loads(pickle.dumps(many))
        assert all(len(again[i].input_ids) == i % 7 + 2 for i in range(0, 20_011, 997))

    def test_a_real_tokenizer(self) -> None:
        texts = ["the cat sat on the mat", "the dog sat on the log"]
        real = Tokenizer.train(texts, kind="bpe", vocab_size=270)
        row = LabelledRows(texts, ["b", "a"], real, length=64, names=Labels(("a", "b")))[0]
        assert row.label == 1
        assert real.decode(row.input_ids[1:-1]) == texts[0]
        assert (row.input_ids[0], row.input_ids[-1]) == (real.cls_id, real.sep_id)

    def test_length_too_short_is_refused(self) -> None:
        with pytest.raises(UserError, match="leaves no room"):
            rows(["a"], length=2)

    def test_wrong_arguments(self) -> None:
        with pytest.raises(ValueError, match=r"1 texts .* 2 labels"):
            LabelledRows(["a"], ["x", "y"], tokenizer, length=5, names=Labels(("x", "y")))
        with pytest.raises(ValueError, match="given together"):
            LabelledRows(["a"], ["x"], tokenizer, length=5)


def test_records_have_label_and_location(tmp_path: Path) -> None:
    found = list(read_rows(write(tmp_path, [{"x": 1, "y": 2.0}, {"x": "a", "y": "b"}])))
    assert [(record["x"], single_label(record, "y", where="")) for record, _ in found] == [(1, "2"), ("a", "b")]
    assert found[1][1].startswith("row 2 of ")
    with pytest.raises(UserError, match=r"no row of .* label .*'y'"):
        PairsData(label="y").read_files(write(tmp_path, [{"y": " "}]))


def write(folder: Path, records: list[dict[str, Any]]) -> list[str]:
    path = folder / "train.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return [str(path)]


class TestReading:
    def test_columns_are_joined_and_labels_become_names(self, tmp_path: Path) -> None:
        records = [
            {"title": " T ", "body": "one", "label": 1},
            {"title": None, "body": "two", "label": 2.0},
            {"title": "", "body": "", "label": True},
        ]
        texts, labels = read_labelled_texts(write(tmp_path, records), text=["title", "body"], label="label")
        assert texts == ["T one", "two", ""]
        assert labels == ["1", "2", "true"]

    def test_csv_without_a_header(self, tmp_path: Path) -> None:
        path = tmp_path / "rows.csv"
        path.write_text('3,"A title",words\n4,Other,more\n', encoding="utf-8")
        texts, labels = read_labelled_texts([str(path)], text=["b", "c"], label="a", columns=["a", "b", "c"])
        assert (texts, labels) == (["A title words", "Other more"], ["3", "4"])

    @pytest.mark.parametrize(
        ("value", "separator", "expected"),
        [
            (["b", "a", "b"], None, ("b", "a")),
            ("b, a,", None, ("b", "a")),
            ("b|a", "|", ("b", "a")),
            ("", None, ()),
            (None, None, ()),
            (3, None, ("3",)),
        ],
    )
    def test_several_labels(self, tmp_path: Path, value: Any, separator: str | None, expected: Any) -> None:
        inputs = write(tmp_path, [{"text": "x", "label": value}])
        data = LabelledData(multi_label=True, separator=separator)
        assert [example.label for example in data.read_files(inputs)] == [expected]

    def test_no_such_column(self, tmp_path: Path) -> None:
        inputs = write(tmp_path, [{"sentence": "x", "label": 1}])
        with pytest.raises(UserError, match=r"'text'.*: sentence, label"):
            read_labelled_texts(inputs, text="text", label="label")
        with pytest.raises(UserError, match=r"'class'.*: sentence, label"):
            read_labelled_texts(inputs, text="sentence", label="class")

    def test_no_label(self, tmp_path: Path) -> None:
        inputs = write(tmp_path, [{"text": "x", "label": "a"}, {"text": "x", "label": " "}])
        with pytest.raises(UserError, match=r"row 2 of .*train\.jsonl .*'label'"):
            read_labelled_texts(inputs, text="text", label="label")

    def test_a_missing_text_is_empty(self) -> None:
        record = {"title": math.nan, "body": "words", "note": None}
        assert get_text(record, ["title", "body", "note"], where="row 1") == "words"
        assert get_text(record, ["title"], where="row 1") == ""

    def test_a_text_that_is_not_text(self, tmp_path: Path) -> None:
        inputs = write(tmp_path, [{"text": ["x"], "label": "a"}])
        with pytest.raises(UserError, match=r"'text' .*list"):
            read_labelled_texts(inputs, text="text", label="label")
