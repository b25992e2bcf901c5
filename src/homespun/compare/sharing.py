"""Trials that would pretrain alike, to the setting and the seed, share one run: who of them makes it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from homespun.compare.folder import Record

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
        self._records |= {record.trial.place: record for record in records}
        records = [record for record in records if record.trial.pretraining is not None]
        for record in filter(self._is_lost, records):
            del record.stage(_STAGE)["shared_with"]
            record.stage(_STAGE).update(path=_STAGE, finished=False)
        lenders = {record.stage(_STAGE).get("shared_with") for record in records}
        own = [record for record in records if "shared_with" not in record.stage(_STAGE) and not _is_over(record)]
        kept = {r.trial.place for r in own if r.trial.place in lenders or (r.folder / _STAGE).is_dir()}
        for record in sorted(own, key=lambda r: (not r.is_finished(_STAGE), r.trial.place not in kept)):
            owner = self._owners.setdefault(_alike(record), record)
            if owner is not record and record.trial.place not in kept:
                path = os.path.relpath(owner.path_of(_STAGE), record.folder)
                record.stage(_STAGE).update(path=path, shared_with=owner.trial.place)

    def owner(self, record: Record) -> Record:
        """Who makes the pretraining of a trial that shares it."""
        return self._records[record.stage(_STAGE)["shared_with"]]

    def _is_lost(self, record: Record) -> bool:
        """Whether it waits for what nobody makes any more: that trial, or its run, was deleted."""
        place = record.stage(_STAGE).get("shared_with")
        if place is None or record.status == "done" or record.is_finished(_STAGE):
            return False
        return place not in self._records or _is_over(self._records[place])


def _is_over(record: Record) -> bool:
    """Whether it is done, and its pretraining is gone: there is none to share, and it needs none."""
    return record.status == "done" and not record.is_finished(_STAGE)


def _alike(record: Record) -> tuple[object, ...]:
    """Equal for trials that would pretrain alike."""
    stage = record.trial.pretraining
    assert stage is not None
    return (stage.recipe, stage.start_from, stage.vectors, stage.settings)
