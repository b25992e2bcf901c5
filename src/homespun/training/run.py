"""The run directory: config, environment, metrics, checkpoints and result. Every write is whole or not there."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError
from torch import Tensor

from homespun.config import dump, read_yaml
from homespun.errors import UserError
from homespun.io.atomic import TEMPORARY, remove, write_text
from homespun.results import RunResult
from homespun.training.checkpoint import (
    Checkpoint,
    State,
    read_checkpoint,
    read_state,
    write_checkpoint,
)
from homespun.training.environment import describe_environment

logger = logging.getLogger(__name__)

_CONFIG, _ENVIRONMENT, _METRICS, _RESULT = "config.yaml", "environment.json", "metrics.jsonl", "result.json"


class Run:
    """A run directory. Only the main one of several processes writes; for the others every write does nothing."""

    def __init__(self, path: str | Path, *, main: bool = True) -> None:
        self.path = Path(path)
        self.main = main

    @classmethod
    def create(cls, path: str | Path, config: BaseModel, *, resume: bool, main: bool = True) -> Run:
        """A new run in ``path``, or with ``resume`` the one that is there, where its config is the same but for
        ``train.budget``, which may grow.

        Args:
            path: a folder that does not exist, is empty but for what a run leaves that was killed before it had its
                config, or (with ``resume``) holds the run.
            config: everything that decides what the run does; written out whole.
            resume: go on with a run that is there; where there is none, begin.
            main: whether this process writes, one of several.

        Raises:
            UserError: ``path`` is something else, holds a run and ``resume`` is off, or that run's config differs.
        """
        run = cls(path, main=main)
        if not main:
            return run
        path = run.path
        if holds_run(path, resume=resume):
            run._accept(config)
            return run
        environment = json.dumps(describe_environment(), indent=1)
        try:
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
            write_text(path / _ENVIRONMENT, environment)
            write_text(path / _CONFIG, dump(config))  # last: it makes the folder a run
        except OSError as error:
            raise UserError(f"cannot write into {path}: {error.strerror}") from error
        return run

    def _accept(self, config: BaseModel) -> None:
        before = _flat(_with_defaults(read_yaml(self.path / _CONFIG), type(config)))
        now = _flat(yaml.safe_load(dump(config)))
        differences = [
            f"{key} was {before.get(key)!r} and is {now.get(key)!r}"
            for key in sorted(before.keys() | now.keys())
            if before.get(key) != now.get(key) and ".budget." not in f".{key}"
        ]
        if differences:
            more = f", and {len(differences) - 3} more" if len(differences) > 3 else ""
            raise UserError(f"{self.path} was run with another config: {'; '.join(differences[:3])}{more}")
        if before != now:  # a run may be given a larger budget: it is no longer finished, and goes on under it
            (self.path / _RESULT).unlink(missing_ok=True)
            write_text(self.path / _CONFIG, dump(config))

    def log(self, event: str, *, time: float, **values: Any) -> None:
        """Append one line to ``metrics.jsonl``; ``time`` is in seconds of training so far. NaN becomes null."""
        if not self.main:
            return
        line = json.dumps(_plain({"event": event, "time": round(time, 3)} | values), ensure_ascii=False)
        # unbuffered, and one write a line: whoever reads along, or comes after a kill, finds whole lines
        with (self.path / _METRICS).open("ab", buffering=0) as file:
            file.write(line.encode() + b"\n")

    def save_checkpoint(self, tensors: Mapping[str, Mapping[str, Tensor]], state: State, *, keep: int) -> None:
        """Write ``checkpoints/step-<state["step"]>`` where it is not there yet, and let older ones go.

        Args:
            tensors: one file of tensors a name: ``model``, ``optimizer``.
            state: plain values: ``step``, and ``score`` (greater is better; ``None`` where it was not validated).
            keep: how many of the last checkpoints stay, besides the one of the best score.
        """
        folder = self.path / "checkpoints" / f"step-{state['step']}"
        if not self.main or folder.exists():
            return
        try:
            with (self.path / _METRICS).open("ab") as metrics:
                os.fsync(metrics.fileno())  # what the checkpoint counts on must be there after a power cut too
                logged = metrics.tell()
            write_checkpoint(folder, tensors, state | {"metrics_bytes": logged})
        except (OSError, SafetensorError) as error:
            raise UserError(f"cannot write the checkpoint {folder}: {error}; free some space, then --resume") from error
        kept = self._folders()[-keep:]
        kept += self._by_score()[:1]
        for old in self._folders():
            if old not in kept:
                self._remove(old)

    def latest_checkpoint(self) -> Checkpoint | None:
        """The last whole checkpoint; a broken one is passed over with a warning. ``None``: there are none at all.

        Raises:
            UserError: there are checkpoints, and not one is whole.
        """
        return self._first_valid(list(reversed(self._folders())))

    def latest_state(self) -> State | None:
        """The state of the last checkpoint whose state can be read, its tensors unread; ``None``: there is none."""
        for folder in reversed(self._folders()):
            try:
                return read_state(folder)[0]
            except UserError:
                continue
        return None

    def best_checkpoint(self) -> Checkpoint | None:
        """The whole checkpoint of the best validation; the last where none was validated; ``None``: there are none.

        Raises:
            UserError: there are checkpoints, and not one is whole.
        """
        scored = self._by_score()
        return self._first_valid(scored + [f for f in reversed(self._folders()) if f not in scored])

    def rewind(self, checkpoint: Checkpoint | None) -> None:
        """Make the directory what it was right after ``checkpoint`` (``None``: the beginning), to go on from there."""
        if not self.main:
            return
        for left in (self.path / "checkpoints").glob(f"{TEMPORARY}*"):
            remove(left)
        for folder in self._folders():
            if checkpoint is None or _number(folder) > checkpoint.step:
                self._remove(folder)
        metrics = self.path / _METRICS
        logged = checkpoint.state["metrics_bytes"] if checkpoint is not None else 0
        if metrics.exists() and metrics.stat().st_size > logged:
            os.truncate(metrics, logged)

    def write_result(self, result: dict[str, Any]) -> None:
        """Write ``result.json``, with the keys of `RunResult`: the run is finished."""
        if self.main:
            checked = RunResult.model_validate(_plain(result)).to_json()
            write_text(self.path / _RESULT, json.dumps(checked, indent=1, ensure_ascii=False))

    def _folders(self) -> list[Path]:
        """The checkpoints, oldest first."""
        found = [p for p in (self.path / "checkpoints").glob("step-*") if p.name.removeprefix("step-").isdecimal()]
        return sorted(found, key=_number)

    def _by_score(self) -> list[Path]:
        """Those that were validated, the best first, the earlier of equals first; broken ones left out."""
        scores: dict[Path, float] = {}
        for folder in self._folders():
            try:
                score = read_state(folder)[0]["score"]
            except UserError:
                continue
            if score is not None:
                scores[folder] = score
        return sorted(scores, key=lambda folder: (-scores[folder], _number(folder)))

    def _first_valid(self, folders: list[Path]) -> Checkpoint | None:
        problem: UserError | None = None
        for folder in folders:
            try:
                return read_checkpoint(folder)
            except UserError as error:
                problem = error
                logger.warning("%s; trying another checkpoint", error)
        if problem is not None:
            raise UserError(f"no checkpoint of {self.path} is whole: {problem}") from problem
        return None

    def _remove(self, folder: Path) -> None:
        # renamed first: a kill in the middle leaves no half of a checkpoint under its name
        renamed = folder.with_name(f"{TEMPORARY}old-{folder.name}")
        os.rename(folder, renamed)
        shutil.rmtree(renamed)


def holds_run(path: Path, *, resume: bool) -> bool:
    """Whether ``path`` holds a run to go on with; where it does not, one can be begun there.

    Raises:
        UserError: ``path`` is something else, or holds a run and ``resume`` is off.
    """
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file; a run needs a folder of its own")
    if (path / _CONFIG).is_file():
        if not resume:
            state = "a finished run" if (path / _RESULT).is_file() else "a run"
            raise UserError(f"{path} holds {state}; continue it with --resume, or give --out a new folder")
        return True
    if path.is_dir() and not all(map(_is_left_over, path.iterdir())):
        raise UserError(f"{path} is a folder with other things in it; give --out a new or empty one")
    return False


def _is_left_over(entry: Path) -> bool:
    """Whether this may be of a run that was killed before it had its config."""
    if entry.name == "checkpoints":
        return entry.is_dir() and not any(entry.iterdir())
    return entry.name == _ENVIRONMENT or entry.name.startswith(TEMPORARY)


def _number(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def _plain(value: Any) -> Any:
    """Like ``value``, as JSON has it: figures that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _with_defaults(tree: dict[str, Any], kind: type[BaseModel]) -> dict[str, Any]:
    """A config that was written before settings were added, with their defaults."""
    try:
        return dict(yaml.safe_load(dump(kind.model_validate(tree))))
    except ValidationError:
        return tree


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
