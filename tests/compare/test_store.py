"""Versions of a unit: a reader finds a complete one, whatever happened to the writer."""

import json
import shutil
from pathlib import Path

import fsspec
import pytest
from failing_store import UNIT, Failing, contents, restored

from homespun.compare.store import Publisher, Store
from homespun.errors import UserError


class Machine:
    """A folder with a run and its log, and the publisher of both."""

    def __init__(self, store: Store, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.run = folder, folder / UNIT
        self.restored = store.restore(UNIT, folder)
        self.publisher = Publisher(store, UNIT, folder, lambda: (folder / "log", *self.run.rglob("*")))

    def train(self, step: int) -> None:
        """Do what a training does in a step: append to its metrics, write a checkpoint, remove the one before."""
        last = self.run / "checkpoints" / f"step-{step}"
        last.mkdir(parents=True)
        (last / "model.safetensors").write_bytes(bytes([step]) * 1009)
        (last / "state.json").write_text(json.dumps({"step": step}))
        with (self.run / "metrics.jsonl").open("a") as metrics:
            metrics.write(f"{step}\n")
        if step > 1:
            shutil.rmtree(self.run / "checkpoints" / f"step-{step - 1}")


def objects(store: Store) -> list[str]:
    return [name.rpartition("/")[2] for name in store.sizes()]


def test_a_version_is_restored_and_replaces_the_one_before(store: Store, tmp_path: Path) -> None:
    machine = Machine(store, tmp_path / "first")
    assert not machine.restored
    for step in (1, 2):
        machine.train(step)
        (machine.folder / "log").write_text(f"log {step}")
        machine.publisher.publish()
    assert restored(store, tmp_path / "second") == contents(machine.folder)
    assert len(objects(store)) == len(contents(machine.folder)) + 1
    (tmp_path / "main" / UNIT).mkdir(parents=True)
    (tmp_path / "main" / UNIT / "stale.json").touch()
    assert store.restore(UNIT, tmp_path / "main", checkpoints=False)
    assert list(contents(tmp_path / "main")) == ["log", f"{UNIT}/metrics.jsonl"]
    assert not list(machine.folder.glob(".tmp-*"))


def test_only_changes_are_published(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(store, tmp_path / "first")
    machine.train(1)
    machine.publisher.publish_changes()
    before = objects(store)
    with (machine.run / "metrics.jsonl").open("a") as metrics:
        metrics.write("appended\n")
    machine.publisher.publish_changes()
    assert objects(store) == before
    (machine.run / ".tmp-7-result.json").touch()
    machine.publisher.publish_changes()
    assert objects(store) == before
    written: list[None] = []
    monkeypatch.setattr(Failing, "meanwhile", staticmethod(lambda: written.append(None)))
    (machine.run / "result.json").write_text("{}")
    machine.publisher.publish_changes()
    assert len(written) == 2  # the result, and the metrics
    assert f"{UNIT}/.tmp-7-result.json" not in restored(store, tmp_path / "second")


def test_a_writer_that_fails_at_any_operation_leaves_a_complete_version(store: Store, tmp_path: Path) -> None:
    found: list[str] = []
    for operations in range(8):  # 3 files and the manifest are written, and 4 objects of the first attempt removed
        Failing.store.clear()
        first = Machine(store, tmp_path / f"first-{operations}")
        first.train(1)
        first.publisher.publish()
        second = Machine(store, tmp_path / f"second-{operations}")
        second.train(2)
        Failing.left = operations
        with pytest.raises(UserError, match="failing://runs"):
            second.publisher.publish()
        Failing.left = 10**9
        content = restored(store, tmp_path / f"third-{operations}")
        found.append(content[f"{UNIT}/metrics.jsonl"].decode())
        assert content == contents((first if found[-1] == "1\n" else second).folder)
        second.publisher.publish()  # the same process, after the space was freed
        assert restored(store, tmp_path / f"fourth-{operations}") == contents(second.folder)
    assert found == ["1\n"] * 4 + ["1\n2\n"] * 4


def test_a_version_has_all_files_of_one_time(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(store, tmp_path / "first")
    machine.train(1)
    steps, copy = iter((2, 3, 4)), shutil.copyfile

    def copy_and_train(source: Path, target: Path) -> None:
        copy(source, target)
        if source.name == "metrics.jsonl" and "3" not in source.read_text():
            machine.train(next(steps))

    monkeypatch.setattr(shutil, "copyfile", copy_and_train)
    written: list[dict[str, bytes]] = []

    def train() -> None:
        if not written:
            written.append(contents(machine.run.parent))
            machine.train(next(steps))

    Failing.meanwhile = staticmethod(train)
    machine.publisher.publish()
    assert restored(store, tmp_path / "second") == {f"trials/a/seed-0/{name}": c for name, c in written[0].items()}
    machine.publisher.publish_changes()
    assert restored(store, tmp_path / "third") == contents(machine.folder)
    assert (machine.run / "metrics.jsonl").read_text() == "1\n2\n3\n4\n"


@pytest.mark.parametrize("damage", ["missing", "cut", "altered", "manifest", "outside"])
def test_a_damaged_version_is_not_restored(store: Store, tmp_path: Path, damage: str) -> None:
    first, second = Machine(store, tmp_path / "first"), Machine(store, tmp_path / "second")
    for step, machine in ((1, first), (2, second)):  # neither knows of the other, so the first version stays
        machine.train(1)
        (machine.run / "result.json").write_text(f"{step}")
        machine.publisher.publish()
    versions = sorted({name.rpartition("/")[0] for name in store.sizes()})
    results = [contents(first.folder), contents(second.folder)]
    newest = restored(store, tmp_path / "both")
    assert newest in results
    older = results[1 - results.index(newest)]
    reads: list[None] = []
    for attempt in reversed(versions):
        name = next(
            path
            for path, file in Failing.store.items()
            if attempt in path and ("manifest" in path if damage in ("manifest", "outside") else file.size == 1009)
        )
        content = Failing.store[name].getvalue()
        if damage == "missing":
            del Failing.store[name]
        else:
            changed = {
                "cut": content[:-1],
                "altered": b"\0" + content[1:],
                "manifest": content[: len(content) // 2],
                "outside": content.replace(UNIT.encode(), b"../" + UNIT.encode()),
            }
            fsspec.filesystem("failing").pipe_file(name, changed[damage])
        folder = tmp_path / f"after-{attempt[-8:]}"
        if attempt == versions[1]:
            assert restored(store, folder) == older
        else:
            folder.mkdir()
            Failing.meanwhile = staticmethod(lambda: reads.append(None))
            with pytest.raises(UserError, match=f"failing://runs/{UNIT}"):
                store.restore(UNIT, folder)
            assert contents(folder) == {}
            assert bool(reads) == (damage == "altered")  # all others are found before the download


def test_a_writer_that_was_given_up_does_not_disturb(store: Store, tmp_path: Path) -> None:
    lost = Machine(store, tmp_path / "lost")
    lost.train(1)
    lost.publisher.publish()
    last = Machine(store, tmp_path / "last")
    assert last.restored
    last.train(2)
    last.publisher.publish()
    lost.train(2)
    (lost.run / "result.json").write_text("of the lost one")
    lost.publisher.publish()
    assert restored(store, tmp_path / "third") == contents(last.folder)
    last.train(3)
    last.publisher.publish()
    assert restored(store, tmp_path / "fourth") == contents(last.folder)


def test_a_version_that_is_superseded_while_it_is_read(store: Store, tmp_path: Path) -> None:
    lost = Machine(store, tmp_path / "lost")
    lost.train(1)
    lost.publisher.publish()

    def publish() -> None:
        Failing.meanwhile = staticmethod(lambda: None)
        lost.train(2)
        lost.publisher.publish()

    Failing.meanwhile = staticmethod(publish)
    assert restored(store, tmp_path / "second") == contents(lost.folder)
