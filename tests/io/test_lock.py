"""Locks of outputs: refused, taken over, removed."""

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from homespun.errors import UserError
from homespun.io.atomic import atomic_path, write_text
from homespun.io.lock import LOCK, PATIENCE, locked


def _refused(out: Path, **options: bool) -> str:
    with pytest.raises(UserError) as error, locked(out, **options):
        pass
    return str(error.value)


def test_the_second_process_is_refused_in_one_line_that_names_the_first(tmp_path: Path) -> None:
    out = tmp_path / "a" / "run"
    with locked(out):
        message = _refused(out)
        assert f"process {os.getpid()} of " in message
        assert "\n" not in message
        (out / "content").touch()
    assert [path.name for path in out.iterdir()] == ["content"]
    with locked(out):
        pass


@pytest.mark.parametrize("as_one", [False, True])
def test_no_lock_and_no_new_folder_stay(tmp_path: Path, as_one: bool) -> None:
    out = tmp_path / "a" / "run"
    with locked(out, as_one=as_one):
        assert _refused(out, as_one=as_one)
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_is_replaced_as_one_is_locked_by_its_name(tmp_path: Path) -> None:
    with locked(tmp_path / "a.csv", as_one=True), locked(tmp_path / "b.csv", as_one=True):
        write_text(tmp_path / "a.csv", "1")
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path: Path) -> None:
    code = "import os, sys; from pathlib import Path; from homespun.io.lock import locked\n"
    code += f"with locked(Path({str(tmp_path)!r})): os._exit(9)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    assert (tmp_path / LOCK).exists()
    with locked(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_temporary_files_of_ended_processes_are_removed_after_success(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / "report" / "tables").mkdir(parents=True)
    stale = tmp_path / "report" / "tables" / f".tmp-{ended.pid}-results.csv"
    nested = tmp_path / f".tmp-{ended.pid}-.tmp-{ended.pid}-run"
    alive = tmp_path / f".tmp-{os.getppid()}-results.csv"
    other = tmp_path / ".tmp-of-the-user"
    for file in (stale, nested, alive, other):
        file.touch()
    with pytest.raises(UserError), locked(tmp_path):
        raise UserError("refused")
    assert stale.exists()
    with locked(tmp_path):
        pass
    assert [file.exists() for file in (stale, nested, alive, other)] == [False, False, True, True]


def test_temporary_files_beside_an_output_that_is_replaced_as_one_are_removed(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for name in ("hf", ".tmp-{0}-hf", ".tmp-{0}-old-hf", ".tmp-{0}-.tmp-{0}-hf", ".tmp-{0}-other"):
        (tmp_path / name.format(ended.pid)).mkdir()
    with locked(tmp_path / "hf", as_one=True):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [f".tmp-{ended.pid}-other", "hf"]


def test_a_file_system_without_locks_is_written_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with locked(tmp_path):
        pass
    assert "no file locks" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_only_the_first_process_of_a_distributed_training_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with locked(tmp_path) as first:
        monkeypatch.setenv("RANK", "1")
        with locked(tmp_path) as second:
            assert len(first) == 1
            assert second == ()
        monkeypatch.setenv("RANK", "0")


@pytest.mark.parametrize(("name", "value"), [("TORCHELASTIC_RESTART_COUNT", "1"), (PATIENCE, "30")])
def test_a_process_that_is_restarted_waits_for_the_children_of_the_killed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    code = f"import fcntl, time; file = open({str(tmp_path / LOCK)!r}, 'w'); fcntl.flock(file, fcntl.LOCK_EX)"
    command = [sys.executable, "-c", f"{code}; print(flush=True); time.sleep(0.5)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert _refused(tmp_path)
        monkeypatch.setenv(name, value)
        with locked(tmp_path):
            assert holder.wait() == 0


def test_an_earlier_folder_stays_if_it_cannot_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "model"
    out.mkdir()
    (out / "weights").write_text("old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    with pytest.raises(OSError, match="full"), atomic_path(out) as temporary:
        temporary.mkdir()
        monkeypatch.setattr(os, "replace", full)
    assert (out / "weights").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
