"""Work that trials share: equal pretraining, and the baselines of a task."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

from homespun.commands.recipe import finetune_recipe
from homespun.commands.trials import baseline_settings
from homespun.compare.executor import Command
from homespun.compare.folder import Record
from homespun.compare.trials import Stage
from homespun.io.atomic import write_text
from homespun.io.lock import LOCK
from homespun.results import RunResult

_STAGE = "pretrain"


class Sharing:
    """Assigns one run to trials whose pretraining has equal settings and seed.

    A trial that shares a run keeps it while it exists, and a trial with a separate run keeps that. The others get a
    finished run, else a started one, else the run of the first trial that would start one.
    """

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}  # key: folder
        self._owners: dict[tuple[object, ...], Record] = {}

    def add(self, records: Sequence[Record]) -> None:
        """Add trials: sets ``path`` and ``shared_with`` of their pretraining, and writes nothing."""
        self._records |= {record.trial.subfolder: record for record in records}
        records = [record for record in records if record.trial.pretraining is not None]
        for record in filter(self._is_lost, records):
            result = record.stage(_STAGE)
            result.shared_with, result.path, result.finished = None, _STAGE, False
            result.model_fields_set.discard("shared_with")  # no key in the file
        owners = {record.stage(_STAGE).shared_with for record in records}
        own = [record for record in records if record.stage(_STAGE).shared_with is None and not _is_over(record)]
        kept = {r.trial.subfolder for r in own if r.trial.subfolder in owners or (r.folder / _STAGE).is_dir()}
        for record in sorted(own, key=lambda r: (not r.is_finished(_STAGE), r.trial.subfolder not in kept)):
            stage = record.trial.pretraining
            assert stage is not None
            owner = self._owners.setdefault((stage.recipe, stage.start_from, stage.vectors, stage.settings), record)
            if owner is not record and record.trial.subfolder not in kept:
                result = record.stage(_STAGE)
                result.path = os.path.relpath(owner.path_of(_STAGE), record.folder)
                result.shared_with = owner.trial.subfolder

    def owner(self, record: Record) -> Record:
        """Return the trial that runs the pretraining of a trial that shares it."""
        owner = record.stage(_STAGE).shared_with
        assert owner is not None
        return self._records[owner]

    def _is_lost(self, record: Record) -> bool:
        """True if a trial waits for a run that was deleted."""
        owner = record.stage(_STAGE).shared_with
        if owner is None or record.status == "done" or record.is_finished(_STAGE):
            return False
        return owner not in self._records or _is_over(self._records[owner])


def _is_over(record: Record) -> bool:
    """True if a trial is done and its pretraining was deleted, so that it neither needs nor offers one."""
    return record.status == "done" and not record.is_finished(_STAGE)


class Baselines:
    """Baselines of each task, measured once for all trials with the same examples.

    They are in ``baselines/TASK``; further sets of examples are in ``TASK@2``, ``TASK@3`` and so on.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for lock in folder.glob(f"*/{LOCK}"):  # locks of killed processes, which do not run again if they have a result
            lock.unlink()
        self._settings: dict[str, Mapping[str, object]] = {}  # key: folder name
        self._started: set[str] = set()

    def add(self, records: Sequence[Record]) -> None:
        """Add trials: sets ``baselines`` of their tasks, and writes nothing.

        Raises:
            UserError: a result is damaged, or of another version.
        """
        for record in records:
            for stage in record.trial.stages:
                if stage.kind == "finetune":
                    record.stage(stage.name).baselines = self._name(stage)

    def measure_command(self, record: Record, stage: Stage) -> Command | None:
        """Return the command that measures the baselines of a task; None if they exist or are being measured."""
        name = record.stage(stage.name).baselines or stage.name
        folder = self._folder / name
        if name in self._started:
            return None
        self._started.add(name)
        if (folder / "result.json").is_file():
            return None
        shutil.rmtree(folder, ignore_errors=True)
        start_from = stage.start_from or str(record.path_of(_STAGE))
        settings = [setting for setting in stage.settings if not setting.startswith("baselines=")]
        arguments = ["baselines", stage.recipe, *settings, "--from", start_from, "--out", str(folder), "--json"]
        return Command(tuple(arguments), self._folder / "logs" / f"{name}.log")

    def write_failure(self, name: str, why: str) -> None:
        """Write the reason why baselines could not be measured, for the report; the next attempt removes it."""
        (self._folder / name).mkdir(parents=True, exist_ok=True)
        write_text(self._folder / name / "why.txt", why)

    def _name(self, stage: Stage) -> str:
        requested = baseline_settings(finetune_recipe(stage.recipe, stage.settings))
        names = (stage.name if number == 1 else f"{stage.name}@{number}" for number in count(1))
        return next(name for name in names if self._settings_of(name, requested) == requested)

    def _settings_of(self, name: str, requested: Mapping[str, object]) -> Mapping[str, object]:
        """Return the settings of a folder of baselines; those of the first request if it has none."""
        if name not in self._settings:
            self._settings[name] = getattr(RunResult.read(self._folder / name / "result.json"), "of", requested)
        return self._settings[name]
