"""Files of word vectors: written files are read, also by gensim; damaged files give an error of one line."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from homespun.errors import UserError
from homespun.io.lock import locked
from homespun.vectors.store import open_vectors, save_vectors
from homespun.vectors.word_vectors import WordVectors

WORDS = ["the", "naïve", "東京", "a_b", ",", "ﬁ", "0"]


def made_up(size: int = 5) -> WordVectors:
    values = np.random.default_rng(0).standard_normal((len(WORDS), size)).astype(np.float32)
    values[0, 0], values[1, 1], values[2, 2] = 1e-38, 0.1, -3e38
    return WordVectors(WORDS, values, np.arange(7, 0, -1), {"seed": 3})


@pytest.mark.parametrize("name", ["folder", "file.txt", "file.vec", "file.bin"])
def test_what_was_written_is_read_to_the_bit(tmp_path: Path, name: str) -> None:
    given = made_up()
    for _ in range(2):  # the second takes the place of the first
        save_vectors(given, tmp_path / name)
    read = open_vectors(tmp_path / name)
    assert list(read.words) == WORDS
    assert np.array_equal(read.vectors, given.vectors)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    if name == "folder":
        assert read.counts.tolist() == [7, 6, 5, 4, 3, 2, 1]
        assert read.about == {"seed": 3}


@pytest.mark.parametrize("binary", [False, True])
def test_gensim_reads_ours_and_we_read_gensims(tmp_path: Path, binary: bool) -> None:
    models = pytest.importorskip("gensim.models")
    path = tmp_path / ("ours.bin" if binary else "ours.txt")
    save_vectors(made_up(), path)
    theirs = models.KeyedVectors.load_word2vec_format(str(path), binary=binary)
    assert theirs.index_to_key == WORDS
    assert np.array_equal(theirs.vectors, made_up().vectors)
    back = tmp_path / ("theirs.bin" if binary else "theirs.txt")
    theirs.save_word2vec_format(str(back), binary=binary)
    read = open_vectors(back)
    assert list(read.words) == WORDS
    np.testing.assert_allclose(read.vectors, made_up().vectors, rtol=1e-6)


def test_gloves_text_has_no_first_line_and_spaces_in_words(tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    path.write_text("the 1 2.5 -3\n. . . 4 5 6\nof 7e-1 8 9\n", encoding="utf-8")
    read = open_vectors(path)
    assert read.words == ["the", ". . .", "of"]
    assert read.vectors[2].tolist() == pytest.approx([0.7, 8, 9])


def binary(header: str, *entries: tuple[bytes, tuple[float, ...]]) -> bytes:
    return header.encode() + b"".join(word + b" " + struct.pack(f"<{len(v)}f", *v) + b"\n" for word, v in entries)


DAMAGED: dict[str, tuple[str, bytes, str]] = {
    "empty": ("a.txt", b"", "no word vectors"),
    "no vectors said": ("a.txt", b"0 5\n", "zero vectors"),
    "cut short": ("a.txt", b"3 2\na 1 2\nb 3 4\n", "cut short"),
    "cut in a line": ("a.txt", b"2 3\nabcdefg 1 2 3\nbcdefgh 3\n", "line 3 has 1 numbers"),
    "more than said": ("a.txt", b"1 2\na 1 2\nb 3 4\n", "2 vectors, but 1"),
    "a huge size": ("a.txt", b"99999999999 300\na 1 2\n", "cut short"),
    "twice": ("a.txt", b"2 2\na 1 2\na 3 4\n", "'a' has two vectors"),
    "not a number": ("a.txt", b"2 2\na 1 2\nb 3 x\n", "line 3 "),
    "nan": ("a.txt", b"2 2\na 1 2\nb nan 4\n", "'b' has"),
    "not utf-8": ("a.txt", b"1 2\n\xff\xfe 1 2\n", "line 2 "),
    "a picture": ("a.bin", b"\x89PNG\r\n\x1a\n" + bytes(99), "binary format"),
    "binary cut short": ("a.bin", binary("3 2\n", (b"a", (1, 2)), (b"b", (3, 4))), "cut short"),
    "binary huge": ("a.bin", binary("99999999999 300\n", (b"a", (1, 2))), "cut short"),
    "binary twice": ("a.bin", binary("2 2\n", (b"a", (1, 2)), (b"a", (3, 4))), "'a' has two vectors"),
    "binary infinite": ("a.bin", binary("2 2\n", (b"a", (1, 2)), (b"b", (3, float("inf")))), "not finite"),
    "binary more": ("a.bin", binary("1 2\n", (b"a", (1, 2)), (b"b", (3, 4))), "data after the 1 vectors"),
    "binary without a word": ("a.bin", b"1 2\n" + b"x" * 20_000, "vector 1 has no word"),
    "pickled": ("a.kv", b"\x80\x04.", "pickled files are not read"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_files_are_one_line(tmp_path: Path, case: str) -> None:
    name, content, message = DAMAGED[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        open_vectors(tmp_path / name)
    assert str(caught.value).startswith(str(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_a_damaged_folder_is_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "vectors"
    save_vectors(made_up(), folder)
    content = (folder / "words.json").read_text(encoding="utf-8")

    def refused(content: str, message: str) -> None:
        (folder / "words.json").write_text(content, encoding="utf-8")
        with pytest.raises(UserError, match=message):
            open_vectors(folder)

    refused(content[:-9], "cut short or altered")
    refused("[]", "not of format 1")
    refused(json.dumps(json.loads(content) | {"words": ["the", *WORDS[:-1]]}), "'the' has two vectors")
    refused(json.dumps(json.loads(content) | {"words": WORDS[1:], "counts": None}), "6 words .*\\(7, 5\\)")
    refused(json.dumps(json.loads(content) | {"words": [1, *WORDS[1:]]}), "no list of words")
    refused(json.dumps(json.loads(content) | {"counts": [1.5] * 7}), "not integers")
    (folder / "words.json").write_text(content, encoding="utf-8")
    open_vectors(folder)
    save_file({"vectors": np.zeros((7, 5), np.float32)}, folder / "vectors.safetensors")
    with pytest.raises(UserError, match=r"vectors\.safetensors"):
        open_vectors(folder)
    (folder / "words.json").unlink()
    with pytest.raises(UserError, match=r"words\.json"):
        open_vectors(folder)
    with pytest.raises(UserError, match="homespun vectors train"):
        open_vectors(tmp_path / "nothing")


def test_a_killed_write_is_repeated(tmp_path: Path) -> None:
    """It leaves vectors without their words, and a temporary file of a process that has ended."""
    folder = tmp_path / "vectors"
    with locked(folder, as_one=True):
        save_vectors(made_up(), folder)
    (folder / "words.json").rename(folder / f".tmp-{2**22 + 1}-words.json")
    with locked(folder, as_one=True):
        save_vectors(made_up(), folder)
    assert sorted(path.name for path in folder.iterdir()) == ["vectors.safetensors", "words.json"]
    assert open_vectors(folder).words == WORDS


def test_nothing_else_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thing").touch()
    (tmp_path / "file").touch()
    (tmp_path / "folder.bin").mkdir()
    for name, message in (("other", "other files"), ("file", "is a file"), ("folder.bin", "is a folder")):
        with pytest.raises(UserError, match=message):
            save_vectors(made_up(), tmp_path / name)
    with pytest.raises(UserError, match="white space"):
        save_vectors(WordVectors(["a b"], np.ones((1, 2), np.float32)), tmp_path / "a.txt")
    assert not (tmp_path / "a.txt").exists()
