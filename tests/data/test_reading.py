"""Documents of files: one column and several follow the same rules."""

import json
from pathlib import Path

import pytest

import homespun
from homespun.data.reading import Reading, reading
from homespun.errors import UserError

ROWS = [
    {"title": " One ", "body": "two", "label": None},
    {"title": "", "body": "three", "label": float("nan")},
    {"title": 1999, "body": "four", "label": "b"},
    {"title": "x", "body": "long " * 60_000, "label": "a"},
]


def write(path: Path) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("fields", "texts"), [(["body"], ["two", "three", "four"]), (["title", "body"], ["One two", "three", "1999 four"])]
)
def test_labels_lengths_and_places_of_one_and_several_columns(
    fields: list[str], texts: list[str], tmp_path: Path
) -> None:
    path = write(tmp_path / "a.jsonl")
    with pytest.warns(UserWarning, match=r"1 document of more than 100 .*a\.jsonl"):
        found = list(reading([path], text_fields=fields, label_field="label", max_characters=100).documents())
    assert [document.text for document in found] == texts
    assert [document.label for document in found] == [None, None, "b"]
    assert [document.source for document in found] == [f"{path}:{line}" for line in (1, 2, 3)]


def test_a_table_cell_beyond_the_limit_is_left_out_of_several_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\nshort,text\n" + "much " * 30 + ",longer\n")
    with pytest.warns(UserWarning, match="1 document "):
        assert [one.text for one in reading([str(path)], text_fields=["a", "b"], max_characters=20).documents()] == [
            "short text"
        ]


def test_text_files_have_one_text_for_any_columns(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("plain")
    assert [one.text for one in reading([str(tmp_path)], text_fields=["a", "b"]).documents()] == ["plain"]


def test_several_columns_without_text(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": "", "b": null}')
    with pytest.raises(UserError, match="no text; 'a', 'b'"):
        list(reading([str(path)], text_fields=["a", "b"]).documents())
    path.write_text('{"a": "", "b": [1]}')
    with pytest.raises(UserError, match=r"a\.jsonl:1: 'b' is list"):
        list(reading([str(path)], text_fields=["a", "b"]).documents())


def test_the_public_name() -> None:
    assert homespun.reading is Reading
    with pytest.raises(UserError, match="--input"):
        homespun.reading([])
