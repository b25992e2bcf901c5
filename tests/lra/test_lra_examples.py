"""Parts of a folder by name, classes as folders, images as texts; errors of files in one line."""

from pathlib import Path

import numpy as np
import pytest
from benchmarks.lra.examples import Examples, Files, table_reader
from benchmarks.lra.pixels import read_images
from benchmarks.lra.tasks import RetrievalTask

from homespun.data.labels import Labels
from homespun.errors import UserError


def table(path: Path, rows: int, start: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["text,label", *(f"text {number},{number % 2}" for number in range(start, start + rows))]
    path.write_text("\n".join(lines))


READ = table_reader(["text"], "label", None, characters=100)


@pytest.mark.parametrize(
    ("train", "validation", "test"),
    [
        ("train.csv", "validation.csv", "test.csv"),
        ("basic_train.csv", "basic_val.csv", "basic_test.csv"),
        ("new_aan_pairs.train.csv", "new_aan_pairs.eval.csv", "new_aan_pairs.test.csv"),
        ("train/part.csv", "dev/part.csv", "test/part.csv"),
        ("data.csv", "valid.csv", "test_data.csv"),
    ],
)
def test_splits_are_found_by_name(tmp_path: Path, train: str, validation: str, test: str) -> None:
    for name, rows in ((train, 41), (validation, 11), (test, 13)):
        table(tmp_path / name, rows)
    (tmp_path / "README.md").write_text("of no part")
    parts = Files().read(str(tmp_path), READ)
    assert {split: len(examples) for split, examples in parts.items()} == {"train": 41, "validation": 11, "test": 13}


def test_without_a_validation_file_training_rows_are_held_out(tmp_path: Path) -> None:
    table(tmp_path / "train.csv", 60)
    table(tmp_path / "test.csv", 20, start=100)
    parts = Files(validation=0.25, train_rows=31, test_rows=7, seed=3).read(str(tmp_path), READ)
    assert [len(parts[split]) for split in ("train", "validation", "test")] == [31, 15, 7]
    assert not set(parts["train"].texts) & set(parts["validation"].texts)
    assert sorted(parts["validation"].labels) in (["0"] * 7 + ["1"] * 8, ["0"] * 8 + ["1"] * 7)
    again = Files(validation=0.25, train_rows=31, test_rows=7, seed=3).read(str(tmp_path), READ)
    assert again == parts


def test_classes_as_folders(tmp_path: Path) -> None:
    for part, rows in (("train", 11), ("test", 3)):
        for name in ("neg", "pos", "unsup"):
            folder = tmp_path / part / name
            folder.mkdir(parents=True)
            for number in range(rows):
                (folder / f"{number}.txt").write_text(f"{name} {number}")
    parts = Files(validation=0.2).read(str(tmp_path), READ)
    assert set(parts["train"].labels) == {"neg", "pos"}
    assert all(text.startswith(label) for text, label in zip(parts["test"].texts, parts["test"].labels, strict=True))
    assert len(parts["test"]) == 6


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="give --data FOLDER"):
        Files().read("", READ)
    with pytest.raises(UserError, match=r"'train' .*: nothing"):
        Files().read(str(tmp_path), READ)
    table(tmp_path / "train.csv", 40)
    with pytest.raises(UserError, match=r"'test' .*: train\.csv"):
        Files().read(str(tmp_path), READ)
    (tmp_path / "test.csv").write_text("text,label\none,1\ntwo,\n")
    with pytest.raises(UserError, match=r"row 2 of .* 'label'"):
        Files().read(str(tmp_path), READ)
    with pytest.raises(UserError, match=r"'topic'.*: text, label"):
        Files().read(str(tmp_path), table_reader(["text"], "topic", None, characters=9))


def test_shortest_first_and_pairs_stay_together() -> None:
    examples = Examples(["aaa", "b", "cc"], ["3", "1", "2"], ["", "yyyyyy", "z"])
    ordered = examples.by_length()
    assert list(zip(ordered.texts, ordered.labels, ordered.others or [], strict=True)) == [
        ("aaa", "3", ""),
        ("cc", "2", "z"),
        ("b", "1", "yyyyyy"),
    ]


def test_pairs_are_rows_of_two_documents_each_cut_alone() -> None:
    task = RetrievalTask(length=11)
    tokenizer = task.tokenizer()
    rows = task.rows(Examples(["abc", "x" * 50], ["0", "1"], ["d" * 50, ""]), tokenizer, Labels(("0", "1")))
    assert rows.lengths.tolist() == [3 + 2 + 11, 11 + 2]
    assert rows.truncated == 2
    row = rows[0]
    assert row.documents.tolist() == [0] * 5 + [1] * 11
    for document, text in ((0, "abc"), (1, "d" * 9)):
        ids = row.input_ids[row.documents == document]
        assert (ids[0], ids[-1]) == (tokenizer.cls_id, tokenizer.sep_id)
        assert tokenizer.decode(ids[1:-1]) == text


def test_images_are_texts_of_a_character_a_pixel(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (7, 3, 5), dtype=np.uint8)
    np.savez(tmp_path / "train.npz", images=images, labels=np.arange(7))
    texts, labels = read_images([tmp_path / "train.npz"])
    assert labels == [*"0123456"]
    assert [[ord(character) for character in text] for text in texts] == images.reshape(7, -1).tolist()


def test_colours_become_grey(tmp_path: Path) -> None:
    colours = np.zeros((4, 2, 2, 3), np.uint8)
    colours[0], colours[1, ..., 0], colours[2, ..., 1] = 255, 100, 100
    np.savez(tmp_path / "train.npz", images=colours, labels=np.array(["w", "r", "g", "b"]))
    texts, labels = read_images([tmp_path / "train.npz"])
    assert labels == ["w", "r", "g", "b"]
    assert [ord(text[0]) for text in texts] == [255, 30, 59, 0]


def test_the_binary_version_of_cifar10(tmp_path: Path) -> None:
    planes = np.zeros((2, 3, 32, 32), np.uint8)
    planes[1, 0, 0, 1] = 200  # red, first row, second column
    (tmp_path / "data_batch_1.bin").write_bytes(
        b"".join(bytes([label]) + plane.tobytes() for label, plane in zip((6, 9), planes, strict=True))
    )
    texts, labels = read_images([tmp_path / "data_batch_1.bin"])
    assert labels == ["6", "9"]
    assert [len(text) for text in texts] == [1024, 1024]
    assert [ord(texts[1][i]) for i in range(3)] == [0, 60, 0]


def test_images_that_cannot_be_used(tmp_path: Path) -> None:
    images, labels = np.zeros((5, 3, 3), np.uint8), np.arange(5)
    wrong = {
        "nothing": ({"images": images}, "has no array 'labels'; there are: images"),
        "floats": ({"images": images / 255, "labels": labels}, r"uint8, not \(5, 3, 3\) float64"),
        "flat": ({"images": images.reshape(5, 9), "labels": labels}, r"not \(5, 9\) uint8"),
        "fewer": ({"images": images, "labels": labels[:4]}, r"labels must be \(5,\)"),
        "objects": ({"images": images, "labels": np.array([None] * 5)}, "cannot read"),
    }
    for name, (arrays, message) in wrong.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
        with pytest.raises(UserError, match=message):
            read_images([tmp_path / f"{name}.npz"])
    for name, message in (("data_batch_1", "is a pickle, never loaded"), ("cut.bin", "no multiple of 3073")):
        (tmp_path / name).write_bytes(b"\x80\x04nonsense")
        with pytest.raises(UserError, match=message):
            read_images([tmp_path / name])
    (tmp_path / "cut.npz").write_bytes((tmp_path / "fewer.npz").read_bytes()[:100])
    np.save(tmp_path / "array.npy", images)
    (tmp_path / "array.npy").rename(tmp_path / "array.npz")
    for name in ("cut", "array"):
        with pytest.raises(UserError, match=r"no \.npz file"):
            read_images([tmp_path / f"{name}.npz"])
