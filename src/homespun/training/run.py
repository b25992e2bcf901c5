"""Run folder: config, environment, metrics, checkpoints and result. All writes are atomic."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import logging
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import psutil
import torch
import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python
from safetensors import SafetensorError
from torch import Tensor

from homespun.config import Tree, dump, flatten, read_yaml
from homespun.errors import UserError
from homespun.io.atomic import TEMPORARY, remove, write_text
from homespun.io.json import write_json
from homespun.migration import migrate
from homespun.results import RunResult
from homespun.training.checkpoint import Checkpoint, State, read_checkpoint, read_state, write_checkpoint

_PACKAGES = ("homespun", "torch", "tokenizers", "accelerate", "datasets", "pyarrow", "numpy", "scikit-learn")


def describe_environment() -> dict[str, object]:
    """Describe versions and hardware, as in ``environment.json``."""
    return {
        "python": platform.python_version(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": processor_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "commit": _commit(),
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def processor_name() -> str:
    """Model name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _commit() -> str | None:
    """Commit of the current folder, followed by ``+changes`` if files are modified; ``None`` without git."""
    try:
        commit = _git("rev-parse", "HEAD").strip()
        # the folder may be from others: `git status` runs the hooks and filters of its configuration
        if re.search(r"^(local|worktree)\tfilter\.", _git("config", "--list", "--show-scope", "--name-only"), re.M):
            return commit
        status = ("status", "--porcelain", "--untracked-files=no", "--ignore-submodules")
        return f"{commit}+changes" if _git("--no-optional-locks", "-c", "core.fsmonitor=false", *status) else commit
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True, timeout=10).stdout


logger = logging.getLogger(__name__)

_RESUMABLE = re.compile(r"\.budget\.|\.(processes|parallel|workers)$")  # settings that a resumed run may change
_SPENT = {"time": "seconds", "tokens": "tokens", "steps": "steps"}  # limit of a budget, and its use in a checkpoint
_CONFIG, _ENVIRONMENT, _METRICS, _RESULT = "config.yaml", "environment.json", "metrics.jsonl", "result.json"


class Run:
    """Run folder. Only the main process writes; in other processes every write has no effect."""

    def __init__(self, path: str | Path, *, main: bool = True) -> None:
        self.path = Path(path)
        self.main = main

    @classmethod
    def create(cls, path: str | Path, config: BaseModel, *, resume: bool, main: bool = True) -> Run:
        """Create a run in ``path``, or open an existing run to resume it.

        Args:
            path: a new or empty folder, which may contain files of a run that was killed while it was created; with
                ``resume``, the folder of a run.
            config: complete settings of the run; the config of an existing run may differ only in ``train.budget``,
                ``train.processes``, ``train.parallel`` and ``train.workers``, with no limit below what is used.
            resume: continue an existing run.
            main: True in the process that writes.

        Raises:
            UserError: ``path`` is unsuitable, holds a run without ``resume``, or holds a run with another config.
        """
        run = cls(path, main=main)
        if not main:
            return run
        path = run.path
        if holds_run(path, resume=resume):
            run._check_config(config)
            return run
        environment = describe_environment()
        try:
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
            write_json(path / _ENVIRONMENT, environment)
            write_text(path / _CONFIG, dump(config))  # last: it makes the folder a run
        except OSError as error:
            raise UserError(f"cannot write into {path}: {error.strerror}") from error
        return run

    def _check_config(self, config: BaseModel) -> None:
        before = flatten(_with_defaults(migrate(read_yaml(self.path / _CONFIG)), type(config)))
        now = flatten(yaml.safe_load(dump(config)))
        differences = [
            f"{key} was {before.get(key)!r} and is {now.get(key)!r}"
            for key in sorted(before.keys() | now.keys())
            if before.get(key) != now.get(key) and not _RESUMABLE.search(f".{key}")
        ]
        if differences:
            more = f", and {len(differences) - 3} more" if len(differences) > 3 else ""
            raise UserError(f"{self.path} was run with another config: {'; '.join(differences[:3])}{more}")
        self._check_budget(before, now)
        if before != now:  # a run with a larger budget is no longer finished
            (self.path / _RESULT).unlink(missing_ok=True)
            write_text(self.path / _CONFIG, dump(config))

    def _check_budget(self, before: Tree, now: Tree) -> None:
        """Check that no limit was lowered below what the run has used, which would be its result without training."""
        used = (self.latest_state() or {}).get("progress", {})
        for key, limit in now.items():
            _, is_budget, name = f".{key}".rpartition(".budget.")
            spent = used.get(_SPENT.get(name, ""), 0) if is_budget else 0
            if limit is not None and limit != before.get(key) and limit < spent:
                raise UserError(f"{key}={limit} is less than the {spent:,.6g} that {self.path} has used; raise it")

    def log(self, event: str, *, time: float, **values: object) -> None:
        """Append a line to ``metrics.jsonl``; ``time`` is the seconds of training so far. NaN becomes null."""
        if not self.main:
            return
        entry = to_jsonable_python({"event": event, "time": round(time, 3)} | values, inf_nan_mode="null")
        line = json.dumps(entry, ensure_ascii=False)
        # unbuffered, one write per line: readers find complete lines, also after a kill
        with (self.path / _METRICS).open("ab", buffering=0) as file:
            file.write(line.encode() + b"\n")

    def sync_metrics(self) -> int:
        """Flush ``metrics.jsonl`` to the disk; returns its bytes, which a checkpoint stores to `rewind` to.

        Raises:
            UserError: the disk is full.
        """
        if not self.main:
            return 0
        try:
            with (self.path / _METRICS).open("ab") as metrics:
                os.fsync(metrics.fileno())
                return metrics.tell()
        except OSError as error:
            raise UserError(f"cannot write {self.path / _METRICS}: {error}; free disk space, then --resume") from error

    def save_checkpoint(
        self, tensors: Mapping[str, Mapping[str, Tensor]], state: State, *, keep: int, shards: Path | None = None
    ) -> None:
        """Write ``checkpoints/step-<state["step"]>`` unless it exists, and remove older checkpoints.

        Args:
            tensors: written to one file per name, ``model`` and ``optimizer``.
            state: plain values: ``step``, ``score`` (greater is better; ``None`` without a validation), and
                ``metrics_bytes`` of `sync_metrics`.
            keep: number of last checkpoints to keep besides the best.
            shards: a folder of tensors that all processes have written, see `shards_folder`.
        """
        folder = self.path / "checkpoints" / f"step-{state['step']}"
        if not self.main:
            return
        if folder.exists():
            if shards is not None:
                remove(shards)
            return
        try:
            write_checkpoint(folder, tensors, state, shards=shards)
        except (OSError, SafetensorError) as error:
            raise UserError(f"cannot write the checkpoint {folder}: {error}; free disk space, then --resume") from error
        self._remove_old(keep)

    def _remove_old(self, keep: int) -> None:
        kept = [*self._folders()[-keep:], *self._by_score()[:1]]
        for old in self._folders():
            if old not in kept:
                self._remove(old)

    def shards_folder(self, step: int) -> Path:
        """Temporary folder for the tensors of all processes; `rewind` removes that of a killed run."""
        return self.path / "checkpoints" / f"{TEMPORARY}shards-{step}"

    def latest_checkpoint(self) -> Checkpoint | None:
        """Last valid checkpoint, or ``None`` without checkpoints. Invalid checkpoints are skipped with a warning.

        Raises:
            UserError: no checkpoint is valid.
        """
        return self._first_valid(list(reversed(self._folders())))

    def latest_state(self) -> State | None:
        """State of the last valid checkpoint, without tensors; ``None`` without checkpoints."""
        for folder in reversed(self._folders()):
            try:
                return read_state(folder)[0]
            except UserError:
                continue
        return None

    def best_checkpoint(self) -> Checkpoint | None:
        """Valid checkpoint with the best validation, else the last one; ``None`` without checkpoints.

        Raises:
            UserError: no checkpoint is valid.
        """
        scored = self._by_score()
        return self._first_valid(scored + [f for f in reversed(self._folders()) if f not in scored])

    def rewind(self, checkpoint: Checkpoint | None, *, keep: int) -> None:
        """Reset the folder to its state after ``checkpoint``, or to a new run for ``None``.

        ``keep`` is as in `save_checkpoint`: a process can be killed before it removes older checkpoints.
        """
        if not self.main:
            return
        for temporary in (self.path / "checkpoints").glob(f"{TEMPORARY}*"):
            remove(temporary)
        for folder in self._folders():
            if checkpoint is None or _step(folder) > checkpoint.step:
                self._remove(folder)
        self._remove_old(keep)
        metrics = self.path / _METRICS
        logged = checkpoint.state["metrics_bytes"] if checkpoint is not None else 0
        if metrics.exists() and metrics.stat().st_size > logged:
            os.truncate(metrics, logged)

    def write_result(self, result: Mapping[str, object]) -> Tree:
        """Validate a result, write ``result.json``, which marks the run as finished, and return its content."""
        if not self.main:
            return {}
        checked = RunResult.model_validate(to_jsonable_python(result, inf_nan_mode="null")).to_json()
        write_json(self.path / _RESULT, checked)
        return checked

    def _folders(self) -> list[Path]:
        folders = (self.path / "checkpoints").glob("step-*")
        return sorted((p for p in folders if p.name.removeprefix("step-").isdecimal()), key=_step)

    def _by_score(self) -> list[Path]:
        """Valid checkpoints with a score, best first; the earlier first if scores are equal."""
        scores: dict[Path, float] = {}
        for folder in self._folders():
            try:
                score = read_state(folder)[0]["score"]
            except UserError:
                continue
            if score is not None:
                scores[folder] = score
        return sorted(scores, key=lambda folder: (-scores[folder], _step(folder)))

    def _first_valid(self, folders: list[Path]) -> Checkpoint | None:
        problem: UserError | None = None
        for folder in folders:
            try:
                return read_checkpoint(folder)
            except UserError as error:
                problem = error
                logger.warning("%s; trying another checkpoint", error)
        if problem is not None:
            raise UserError(f"no checkpoint of {self.path} is valid: {problem}") from problem
        return None

    def _remove(self, folder: Path) -> None:
        # renamed first, so that a kill leaves no partial checkpoint
        renamed = folder.with_name(f"{TEMPORARY}old-{folder.name}")
        os.rename(folder, renamed)
        shutil.rmtree(renamed)


def holds_run(path: Path, *, resume: bool) -> bool:
    """Check that ``path`` can be used: True if it holds a run to resume, False if a run can be created.

    Raises:
        UserError: neither is possible, or ``path`` holds a run and ``resume`` is False.
    """
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file, not a folder; set --out to a new folder")
    if (path / _CONFIG).is_file():
        if not resume:
            state = "a finished run" if (path / _RESULT).is_file() else "a run"
            raise UserError(f"{path} holds {state}; continue it with --resume, or set --out to a new folder")
        return True
    if path.is_dir() and not all(map(_is_leftover, path.iterdir())):
        raise UserError(f"{path} holds other files; set --out to a new or empty folder")
    return False


def _is_leftover(entry: Path) -> bool:
    """True for an entry of a run that was killed before its config was written."""
    if entry.name == "checkpoints":
        return entry.is_dir() and not any(entry.iterdir())
    return entry.name == _ENVIRONMENT or entry.name.startswith(TEMPORARY)


def _step(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def _with_defaults(tree: Tree, kind: type[BaseModel]) -> Tree:
    """Add defaults of settings that the config, written by an earlier version, lacks."""
    try:
        return dict(yaml.safe_load(dump(kind.model_validate(tree))))
    except ValidationError:
        return tree
