"""What trials share: a pretraining that would be the same, to the setting and the seed; the baselines of a task."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from homespun.commands.baselines import baseline_settings
from homespun.commands.recipe import finetune_recipe
from homespun.compare.executor import Command
from homespun.compare.folder import Record
from homespun.compare.trials import Stage
from homespun.io.atomic import write_text
from homespun.results import RunResult

_STAGE = "pretrain"


class Sharing:
    """Whose pretraining each trial has.

    What is shared stays so for as long as it can be had, and a run of one's own is kept. A trial that has neither is
    given a run that is finished, else one that is begun, else that of the first which would begin one.
    """

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}  # by place
        self._owners: dict[tuple[object, ...], Record] = {}

    def add(self, records: Sequence[Record]) -> None:
        """More trials: sets ``path`` and ``shared_with`` of their pretraining, and writes nothing."""
        self._records |= {record.trial.subfolder: record for record in records}
        records = [record for record in records if record.trial.pretraining is not None]
        for record in filter(self._is_lost, records):
            del record.stage(_STAGE)["shared_with"]
            record.stage(_STAGE).update(path=_STAGE, finished=False)
        lenders = {record.stage(_STAGE).get("shared_with") for record in records}
        own = [record for record in records if "shared_with" not in record.stage(_STAGE) and not _is_over(record)]
        kept = {r.trial.subfolder for r in own if r.trial.subfolder in lenders or (r.folder / _STAGE).is_dir()}
        for record in sorted(own, key=lambda r: (not r.is_finished(_STAGE), r.trial.subfolder not in kept)):
            owner = self._owners.setdefault(_pretraining_key(record), record)
            if owner is not record and record.trial.subfolder not in kept:
                path = os.path.relpath(owner.path_of(_STAGE), record.folder)
                record.stage(_STAGE).update(path=path, shared_with=owner.trial.subfolder)

    def owner(self, record: Record) -> Record:
        """Who makes the pretraining of a trial that shares it."""
        return self._records[record.stage(_STAGE)["shared_with"]]

    def _is_lost(self, record: Record) -> bool:
        """Whether it waits for what nobody makes any more: that trial, or its run, was deleted."""
        owner = record.stage(_STAGE).get("shared_with")
        if owner is None or record.status == "done" or record.is_finished(_STAGE):
            return False
        return owner not in self._records or _is_over(self._records[owner])


def _is_over(record: Record) -> bool:
    """Whether it is done, and its pretraining is gone: there is none to share, and it needs none."""
    return record.status == "done" and not record.is_finished(_STAGE)


def _pretraining_key(record: Record) -> tuple[object, ...]:
    """Equal for trials that would pretrain alike."""
    stage = record.trial.pretraining
    assert stage is not None
    return (stage.recipe, stage.start_from, stage.vectors, stage.settings)


class Baselines:
    """The baselines of each task: in ``baselines/TASK``; where trials are given other examples of it, or measured on
    others, those of each such set behind the first, as ``TASK@2``. A folder that is there keeps what it is of.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._given: dict[str, dict[str, Any]] = {}  # by name
        self._started: set[str] = set()  # or there before

    def add(self, records: Sequence[Record]) -> None:
        """More trials: sets which ``baselines`` their tasks are set beside, and writes nothing.

        Raises:
            UserError: a result that is damaged, or of another version.
        """
        for record in records:
            for stage in record.trial.stages:
                if stage.kind == "finetune":
                    record.stage(stage.name)["baselines"] = self._name(stage)

    def measure_command(self, record: Record, stage: Stage) -> Command | None:
        """What measures those of a task, when the first of its models is there; None: they are known, or begun."""
        name = record.stage(stage.name)["baselines"]
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
        """Why there are none, for the report; it goes when they are begun anew."""
        (self._folder / name).mkdir(parents=True, exist_ok=True)
        write_text(self._folder / name / "why.txt", why)

    def _name(self, stage: Stage) -> str:
        requested = baseline_settings(finetune_recipe(stage.recipe, stage.settings))
        names = (stage.name if number == 1 else f"{stage.name}@{number}" for number in count(1))
        return next(name for name in names if self._of(name, requested) == requested)

    def _of(self, name: str, requested: dict[str, Any]) -> dict[str, Any]:
        """What the folder of this name is of: where it does not say, of what it is asked for first."""
        if name not in self._given:
            self._given[name] = getattr(RunResult.read(self._folder / name / "result.json"), "of", requested)
        return self._given[name]
