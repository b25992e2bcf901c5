"""Every format and compression, and the message for each damaged file."""

import bz2
import csv
import gzip
import http.server
import io
import json
import lzma
import os
import subprocess
import sys
import tarfile
import threading
import zipfile
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
import zstandard

from homespun.errors import UserError
from homespun.text import decoding, formats
from homespun.text.input_files import class_names, digest_files
from homespun.text.quoting import SAMPLE_LINES
from homespun.text.sources import Document, ReadProgress, read_documents, read_records

ROWS = [
    {"text": "Zoë met\nMr. Smith, twice", "label": "7"},
    {"text": 'She said "no"', "label": "11"},
    {"text": "naïve\tcafé", "label": "13"},
]
COMPRESS = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.ZstdCompressor().compress,
    "": bytes,
}


def as_csv(rows: list[dict[str, str]], **kwargs: str) -> bytes:
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, list(rows[0]), **kwargs)
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue().encode()


def as_parquet(rows: list[dict[str, str]]) -> bytes:
    stream = io.BytesIO()
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), stream)
    return stream.getvalue()


def as_jsonl(rows: list[dict[str, str]]) -> bytes:
    return "\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode()


def test_lone_surrogates_are_read_as_question_marks(tmp_path: Path) -> None:
    """An emoji cut in two, as JSON has it: nothing could be written of it."""
    (tmp_path / "a.jsonl").write_text('{"te\\ud83dxt": ["\\ud83d", {"a": "x\\ude00 \\ud83d\\ude00"}], "n": 1}\n')
    (tmp_path / "b.json").write_text('[{"text": "\\ud83d"}]')
    records = list(read_records([str(tmp_path / "a.jsonl"), str(tmp_path / "b.json")]))
    assert records == [{"te?xt": ["?", {"a": "x? \U0001f600"}], "n": 1}, {"text": "?"}]


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
@pytest.mark.parametrize("depth", [700, 100_000])
def test_lists_in_lists_without_end_are_refused(tmp_path: Path, name: str, depth: int) -> None:
    (tmp_path / name).write_text(f'{{"text": "\\ud83d", "x": {"[" * depth}{"]" * depth}}}')
    with pytest.raises(UserError, match=r"1 is n(ot JSON|ested)"):
        list(read_records([str(tmp_path / name)]))


CONTENTS = {
    ".csv": as_csv(ROWS),
    ".tsv": as_csv(ROWS, delimiter="\t"),
    ".jsonl": as_jsonl(ROWS),
    ".ndjson": as_jsonl(ROWS) + b"\n\n",
    ".json": json.dumps(ROWS, indent=3).encode(),
    ".parquet": as_parquet(ROWS),
}


def read(*inputs: object, **kwargs: object) -> list[dict[str, object]]:
    return list(read_records([str(i) for i in inputs], **kwargs))


def problem(*inputs: object, **kwargs: object) -> str:
    with pytest.raises(UserError) as caught:
        list(read_documents([str(i) for i in inputs], **kwargs))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("compression", COMPRESS)
@pytest.mark.parametrize("suffix", CONTENTS)
def test_every_format_in_every_wrapping(tmp_path: Path, suffix: str, compression: str) -> None:
    content = COMPRESS[compression](CONTENTS[suffix])
    name = f"rows{suffix}{compression}"
    (tmp_path / name).write_bytes(content)
    assert read(tmp_path / name) == ROWS

    with zipfile.ZipFile(tmp_path / "rows.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"deep/{name}", content)
    assert read(tmp_path / "rows.zip") == ROWS

    for mode, tar_name in (("w", "rows.tar"), ("w:gz", "rows.tgz"), ("w:xz", "rows.tar.xz")):
        with tarfile.open(tmp_path / tar_name, mode) as tar:
            entry = tarfile.TarInfo(f"../../{name}")  # a name that must never become a path
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
        assert read(tmp_path / tar_name) == ROWS
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        ["rows.tar", "rows.tar.xz", "rows.tgz", "rows.zip", name]
    )


def test_plain_text_is_one_document_a_file(tmp_path: Path) -> None:
    for i, name in enumerate(["a.txt", "b.md", "c.text"]):
        (tmp_path / name).write_text(f"line one\n\nline two of {i}\n")
    (tmp_path / "d.txt").write_text(" \n")
    documents = list(read_documents([str(tmp_path)], text_field="anything"))
    assert documents == [
        Document(f"line one\n\nline two of {i}\n", None, str(tmp_path / name))
        for i, name in enumerate(["a.txt", "b.md", "c.text"])
    ]


def test_documents_have_labels_sources_and_text(tmp_path: Path) -> None:
    rows = [{"t": "one", "y": 3}, {"t": "  "}, {"t": None}, {"t": "two", "y": None}, {"t": "three", "y": True}]
    path = tmp_path / "x.jsonl"
    path.write_bytes(as_jsonl(rows))
    assert [d.text for d in read_documents([str(path)], text_field="t")] == ["one", "two", "three"]
    rows[1]["y"] = rows[2]["y"] = "5"
    path.write_bytes(as_jsonl(rows))
    documents = list(read_documents([str(path)], text_field="t", label_field="y"))
    assert documents[0] == Document("one", "3", f"{path}:1")
    assert documents[1] == Document("two", None, f"{path}:4")


def test_folders_and_globs_are_sorted_and_recursive(tmp_path: Path) -> None:
    for name in ("b/2.jsonl", "a/1.jsonl", "a/z/0.jsonl", ".hidden/3.jsonl", "b/note.docx"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(json.dumps({"text": name}))
    assert [r["text"] for r in read(tmp_path)] == ["a/1.jsonl", "a/z/0.jsonl", "b/2.jsonl"]
    assert [r["text"] for r in read(tmp_path / "**" / "*.jsonl")] == ["a/1.jsonl", "a/z/0.jsonl", "b/2.jsonl"]
    assert [r["text"] for r in read(tmp_path / "b" / "*")] == ["b/2.jsonl"]
    odd = tmp_path / "odd [1].jsonl"  # a name that is also a pattern
    odd.write_text('{"text": "odd"}')
    assert read(odd) == [{"text": "odd"}]


@pytest.mark.parametrize(
    ("files", "labels"),
    [
        ("neg/0_3.txt pos/0_9.txt unsup/0_0.txt labeledBow.feat urls_pos.txt", ["neg", "pos", "", ""]),
        ("a.b/1001 c.d/1002 c.d/1003", ["a.b", "c.d", "c.d"]),
        ("a/1.txt.gz b/1.TXT README.md", ["", "a", "b"]),
        ("a/1.txt b/1.txt b/.hidden.txt .c/1.txt b/note.docx", ["a", "b"]),
        ("a/1.txt b/1.txt 2.txt 3.txt 4.txt", None),
        ("a/1.txt a/2.txt", None),
        ("a/1.txt b/1.txt b/c/1.txt", None),
        ("a/1.md b/1.md", None),
        ("train/1.txt test/1.txt", None),
        ("a/1.txt b/1.txt c.jsonl", None),
    ],
)
def test_texts_in_class_folders_have_a_label(files: str, labels: list[str] | None, tmp_path: Path) -> None:
    for name in files.split():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        content = b'{"text": "words"}' if name.endswith(".jsonl") else b"words"
        (tmp_path / name).write_bytes(COMPRESS[".gz"](content) if name.endswith(".gz") else content)
    records = read(tmp_path)
    assert {record["text"] for record in records} == {"words"}
    assert [record.get("label") for record in records] == (labels or [None] * len(records))
    assert class_names(str(tmp_path)) == sorted(set(labels or ()) - {""})


def test_links_to_folders_are_followed_once(tmp_path: Path) -> None:
    for name in ("data/b/2.txt", "data/.hidden/3.txt", "elsewhere/1.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    data = tmp_path / "data"
    (data / "a").symlink_to(tmp_path / "elsewhere")
    (data / "again").symlink_to(data / "b")
    (data / "b" / "loop").symlink_to(data)
    (tmp_path / "elsewhere" / "back").symlink_to(data)
    (data / ".hidden" / "to").symlink_to(tmp_path / "elsewhere")
    documents = list(read_documents([str(data)]))
    assert [document.source for document in documents] == [str(data / "a" / "1.txt"), str(data / "b" / "2.txt")]


def test_unreadable_folder_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("open", "closed", ".closed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text("words")
    scan = os.scandir

    def guarded(folder: str) -> object:
        if str(folder).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(folder))
        return scan(folder)

    monkeypatch.setattr(os, "scandir", guarded)  # for root, whom nothing is closed to
    assert f"cannot read the folder {tmp_path / 'closed'}: Permission denied" in problem(tmp_path)
    (tmp_path / "closed").rename(tmp_path / "opened")
    assert len(read(tmp_path)) == 2


@pytest.mark.parametrize("names", [["dataset_dict.json"], ["state.json", "dataset_info.json"]])
def test_arrow_folders_of_hugging_face_are_refused(names: list[str], tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).write_text("{}")
    assert "to_parquet" in problem(tmp_path)
    (tmp_path / names[0]).rename(tmp_path / "other.json")
    assert "to_parquet" not in problem(tmp_path, text_field="text")


def test_the_state_of_files_is_that_of_the_local_ones(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("words")
    os.utime(path, (1, 1))
    elsewhere = ["https://host/a.txt", "owner/name", "/dev/stdin" if not os.path.isfile("/dev/stdin") else "s3://x"]
    first = digest_files([str(tmp_path)])
    assert digest_files([str(tmp_path), *elsewhere]) == first
    states = [first]
    for change in (
        lambda: os.utime(path, (2, 2)),
        lambda: (path.write_text("other words"), os.utime(path, (2, 2))),
        lambda: path.rename(tmp_path / "b.txt"),
        lambda: (tmp_path / "c.txt").write_text("more"),
    ):
        change()
        states.append(digest_files([str(tmp_path)]))
    assert len(set(states)) == 5


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252"])
def test_encodings_are_detected(tmp_path: Path, encoding: str) -> None:
    text = "The café owner's résumé: naïve, über, and £5 more than façades cost.\n" * 20
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode(encoding))
    not_utf_8 = pytest.warns(UserWarning, match="not UTF-8: read as cp1252, guessed")
    guessed = nullcontext() if encoding.startswith("utf") else not_utf_8
    with guessed:
        assert read(path) == [{"text": text}]
    if encoding != "utf-16-le" and encoding != "utf-16-be":
        assert read(path, encoding=encoding) == [{"text": text}]


def test_a_file_that_is_ascii_for_long_and_then_latin(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    late = {"text": "Ein schöner Gruß aus München, wo man über die Straße geht"}
    early = [{"text": "plain"}] * 40_000
    path.write_bytes(as_jsonl(early) + b"\n" + json.dumps(late, ensure_ascii=False).encode("latin-1"))
    assert path.stat().st_size > 2 * decoding.CHUNK
    with pytest.warns(UserWarning, match="guessed"):
        assert read(path)[-1] == late


def test_undecodable_bytes_are_named_with_their_offset(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    good = "é".encode() + b"x" * (decoding.CHUNK + 101)
    path.write_bytes(good + b"\xff\xfe tail")
    message = problem(path)
    assert f"offset {len(good)}" in message
    assert "0xff" in message
    assert "encoding=" in message
    assert "--encoding" in message
    path.write_bytes(b"abc\xe4")
    assert "offset 3 is not ascii" in problem(path, encoding="ascii")
    path.write_bytes("é".encode() + b" x" * decoding.CHUNK + b"\xc3")  # cut in the middle of a letter
    assert f"offset {2 + 2 * decoding.CHUNK}" in problem(path)
    text = "你好世界今天天气很好我们去公园玩\n中国的经济发展很快\n" * 4
    path.write_bytes(text.encode() + b"\xe4\xbd")  # not mojibake of another encoding
    assert f"offset {len(text.encode())}" in problem(path)
    path.write_bytes(text.encode("gb18030"))
    with pytest.warns(UserWarning, match="guessed"):
        assert read(path) == [{"text": text}]
    assert "unknown encoding 'uft-9'" in problem(path, encoding="uft-9")
    assert "unknown encoding 'hex'" in problem(path, encoding="hex")


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("a.csv", "label;text\n\n3;a, b\n", [{"label": "3", "text": "a, b"}]),
        ("a.csv", "\n\r\nlabel;text\n3;a, b\n", [{"label": "3", "text": "a, b"}]),
        ("a.csv", "v1 , v2,,\nspam, a b,,\n", [{"v1": "spam", "v2": " a b", "": ""}]),
        ("a.csv", 'label,text\r\n3,"x\r\ny"\r\n', [{"label": "3", "text": "x\ny"}]),
        ("a.csv", f"text,label\n{'z' * 500_000},3\n", [{"text": "z" * 500_000, "label": "3"}]),  # csv's own limit
        (
            "a.tsv",
            'text\n"He said so.\n"Go," she said, "now."\n',
            [{"text": '"He said so.'}, {"text": '"Go," she said, "now."'}],
        ),
        ("a.tsv", 'text\tlabel\n"a\tand\n""b"""\t3\n', [{"text": 'a\tand\n"b"', "label": "3"}]),  # as pandas writes it
        ("a.tsv", 'text\n"one\ntwo"\nlast\n', [{"text": "one\ntwo"}, {"text": "last"}]),  # one column has no tab
    ],
    ids=["semicolons", "empty lines", "names", "line ends", "long", "quotes", "pandas", "one column"],
)
def test_dialects_of_tables(tmp_path: Path, name: str, content: str, rows: list[dict[str, str]]) -> None:
    (tmp_path / name).write_bytes(content.encode())
    assert read(tmp_path / name) == rows


@pytest.mark.parametrize("first", ['3,"Wall; St.; ""Bears; Bulls"""', '3,"Wall; St.;\nBears|Bulls"'])
def test_a_separator_is_not_sought_inside_quotes(first: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"{first}\n7,b\n")
    texts = [row["text"] for row in read(tmp_path / "a.csv", columns=["label", "text"])]
    assert texts == [next(csv.reader(io.StringIO(first)))[1], "b"]


def test_columns_of_a_table_without_a_header(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('3,"a, b"\n5,"c ""d"""\n')
    rows = [{"label": "3", "text": "a, b"}, {"label": "5", "text": 'c "d"'}]
    assert read(tmp_path / "a.csv", columns=["label", "text"]) == rows


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("first,second,score", "a,b,1"),
        ("score, second,first", "1,b,a"),
        ("first,second", "a,b"),
        ("n,score,first", "0,1,a"),
    ],
)
def test_a_header_of_the_given_columns_is_read_as_one(header: str, row: str, tmp_path: Path) -> None:
    """Files for a model that was trained on a file without a header may have one, in another order."""
    (tmp_path / "a.csv").write_text(f"{header}\n{row}\n", encoding="utf-8")
    expected = [dict(zip([name.strip() for name in header.split(",")], row.split(","), strict=True))]
    assert read(tmp_path / "a.csv", columns=["first", "second", "score"]) == expected


def test_a_value_that_is_one_of_the_given_columns_is_no_header(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("spam,Buy now\nham,Hello\n", encoding="utf-8")
    assert [row["spam"] for row in read(tmp_path / "a.csv", columns=["spam", "text"])] == ["spam", "ham"]


def test_tsv_keeps_quotes_beyond_the_sample(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    rows = [f'"{i}\n{i + 1}"\t{i}' for i in range(SAMPLE_LINES)]  # the sample ends within a cell
    path.write_text("text\tlabel\n" + "\n".join(rows))
    assert len(read(path)) == SAMPLE_LINES
    path.write_text('text\tlabel\n"stray\t3\n' + "plain\t5\n" * 2003)
    assert len(read(path)) == 2004


def test_tsv_quotations_over_several_rows_do_not_join_them(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    rows = [("plain one", "pos"), ('"I am here.', "pos"), ('You are not."', "neg"), ("last", "pos")]
    expected = [{"text": text, "label": label} for text, label in rows]
    for before in (0, SAMPLE_LINES - 3):  # the sample may end within the quotation
        lines = ["text\tlabel", *["plain\tpos"] * before, *("\t".join(row) for row in rows)]
        path.write_text("\n".join(lines))
        assert read(path)[before:] == expected


def test_json_shapes(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for wrapper in ({"data": ROWS, "version": "1.1"}, {"articles": ROWS}):
        path.write_text(json.dumps(wrapper))
        assert read(path) == ROWS
    record = {"text": "one record", "spans": [{"start": 3}]}
    path.write_text(json.dumps(record))
    assert read(path) == [record]
    path.write_bytes(as_jsonl(ROWS))  # JSON lines under the wrong name
    assert read(path) == ROWS


def test_a_json_array_is_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "CHUNK", 17)
    path = tmp_path / "a.json"
    rows = [{"text": "x" * n, "n": n} for n in (0, 1, 5, 13, 101, 2003)]
    for indent in (None, 2):
        path.write_text(json.dumps(rows, indent=indent))
        assert read(path) == rows
    path.write_text(json.dumps(rows)[:-1] + ", {oops")
    records = read_records([str(path)])
    assert [next(records) for _ in rows] == rows  # all the whole ones come first
    with pytest.raises(UserError, match="value 7"):
        next(records)


@pytest.mark.parametrize(
    ("name", "content", "options", "words"),
    [
        ("a.csv", 'text,label\n"two\nlines",3\nonly one\n', {}, "line 4 has 1 cell, the header has 2 (text, label)"),
        ("a.csv", "text,label\na,3\n", {"columns": ["text", "b", "c"]}, "columns has 3"),
        ("a.csv", "text,text\na,b\n", {}, "two columns 'text'"),
        ("a.csv", "text,text\na,b\n", {}, "--columns"),
        ("a.csv", 'text,label\n"never closed,3\n', {}, "line 2"),
        ("a.csv", "text,label\n", {}, "empty"),
        ("a.csv", "text,label\na,3\n", {"text_field": "txt"}, "'txt'; did you mean 'text'?; there are: text, label"),
        ("a.csv", "text,label\na,3\n", {"label_field": "zzz"}, "no column 'zzz'; there are: text, label"),
        ("a.txt", "some text", {"label_field": "label"}, "no column 'label'; there are: text"),
        ("a.jsonl", '{"text": ["a"]}', {}, "a.jsonl:1: 'text' is list, not text"),
        ("a.jsonl", '{"text": "a", "label": {}}', {"label_field": "label"}, "the label 'label' is dict"),
        ("a.jsonl", '{"text": ""}\n{"text": null}', {}, "no text"),
        ("a.jsonl", '{"text": "a"}\n\n{"text": \n', {}, "line 3 is not JSON"),
        ("a.jsonl", '{"text": "a"}\n[3]\n', {}, "line 2 is a JSON list"),
        ("a.jsonl", '[{"text": "a"}]', {}, ".json"),
        ("a.json", "[]", {}, "empty"),
        ("a.json", '[{"text": "a"}', {}, "truncated"),
        ("a.json", '[{"text": "a"} {"text": "b"}]', {}, "comma"),
        ("a.json", '[{"text": "a"}] x', {}, "text after"),
        ("a.json", '[{"text": "a"}, 3]', {}, "value 2 is a JSON int"),
        ("a.json", '[{"text": "a"}, null, {"text": "b"}]', {}, "value 2 is a JSON NoneType"),
        ("a.json", '[null, {"text": "b"}]', {}, "value 1 is a JSON NoneType"),
        ("a.json", '{"text": "a"', {}, "truncated"),
        ("a.json", "[" * 200_000, {}, "value 1"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_mistakes_in_files(tmp_path: Path, name: str, content: str, options: dict[str, object], words: str) -> None:
    (tmp_path / name).write_text(content)
    assert words in problem(tmp_path / name, **options)


def test_missing_empty_and_unknown(tmp_path: Path) -> None:
    assert "no such file" in problem(tmp_path / "none.csv")
    assert "matches nothing" in problem(tmp_path / "*.csv")
    assert "no file of a known kind" in problem(tmp_path)
    (tmp_path / "a.docx").write_text("x")
    assert "unknown kind of file; save .docx files as .txt; known are .txt" in problem(tmp_path / "a.docx")
    assert "known kind; save .docx files as .txt" in problem(tmp_path)
    assert "other kinds" in problem(tmp_path / "*.docx")
    for suffix in (".txt", ".csv", ".json", ".jsonl"):
        (tmp_path / f"empty{suffix}").write_bytes(b"")
        assert "empty" in problem(tmp_path / f"empty{suffix}")
    assert "no input" in problem()


@pytest.mark.parametrize(
    "name", ["a.jsonl.gz", "a.jsonl.xz", "a.jsonl.bz2", "a.jsonl.zst", "a.zip", "a.tgz", "a.parquet"]
)
def test_cut_short(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    rows = [{"text": str(hash((i, 7))), "n": str(i)} for i in range(5003)]
    if name == "a.zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.jsonl", as_jsonl(rows))
    elif name == "a.tgz":
        with tarfile.open(path, "w:gz") as tar:
            entry = tarfile.TarInfo("a.jsonl")
            entry.size = len(as_jsonl(rows))
            tar.addfile(entry, io.BytesIO(as_jsonl(rows)))
    elif name == "a.parquet":
        path.write_bytes(as_parquet(rows))
    else:
        path.write_bytes(COMPRESS[path.suffix](as_jsonl(rows)))
    content = path.read_bytes()
    assert len(read(path)) == 5003
    for length in (len(content) - 7, len(content) // 2):
        path.write_bytes(content[:length])
        message = problem(path)
        assert "cut short" in message
    path.write_bytes(b"this is no archive at all, only its name says so" * 10)
    assert "a." in problem(path)


def test_a_tar_that_was_cut_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        for name in ("a.txt", "note.docx", "b.txt", "c.txt"):
            entry = tarfile.TarInfo(name)
            entry.size = 5
            tar.addfile(entry, io.BytesIO(b"words"))
    content = path.read_bytes()
    path.write_bytes(content[: 4 * 1024 + 512])  # one block of zeros is an end too
    assert len(read(path)) == 3
    for length in (512, 1023, 1024, 1124, 1536, 2048, 2559, 3072, 4096, 4096 + 511):
        path.write_bytes(content[:length])
        assert "a.tar is cut short or damaged" in problem(path), length
    path.write_bytes(content[:1024] + b"x" + content[1025:])
    assert "bad checksum instead of a file or the end of the archive" in problem(path)


def test_zstd_frames_one_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.zst"
    frames = [COMPRESS[".zst"](text.encode()) for text in ("one ", "", "two " * 70_001)]
    path.write_bytes(b"".join(frames))
    assert read(path) == [{"text": "one " + "two " * 70_001}]


def test_archives_pass_over_what_is_not_text(tmp_path: Path) -> None:
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("x.txt", "never read")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name, content in (("__MACOSX/a.txt", "x"), ("b.png", "x"), ("in.zip", inner.getvalue()), ("c.txt", "yes")):
            archive.writestr(name, content)
    assert read(tmp_path / "a.zip") == [{"text": "yes"}]


def test_http_and_a_connection_that_breaks(tmp_path: Path) -> None:
    content = gzip.compress(as_jsonl(ROWS))
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("deep/which?.jsonl", as_jsonl(ROWS))

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            plain = self.path.startswith("/plain")
            body = b"half a text" if plain else archive.getvalue() if "zip" in self.path else content
            self.send_response(404 if "none" in self.path else 200)
            self.send_header("Content-Length", str(len(body) + 5 * plain))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_port}"
        assert read(f"{base}/rows.jsonl.gz?version=3") == ROWS
        assert read(f"{base}/rows.zip?download=1") == ROWS
        assert "cut short" in problem(f"{base}/plain.txt")
        assert "404" in problem(f"{base}/none.txt")
        server.shutdown()


def test_other_addresses_go_through_fsspec() -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe("/shelf/b.parquet", CONTENTS[".parquet"])
    memory.pipe("/shelf/a.csv.gz", gzip.compress(CONTENTS[".csv"]))
    memory.pipe("/other/no#1.csv", CONTENTS[".csv"])
    assert read("memory://other") == ROWS
    assert read("memory://shelf/b.parquet") == ROWS
    assert read("memory://shelf") == ROWS + ROWS
    assert read("memory://shelf/*.gz") == ROWS
    assert "cannot read memory:" in problem("memory://shelf/none.csv")
    assert "cannot reach nothing://x" in problem("nothing://x")


def test_hub_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import datasets
    import huggingface_hub

    asked = []

    def load(name: str, configuration: str | None, *, split: str, streaming: bool) -> list[dict[str, str]]:
        asked.append((name, configuration, split, streaming))
        return ROWS

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda *_, **__: None)
    assert read("owner/name", "owner/name/small:test") == ROWS + ROWS
    assert asked == [("owner/name", None, "train", True), ("owner/name", "small", "test", True)]
    (tmp_path / "owner").mkdir()  # now it is a path with a slip in it
    assert "no such file or folder" in problem("owner/nmae")

    def offline(*_: object, **__: object) -> None:
        raise ConnectionError("no network\nat all")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", offline)
    assert problem("other/name").endswith("could be read from the hub: no network")


def test_reading_is_lazy(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(as_jsonl([{"text": "x" * 1009}] * 1000) + b"\nnot json")
    records = read_records([str(path), "never/opened"])
    assert next(records) == {"text": "x" * 1009}


def test_importing_is_cheap() -> None:
    heavy = ["pyarrow", "datasets", "fsspec", "charset_normalizer", "torch", "huggingface_hub", "zstandard"]
    code = f"import sys, homespun.text.sources; print([m for m in {heavy} if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.mark.data
@pytest.mark.skipif(not DATA.is_dir(), reason="the shared data sets are not beside the checkout")
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("edgar_10k/sections.zip", 62),
        ("sst2/train.tsv.gz", 67349),
        ("patents_ipc/patents.csv.gz", 12428),
        ("twitter_financial_topic/*.csv.gz", 21107),
        ("xquad/xquad.en.json", 48),
        ("imdb/test.jsonl.gz", 25000),
    ],
)
def test_number_of_records_of_real_files(name: str, count: int) -> None:
    assert sum(1 for _ in read_records([str(DATA / name)])) == count


@pytest.mark.data
@pytest.mark.skipif(not DATA.is_dir(), reason="the shared data sets are not beside the checkout")
def test_encoding_of_a_real_latin_file() -> None:
    path = DATA / "financial_phrasebank" / "Sentences_50Agree.txt"
    with pytest.warns(UserWarning, match="guessed"):
        detected = read(path)
    assert detected == read(path, encoding="latin-1")


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_read_progress_is_monotonic_and_ends_at_one(tmp_path: Path, suffix: str) -> None:
    lines = "".join(json.dumps({"text": f"{number} {'word ' * (number % 97)}"}) + "\n" for number in range(5003))
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl{suffix}").write_bytes(COMPRESS[suffix](lines.encode()))
    inputs = [str(tmp_path)]
    read_progress = ReadProgress(inputs)
    shares = [read_progress.share for _ in read_records(inputs, read_progress=read_progress)]
    assert len(shares) == 2 * 5003
    assert all(share is not None for share in shares)
    assert shares == sorted(shares)
    assert 0 < shares[0] < 0.5 < shares[-1] <= 1 == read_progress.share


def test_the_meter_does_not_know_what_is_not_on_the_disk(tmp_path: Path) -> None:
    assert ReadProgress(["memory://folder/a.jsonl"]).share is None
    assert ReadProgress(["someone/something"]).share is None
    assert ReadProgress([str(tmp_path / "missing.txt")]).share is None


def test_long_documents_are_left_out_and_counted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 101)
    lines = ['{"text": "short"}', json.dumps({"text": "y" * 101}), '{"text": "\\u00e9"}']
    (tmp_path / "b.jsonl").write_text("\n".join(lines))
    (tmp_path / "c.csv").write_text(f"text\n{'z' * 60}\nfits\n")
    with pytest.warns(UserWarning, match=r"2 documents of more than 50 characters, the first is .*a\.txt"):
        found = [document.text for document in read_documents([str(tmp_path / "[ab]*")], max_characters=50)] + [
            document.text for document in read_documents([str(tmp_path / "c.csv")], max_characters=100)
        ]
    assert found == ["short", "é", "z" * 60, "fits"]


def test_an_input_of_long_documents_names_the_limit(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"text\n{'x' * 60}\n{'y' * 60}\n")
    with (
        pytest.warns(UserWarning, match="2 documents of more than 50 characters"),
        pytest.raises(UserError, match=r"more than 50 characters; raise the limit"),
    ):
        list(read_documents([str(tmp_path / "a.csv")], max_characters=50))


@pytest.mark.parametrize("name", ["a.txt", "b.jsonl", "c.csv", "d.json"])
def test_an_input_of_one_long_document_is_refused(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {".txt": "x" * 300_000, ".csv": f"text\n{'x' * 300_000}\n", ".jsonl": json.dumps({"text": "x" * 300_000})}
    path = tmp_path / name
    path.write_text(rows.get(path.suffix, json.dumps([{"text": "x" * 300_000}])))
    with pytest.raises(UserError, match=r"more than 1,000 characters"):
        list(read_documents([str(path)], max_characters=1000))
    monkeypatch.setattr("homespun.text.sources.ReadOptions", partial(formats.ReadOptions, max_characters=1000))
    with pytest.raises(UserError, match=r"more than 1,000 characters"):
        list(read_records([str(path)]))


@pytest.mark.parametrize("suffix", [".zip", ".txt.gz", ".txt.bz2", ".txt.xz", ".txt.zst"])
def test_bombs_are_refused(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("homespun.text.byte_streams.FREE_BYTES", 1_000_000)
    path, content = tmp_path / f"a{suffix}", b" " * 40_000_000
    if suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.txt", content)
    else:
        compress = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstandard.compress}
        path.write_bytes(compress[path.suffix](content))
    with pytest.raises(UserError, match="grows more than 250 times"):
        list(read_documents([str(path)]))


def test_damaged_names_and_byte_order_marks(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("é.txt", "text")
    (tmp_path / "a.zip").write_bytes((tmp_path / "a.zip").read_bytes().replace("é".encode(), b"\x9b\x9b"))
    with pytest.raises(UserError, match="damaged"):
        list(read_documents([str(tmp_path / "a.zip")]))
    (tmp_path / "a.csv").write_bytes("text\na".encode("utf-16-le"))
    with pytest.raises(UserError, match="BOM"):
        list(read_documents([str(tmp_path / "a.csv")], encoding="utf-16"))
