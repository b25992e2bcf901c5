"""The folder of a comparison: its recipe, a record a trial, and a lock, so that one runner is at work in it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from homespun.compare.recipe import CompareRecipe
from homespun.compare.trials import Trial
from homespun.config import dump, read_yaml
from homespun.errors import UserError
from homespun.io.atomic import TEMPORARY, write_text

VERSION = 1
_RECIPE, _RECORD, _LOCK = "comparison.yaml", "trial.json", ".lock"
_PATIENCE = 10.0  # seconds; processes whose runner was killed end within one


class Record:
    """``trial.json``: what is known of a trial. docs/design.md, "comparing", says what is in it."""

    def __init__(self, folder: Path, trial: Trial, values: dict[str, Any]) -> None:
        self.folder = folder
        self.trial = trial
        self.values = values

    @classmethod
    def open(cls, folder: Path, trial: Trial) -> Record:
        """The record in ``folder``, or a new one where there is none.

        Raises:
            UserError: it is of another version or cut short, or the trial was run with other settings.
        """
        path = folder / _RECORD
        fresh = {
            "version": VERSION,
            "name": trial.name,
            "seed": trial.seed,
            "about": trial.about,
            "varied": trial.varied,
            "settings": trial.settings,
            "status": "waiting",
            "why": None,
            "stage": None,
            "seconds": 0.0,
            "plan": None,
            "notes": [],
            "stages": {
                stage.name: {
                    "kind": stage.kind,
                    "path": stage.name,
                    "recipe": stage.recipe,
                    "recipe_digest": _digest(stage.recipe),
                    "start_from": stage.start_from,
                    "vectors": stage.vectors,
                    "finished": False,
                    "seconds": 0.0,
                    "processor_seconds": 0.0,
                }
                for stage in trial.stages
            },
            "inference": None,
            "overhead": {"processor_seconds": 0.0},
        }
        if not path.is_file():
            return cls(folder, trial, json.loads(json.dumps(fresh)))
        values = read_record(path)
        _same_trial(path, values, fresh)
        values |= {key: fresh[key] for key in ("about", "varied")}
        if values["status"] == "running":  # the runner was killed
            values["status"] = "waiting"
        return cls(folder, trial, values)

    @property
    def status(self) -> str:
        """``waiting``, ``running``, ``done`` or ``failed``."""
        return str(self.values["status"])

    def stage(self, name: str) -> dict[str, Any]:
        """What is known of one stage."""
        found: dict[str, Any] = self.values["stages"][name]
        return found

    def path_of(self, name: str) -> Path:
        """The run directory of one stage."""
        return self.folder / str(self.stage(name)["path"])

    def is_finished(self, name: str) -> bool:
        """Whether a stage ended well, and its result is still there."""
        return bool(self.stage(name)["finished"]) and (self.path_of(name) / "result.json").is_file()

    def update(self, **values: Any) -> None:
        """Change what is known, and write it."""
        self.values |= values
        self.write()

    def write(self) -> None:
        """Write the record, whole."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self.folder / _RECORD, json.dumps(self.values, indent=1, ensure_ascii=False))


def read_record(path: Path) -> dict[str, Any]:
    """A ``trial.json``.

    Raises:
        UserError: it is cut short or altered, or of another version.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        version = values["version"]
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise UserError(f"{path} was cut short or altered; delete {path.parent}, and its trial runs again") from error
    if version != VERSION:
        raise UserError(
            f"{path} is of version {version!r}, and this homespun reads {VERSION}; give --out a new folder, or use the "
            f"homespun that wrote it"
        )
    assert isinstance(values, dict)
    return values


def _same_trial(path: Path, values: Mapping[str, Any], fresh: Mapping[str, Any]) -> None:
    def recorded_settings(record: Mapping[str, Any]) -> dict[str, Any]:
        stages = record["stages"].items()
        given = ("recipe", "start_from", "vectors")  # the last is younger than the others
        starts = {f"{name}: {key}": stage.get(key) for name, stage in stages for key in given}
        return starts | {f"{name}: {a.partition('=')[0]}": a for name, all_ in record["settings"].items() for a in all_}

    for name, stage in fresh["stages"].items():
        known, digest = values["stages"].get(name, {}), stage["recipe_digest"]
        if known.get("recipe") == stage["recipe"] and known.get("recipe_digest", digest) != digest:
            raise UserError(
                f"{path.parent} was run with another {stage['recipe']}, which was edited since; give --out a new "
                f"folder, or delete that trial's"
            )
    before, now = recorded_settings(values), recorded_settings(fresh)
    if before == now:
        return
    changed = [
        f"{before.get(key)} is now {now.get(key)}" for key in {**before, **now} if before.get(key) != now.get(key)
    ]
    more = f", and {len(changed) - 2} more" if len(changed) > 2 else ""
    raise UserError(
        f"{path.parent} was run with other settings: {'; '.join(changed[:2])}{more}; give --out a new folder, or "
        f"delete that trial's"
    )


def _digest(recipe: str) -> str | None:
    """Of what a recipe of the user's own says; None: it is one of ours, or not there."""
    if not recipe.endswith((".yaml", ".yml")) or not Path(recipe).is_file():
        return None
    content = json.dumps(read_yaml(recipe), sort_keys=True, default=str)
    return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def check_folder(out: Path) -> None:
    """Refuse what cannot be the folder of a comparison; nothing is made.

    Raises:
        UserError: it is a file, or has other things in it.
    """
    if next(path for path in (out, *out.parents) if path.exists()).is_file():
        raise UserError(f"{out} is a file, or under one; a comparison needs a folder of its own")
    if out.is_dir() and not (out / _RECIPE).is_file() and not all(map(_is_left_over, out.iterdir())):
        raise UserError(f"{out} is a folder with other things in it; give --out a new or empty one")


def _is_left_over(entry: Path) -> bool:
    """Whether a runner that was killed here can have written the file."""
    return entry.name == _LOCK or entry.name.startswith(TEMPORARY)


def open_folder(out: Path, recipe: CompareRecipe) -> None:
    """Make ``out`` the folder of a comparison, where it is none yet.

    Raises:
        UserError: as `check_folder`.
    """
    check_folder(out)
    out.mkdir(parents=True, exist_ok=True)
    if not (out / _RECIPE).is_file():
        write_text(out / _RECIPE, dump(recipe))


def open_records(out: Path, recipe: CompareRecipe, trials: Sequence[Trial]) -> list[Record]:
    """The records of all trials, and the recipe written beside them.

    Raises:
        UserError: ``out`` is something else, or holds trials of another comparison.
    """
    open_folder(out, recipe)
    records = [Record.open(out / "trials" / trial.subfolder, trial) for trial in trials]
    requested = {record.folder for record in records}
    strange = sorted(p.parent for p in (out / "trials").glob(f"*/*/{_RECORD}") if p.parent not in requested)
    if strange:
        names = ", ".join(str(folder.relative_to(out / "trials")) for folder in strange[:3])
        raise UserError(
            f"{out} has {len(strange)} trials that are not in this comparison: {names}; give --out a new folder, or "
            f"delete them"
        )
    write_text(out / _RECIPE, dump(recipe))
    for record in records:
        record.write()
    return records


class Lock:
    """Holds a folder for one runner, and for the processes it started for as long as they live.

    The system lets go of it when the last of them has ended, however that was; so a runner that comes after a killed
    one never works beside what that one left behind.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / _LOCK
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Lock:
        import fcntl

        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = self.path.open("ab")
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    file.close()
                    raise UserError(
                        f"another runner is at work in {self.path.parent}; wait until it has ended, or give another "
                        f"--out"
                    ) from None
                time.sleep(0.1)
            else:
                self._file = file
                return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What a process has to inherit to hold the lock too."""
        return () if self._file is None else (self._file.fileno(),)
