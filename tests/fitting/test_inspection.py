"""Inspection of labelled files: columns, task, splits, refusals."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from homespun.data.labels import Labels
from homespun.data.long_inputs import TRUNCATE, HeadTail
from homespun.errors import UserError
from homespun.fitting import inspection
from homespun.fitting.inspection import Inspection, inspect
from homespun.fitting.ladder import Ladder
from homespun.fitting.results import FitSettings
from homespun.report.console import Display
from homespun.tasks.texts import LabelledData, PairsData

TEXTS = ["the match was a goal", "profits of the bank rose", "a soup with bread and salt", "a team and its coach"]


def table(path: Path, names: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([names, *rows])
    return str(path)


def classes(rows: int = 60) -> list[tuple[str, str]]:
    return [(f"{TEXTS[row % 4]} number {row}", "ab"[row % 2]) for row in range(rows)]


def test_columns_and_task_are_found(tmp_path: Path) -> None:
    rows = [(row, text, label, "x") for row, (text, label) in enumerate(classes())]
    found = inspect([table(tmp_path / "t.csv", ("id", "sentence", "Label", "source"), rows)])
    assert isinstance(found.data, LabelledData)
    assert (found.data.text, found.data.label, found.task) == ("sentence", "Label", "classification")
    assert found.labels is not None
    assert found.labels.names == ("a", "b")
    assert (len(found.train), len(found.validation), len(found.test)) == (40, 8, 12)
    assert found.test_from == "split"
    assert any(line.startswith("texts: 7 words in the median, 8 or fewer") for line in found.decisions)


def test_networks_read_both_ends_of_long_texts_and_the_beginnings_of_pairs(tmp_path: Path) -> None:
    text = inspect([table(tmp_path / "t.csv", ("sentence", "label"), classes())])
    data = text.data_for(64)
    assert data.max_length == 64
    assert data.truncation == HeadTail(head=0.5)
    rows = [(text, f"the other {text}", label) for text, label in classes()]
    pairs = inspect([table(tmp_path / "p.csv", ("sentence1", "sentence2", "label"), rows)])
    assert pairs.data_for(64).truncation == TRUNCATE


def test_a_label_without_a_known_name_is_found_by_its_repeated_values(tmp_path: Path) -> None:
    found = inspect([table(tmp_path / "t.csv", ("words", "kind"), classes())])
    assert (found.data.label, found.data.texts_of({"words": "w"}, where="")[0]) == ("kind", "w")


def test_the_folders_of_texts_are_their_classes(tmp_path: Path) -> None:
    for row, (text, label) in enumerate(classes()):
        for part in ("train", "test"):
            path = tmp_path / part / label / f"{row}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text} of the {part}", encoding="utf-8")
    (tmp_path / "train" / "unsup").mkdir()
    (tmp_path / "train" / "unsup" / "0.txt").write_text("a text without a class", encoding="utf-8")
    found = inspect([str(tmp_path / "train")], [str(tmp_path / "test")])
    assert (found.task, found.labels) == ("classification", Labels(("a", "b")))
    assert (len(found.train), len(found.validation), len(found.test)) == (51, 9, 60)
    assert found.unlabelled == ["a text without a class"]
    assert any("folders a and b" in line and "--task language-model" in line for line in found.decisions)


def test_a_label_wins_over_a_rating(tmp_path: Path) -> None:
    rows = [(text, label, number % 10) for number, (text, label) in enumerate(classes())]
    assert inspect([table(tmp_path / "t.csv", ("text", "label", "rating"), rows)]).data.label == "label"


@pytest.mark.parametrize(("title", "text"), [("title", "abstract"), ("Subject", "Body")])
def test_title_and_text_are_joined(title: str, text: str, tmp_path: Path) -> None:
    rows = [(f"title of {text}", text, label) for text, label in classes()]
    found = inspect([table(tmp_path / "t.csv", (title, text, "label"), rows)])
    assert isinstance(found.data, LabelledData)
    assert found.data.text == [title, text]


@pytest.mark.parametrize(
    ("first", "second"),
    [("Sentence1", "Sentence2"), ("#1 String", "#2 String"), ("text_a", "text_b"), ("premise", "hypothesis")],
)
def test_pairs_are_found_by_their_names(first: str, second: str, tmp_path: Path) -> None:
    rows = [(n, text.upper(), text, n + 1, label) for n, (text, label) in enumerate(classes())]
    found = inspect([table(tmp_path / "t.csv", ("x1", second, first, "x2", "label"), rows)])
    assert isinstance(found.data, PairsData)
    assert (found.data.first, found.data.second) == (first, second)
    assert found.test[0].second is not None
    assert "texts: read as pairs" in found.decisions


def test_a_multi_label_task_joins_pairs(tmp_path: Path) -> None:
    rows = [(f"first {n}", f"second {n}", ("a", "b", "a;b")[n % 3]) for n in range(60)]
    path = table(tmp_path / "t.csv", ("text1", "text2", "labels"), rows)
    for found in (inspect([path]), inspect([path], text=("text1", "text2"))):
        assert isinstance(found.data, LabelledData)
        assert found.data.text == ["text1", "text2"]
        assert any("joined" in line for line in found.decisions)
        assert not any("pairs" in line for line in found.decisions)


def test_numbers_with_fractions_are_a_label_and_row_numbers_and_dates_are_not(tmp_path: Path) -> None:
    rows = [(n, f"2024-01-0{1 + n % 3}", text, n / 7) for n, (text, _) in enumerate(classes())]
    found = inspect([table(tmp_path / "t.csv", ("id", "day", "article", "Price (EUR)"), rows)])
    assert (found.task, found.data.label) == ("regression", "Price (EUR)")


def test_words_of_a_script_without_spaces_are_characters(tmp_path: Path) -> None:
    rows = [(f"{'很好' if n % 2 else '太差'}，这家店的第{n}个。", "好差"[n % 2]) for n in range(60)]
    found = inspect([table(tmp_path / "t.csv", ("评论", "情感"), rows)])
    assert (found.data.label, found.task) == ("情感", "classification")
    assert any("11 words in the median" in line for line in found.decisions)


@pytest.mark.parametrize(
    ("name", "values", "task"),
    [
        ("score", [row / 7 for row in range(60)], "regression"),
        ("score", [str(row % 30) for row in range(60)], "regression"),
        ("label", [row % 5 for row in range(60)], "classification"),
        ("label", list(range(120)), "regression"),
        ("label", [("1", "2", "nan")[row % 3] for row in range(60)], "classification"),
        ("label", [row % 77 for row in range(770)], "classification"),
        ("intent", [row % 60 + 1 for row in range(600)], "classification"),
        ("label", [row % 60 + 1 for row in range(480)], "regression"),
        ("label", [row % 60 + 18 for row in range(600)], "regression"),
        ("rating", [row % 60 for row in range(600)], "regression"),
        ("label", [f"{row % 8}_{row % 9}" for row in range(720)], "classification"),
    ],
)
def test_task_from_the_labels(name: str, values: list[object], task: str, tmp_path: Path) -> None:
    rows = [(f"{TEXTS[row % 4]} {row}", value) for row, value in enumerate(values)]
    assert inspect([table(tmp_path / "t.csv", ("text", name), rows)]).task == task


def test_whole_numbers_that_a_csv_writes_with_a_fraction_are_the_same_classes(tmp_path: Path) -> None:
    rows = [(text, "01"[label == "a"]) for text, label in classes()]
    floats = [(text, f"{label}.0") for text, label in rows]
    train, test = (table(tmp_path / f"{name}.csv", ("text", "y"), part) for name, part in (("a", rows), ("b", floats)))
    for files in ((train, test), (test, train), (test, test)):
        found = inspect([files[0]], [files[1]])
        assert found.labels is not None
        assert found.labels.names == ("0", "1")
        assert {example.label for example in (*found.train, *found.test)} == {"0", "1"}


def test_a_column_named_text_may_have_numbers(tmp_path: Path) -> None:
    rows = [(1000 + number, label) for number, (_, label) in enumerate(classes())]
    data = inspect([table(tmp_path / "t.csv", ("text", "label"), rows)]).data
    assert (data.kind, data.label, data.texts_of({"text": "7"}, where="")[0]) == ("texts", "label", "7")


def test_nested_texts_are_refused_with_a_way_out(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    rows = [{"id": n, "data": {"text": text}, "label": label} for n, (text, label) in enumerate(classes())]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for text in ([], ["data"]):
        with pytest.raises(UserError, match="json_normalize"):
            inspect([str(path)], text=text)


def test_a_column_named_text_may_have_single_words(tmp_path: Path) -> None:
    rows = [(f"word{row}", "ab"[row % 2]) for row in range(60)]
    found = inspect([table(tmp_path / "t.csv", ("text", "label"), rows)])
    assert found.data.texts_of({"text": "w"}, where="") == ("w", None)


@pytest.mark.parametrize("separator", [";", "|", ", ", "list"])
def test_several_labels_of_a_text(separator: str, tmp_path: Path) -> None:
    labels = [["a"], ["b"], ["a", "b"], []]
    rows = [{"words": f"{TEXTS[row % 4]} {row}", "kinds": labels[row % 4]} for row in range(80)]
    if separator == "list":
        path = tmp_path / "t.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    else:
        cells = [(row["words"], separator.join(row["kinds"])) for row in rows]
        path = Path(table(tmp_path / "t.csv", ("words", "kinds"), cells))
    found = inspect([str(path)])
    assert found.task == "multi-label"
    assert found.labels is not None
    assert found.labels.names == ("a", "b")
    assert {example.label for example in found.train} == {("a",), ("b",), ("a", "b"), ()}


def test_an_odd_number_is_named_by_its_row_in_the_file(tmp_path: Path) -> None:
    rows = [(text, n / 7) for n, (text, _) in enumerate(classes())]
    rows[3:5], rows[6] = [("", 0.5), ("a text", "")], ("another text", "n/a")
    with pytest.raises(UserError, match="row 7 has label 'n/a'"):
        inspect([table(tmp_path / "t.csv", ("text", "price"), rows)], label="price", task="regression")


@pytest.mark.parametrize("several", [False, True])
def test_the_only_example_of_a_class_is_trained_on(several: bool, tmp_path: Path) -> None:
    rows = [{"text": text, "label": [label] if several else label} for text, label in classes()]
    if several:
        rows[7]["label"] = ["b", "rare"]
    else:  # the split keeps repeated texts together, and their proportions are those of the first
        rows.append({"text": rows[7]["text"], "label": "rare"})
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    sizes = set()
    for seed in range(20):
        found = inspect([str(path)], seed=seed)
        assert any("rare" in example.label for example in found.train)
        sizes.add((len(found.validation), len(found.test)))
    assert len(sizes) > 1  # some seeds drew it for another part


def test_examples_that_each_have_a_class_of_their_own_are_refused(tmp_path: Path) -> None:
    rows = [{"text": text, "label": [label, f"tag{n}"]} for n, (text, label) in enumerate(classes())]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    with pytest.raises(UserError, match="60 examples of 62 classes are too few to hold out 20% for test"):
        inspect([str(path)], task="multi-label")


def test_many_classes_are_divided_with_an_example_of_each(tmp_path: Path) -> None:
    rows = [{"text": f"text {n}", "label": f"class {n % 50}"} for n in range(300)]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    found = inspect([str(path)])
    for part in (found.train, found.validation, found.test):
        assert len({example.label for example in part}) == 50
    assert len(found.train) > 180


@pytest.mark.parametrize("names", [("a", "a;b", "a;b;c"), ("x, y", "z")])
def test_a_separator_in_classes_is_named(names: tuple[str, ...], tmp_path: Path) -> None:
    rows = [{"text": f"text {n}", "label": names[n % len(names)]} for n in range(60)]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    found = inspect([str(path)])
    assert found.task == "classification"
    (task,) = [line for line in found.decisions if line.startswith("task")]
    assert "--task multi-label" in task


ONE_HOT = [(f"{n:x}", text, n % 2, int(n > 20), int(n == 40)) for n, (text, _) in enumerate(classes())]


@pytest.mark.parametrize("given", [(), ("toxic", "insult", "threat")])
def test_columns_of_0_and_1_are_a_label_each(given: tuple[str, ...], tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", ("id", "comment_text", "toxic", "insult", "threat"), ONE_HOT)
    found = inspect([path], [path], label=given)
    assert (found.task, found.labels) == ("multi-label", Labels(("insult", "threat", "toxic"), multi_label=True))
    assert found.data.label == ["toxic", "insult", "threat"]
    assert [found.test[n].label for n in (0, 40, 41)] == [(), ("insult", "threat"), ("toxic", "insult")]
    record = {"comment_text": "t", "toxic": 0, "insult": 1, "threat": 1}
    assert found.data.example_record(found.data.parse(record, where="")[0]) == record


def test_a_label_or_another_candidate_wins_over_columns_of_0_and_1(tmp_path: Path) -> None:
    names = ("id", "text", "reply", "label", "seen")
    path = table(tmp_path / "t.csv", names, [(*row[:3], "ab"[row[3]], row[4]) for row in ONE_HOT])
    assert (inspect([path]).data.label, inspect([path], label="reply").data.label) == ("label", "reply")
    with pytest.raises(UserError, match="--task regression takes one label column, not 2"):
        inspect([path], label=["reply", "seen"], task="regression")


def test_pairs_with_several_label_columns_are_refused(tmp_path: Path) -> None:
    rows = [(f"first {n}", f"second {n}", n % 2, 1 - n % 2) for n in range(60)]
    path = table(tmp_path / "t.csv", ("sentence1", "sentence2", "yes", "no"), rows)
    with pytest.raises(UserError, match=r"one label column, not yes and no; .* --label-field"):
        inspect([path])


@pytest.mark.parametrize("value", ["-1", "", "2", "x"])
def test_values_besides_0_and_1_are_refused(value: str, tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", ("id", "text", "p", "q", "r"), [*ONE_HOT, ("z", "a text", 1, value, 0)])
    with pytest.raises(UserError, match=rf"row 61 of .*'{value}' in the label column 'q'"):
        inspect([path], label=["p", "q"])


@pytest.mark.parametrize("separator", [";", "|", ","])
def test_cells_of_the_task_multi_label_are_divided_at_any_separator(separator: str, tmp_path: Path) -> None:
    cells = ["", "a", f"a{separator}b", f"a{separator}b{separator}c"]  # as many distinct cells as labels
    rows = [(f"{TEXTS[row % 4]} {row}", cells[row % 4]) for row in range(80)]
    found = inspect([table(tmp_path / "t.csv", ("text", "label"), rows)], task="multi-label")
    assert found.labels is not None
    assert found.labels.names == ("a", "b", "c")


def test_labels_that_contain_a_separator_are_classes(tmp_path: Path) -> None:
    rows = [(f"{TEXTS[row % 4]} {row}", ["Albany, NY", "Austin, TX"][row % 2]) for row in range(80)]
    found = inspect([table(tmp_path / "t.csv", ("text", "label"), rows)])
    assert found.task == "classification"
    assert found.labels is not None
    assert found.labels.names == ("Albany, NY", "Austin, TX")


def test_rows_without_a_label_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = [*classes(), *((f"unlabelled {row}", " " * (row % 2)) for row in range(30)), ("", "")]
    train = table(tmp_path / "train.csv", ("text", "kind"), rows)
    test = table(tmp_path / "test.csv", ("text", "kind"), [("a goal", "a"), ("a bank", "b"), ("a soup", "")])
    found = inspect([train], [test])
    assert (found.task, found.data.label) == ("classification", "kind")
    assert len(found.train) + len(found.validation) == 60
    assert [example.label for example in found.test] == ["a", "b"]
    assert sorted(found.unlabelled) == sorted(f"unlabelled {row}" for row in range(30))
    assert sum("31 of 91 rows" in line or "1 of 3 rows" in line for line in found.decisions) == 2


def test_texts_without_a_label_are_read_by_the_pretraining(tmp_path: Path) -> None:
    rows = [*classes(), *((f"unlabelled {row}", "") for row in range(30))]
    found = inspect([table(tmp_path / "t.csv", ("text", "label"), rows)])
    ladder = Ladder(found, tmp_path, FitSettings(train=["t.csv"]), [], Display(json=True), 0.0)
    texts = list(ladder.pretraining_texts())
    assert texts == [example.text for example in found.train] + [f"unlabelled {row}" for row in range(30)]


def test_numbers_and_pairs_without_a_label_are_left_out(tmp_path: Path) -> None:
    rows = [(text, "other", number / 7 if number % 3 else "") for number, (text, _) in enumerate(classes())]
    found = inspect([table(tmp_path / "t.csv", ("sentence1", "sentence2", "score"), rows)])
    assert (found.task, len(found.unlabelled)) == ("regression", 20)
    assert found.unlabelled[0].endswith("number 0 other")


def test_a_record_may_lack_the_label_but_not_have_it_under_another_name(tmp_path: Path) -> None:
    lines: list[dict[str, str]] = [{"text": "first"}, *({"text": text, "label": label} for text, label in classes())]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert inspect([str(path)]).unlabelled == ["first"]
    other = table(tmp_path / "u.csv", ("text", "topic"), [("second", "a")])
    with pytest.raises(UserError, match="no column 'label'"):
        inspect([str(path)], [other])


def all_texts(found: Inspection) -> list[set[str]]:
    return [{e.text.lower() for e in part} for part in (found.train, found.validation, found.test)]


def test_repeated_texts_stay_in_one_part(tmp_path: Path) -> None:
    rows = [(text, label) for text, label in classes(40) for _ in range(3)]
    train, validation, test = all_texts(inspect([table(tmp_path / "t.csv", ("text", "label"), rows)]))
    assert not train & validation
    assert not train & test
    assert not validation & test


def test_conflicts_rare_classes_and_leakage_are_warned_about(tmp_path: Path) -> None:
    rows = [
        *classes(),
        ("one more", "B"),
        ("same words here", "a"),
        ("same words here", "b"),
        *[(f"rare one {n}", "c") for n in range(9)],
    ]
    train = table(tmp_path / "train.csv", ("text", "label"), rows)
    test = table(tmp_path / "test.csv", ("text", "label"), [(classes()[0][0], "a"), ("all new", "b")])
    warnings = " ".join(inspect([train], [test]).warnings)
    assert "near-duplicates" in warnings
    assert "c (" in warnings
    assert "'B', 'b'" in warnings
    assert "different labels" in warnings


def test_the_split_depends_on_the_seed_alone(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", ("text", "label"), classes())
    assert all_texts(inspect([path], seed=3)) == all_texts(inspect([path], seed=3))
    assert all_texts(inspect([path], seed=3)) != all_texts(inspect([path], seed=4))


def test_the_split_is_that_of_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table(tmp_path / "t.csv", ("text", "label"), [*classes(), *classes()[::3]])
    here = all_texts(inspect([path]))
    monkeypatch.setattr(inspection, "hash", lambda text: -hash(text), raising=False)  # keys in another order
    assert all_texts(inspect([path])) == here


def test_the_progress_of_reading_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "_REPORTED", 1)
    stream = io.StringIO()
    inspect([table(tmp_path / "t.csv", ("text", "label"), classes())], display=Display(stream=stream))
    assert "reading: 100 %" in stream.getvalue()


@pytest.mark.parametrize(
    ("names", "rows", "message"),
    [
        (("text", "tag", "topic"), [(*one, "ab"[n % 3 == 0]) for n, one in enumerate(classes())], "--label-field"),
        (("summary", "report", "label"), [(t, t[::-1], n) for t, n in classes()], "--text-field"),
        (("1", "a title that is longer than forty characters, as data"), [(2, "x y"), (1, "z w")], "--columns"),
        (("a goal of a team", "a"), classes(), "--columns text,label"),
        (
            ("a title that is longer than forty characters, as data", "1"),
            [("x y", 2), ("z w", 1)],
            "--columns text,label",
        ),
        (
            ("text", "p", "q", "kind"),
            [(t, n % 2, n // 2 % 2, n % 3) for n, (t, _) in enumerate(classes())],
            "--label-field, or each of several columns of 0 and 1",
        ),
        (("text", "label"), [(TEXTS[0], label) for _, label in classes()], "1 different texts"),
        (("text", "label"), [(text, "a") for text, _ in classes()], "one class"),
        (("text", "label"), [(text, 0.5) for text, _ in classes()], "all training labels are 0.5"),
        (("text", "label"), classes(4), "too few"),
        (("text", "label"), [("", label) for _, label in classes()], "text"),
        (("text",), [(text,) for text, _ in classes()], "--task language-model"),
        (("text", "label"), [(text, f"title {n}") for n, (text, _) in enumerate(classes())], "--task text-to-text"),
        (("text", "label"), [], "is empty"),
        (("text", "label"), [(text, f"{n},5") for n, (text, _) in enumerate(classes())], "decimal point.*multi-label"),
        (
            ("text", "label"),
            [(text, n / 7 if n else "NA") for n, (text, _) in enumerate(classes())],
            "'NA' besides numbers; leave",
        ),
        (("text", "label"), [(text, f"€ {n / 7:.2f}") for n, (text, _) in enumerate(classes())], "1234.56"),
        (("text", "label"), [(text, "") for text, _ in classes()], "empty in all 60 rows"),
        (("text", "flag"), [(text, "x" * (n % 2)) for n, (text, _) in enumerate(classes())], "--label-field"),
        (("text", "label"), [(text, "x" * (n % 2)) for n, (text, _) in enumerate(classes())], "30 rows have an empty"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_way_out(
    names: tuple[str, ...], rows: list, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message) as error:
        inspect([table(tmp_path / "t.csv", names, rows)])
    assert "\n" not in str(error.value)


def test_labels_and_columns_that_the_files_lack_are_refused(tmp_path: Path) -> None:
    train = table(tmp_path / "train.csv", ("text", "label"), classes())
    test = table(tmp_path / "test.csv", ("text", "label"), [("a b", "z")])
    with pytest.raises(UserError, match="'z' is not in the training"):
        inspect([train], [test])
    unlabelled = table(tmp_path / "unlabelled.csv", ("text", "label"), [(text, "") for text, _ in classes()])
    with pytest.raises(UserError, match=r"no row of .*unlabelled.csv has a label"):
        inspect([train], [unlabelled])
    for options in ({"label": "lable"}, {"text": ["txt"]}):
        with pytest.raises(UserError, match="there are: text, label"):
            inspect([train], **options)
