"""Atomic writes: the old content or the new, and nothing left behind."""

import json
import math
import os
import stat

import pytest

from homespun.errors import UserError
from homespun.io.atomic import atomic_path, file_digest, write_bytes, write_text
from homespun.io.json import read_json, read_object, read_optional, to_json, write_json, write_lines


def test_a_file_is_replaced(tmp_path):
    path = tmp_path / "new" / "a.txt"
    write_text(path, "one\n")
    write_bytes(path, "zwölf".encode())
    assert path.read_text(encoding="utf-8") == "zwölf"
    assert [entry.name for entry in path.parent.iterdir()] == ["a.txt"]
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


def test_a_folder_is_replaced(tmp_path):
    folder = tmp_path / "model"
    for name in ("first", "second"):
        with atomic_path(folder) as temporary:
            (temporary / "deep").mkdir(parents=True)
            (temporary / "deep" / name).write_text(name)
    names = [str(path.relative_to(folder)) for path in sorted(tmp_path.rglob("*"))]
    assert names == [".", "deep", "deep/second"]


@pytest.mark.parametrize("folder", [False, True])
def test_an_error_keeps_the_old_content(tmp_path, folder):
    path = tmp_path / "a.csv"
    write_text(path, "old")
    with pytest.raises(KeyboardInterrupt), atomic_path(path) as temporary:
        assert temporary.suffix == ".csv"
        if folder:
            temporary.mkdir()
        (temporary / "half" if folder else temporary).write_text("ha")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_digest_is_of_the_content(tmp_path):
    for name, content in (("a", b"1"), ("b", b"1"), ("c", b"2")):
        (tmp_path / name).write_bytes(content)
    first, same, other = (file_digest(tmp_path / name) for name in "abc")
    assert first == same != other
    assert len(first) == 32


@pytest.mark.parametrize("content", ["", "{", "[" * 100_000, b"\xff"])
def test_what_is_not_json_is_refused(tmp_path, content):
    path = tmp_path / "a.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=r"a\.json .*JSON"):
        read_json(path)


def test_an_object_is_wanted(tmp_path):
    write_text(tmp_path / "a.json", "[1]")
    assert read_json(tmp_path / "a.json") == [1]
    with pytest.raises(UserError, match="object, not list"):
        read_object(tmp_path / "a.json")
    assert read_optional(tmp_path / "b.json") == {}
    with pytest.raises(UserError, match=r"b\.json"):
        read_object(tmp_path / "b.json")


def test_numbers_that_are_not_finite_are_null(tmp_path):
    content = {"a": [1.5, math.inf, {"b": math.nan, "c": "Infinity"}], "é": -math.inf}
    finite = {"a": [1.5, None, {"b": None, "c": "Infinity"}], "é": None}
    write_json(tmp_path / "a.json", content)
    write_lines(tmp_path / "a.jsonl", [content, {"a": 2}])
    for text in ((tmp_path / "a.json").read_text(), (tmp_path / "a.jsonl").read_text().splitlines()[0]):
        assert json.loads(text, parse_constant=pytest.fail) == finite
    assert json.loads(to_json({"p": tmp_path, "n": math.nan}, default=str)) == {"p": str(tmp_path), "n": None}
    with pytest.raises(TypeError):
        to_json({"p": tmp_path})
