"""Folder of a comparison: its recipe, and a record for each trial."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from homespun.compare.recipe import CompareRecipe
from homespun.compare.trials import Trial
from homespun.comparison_results import Overhead, TrialResult, TrialStage
from homespun.config import dump, read_yaml
from homespun.errors import UserError
from homespun.io.atomic import entries, write_text
from homespun.io.json import write_json
from homespun.migration import migrate
from homespun.results import VERSION

_RECIPE, _RECORD = "comparison.yaml", "trial.json"


@dataclass(eq=False)
class Record:
    """Trial and its ``trial.json``, which docs/design.md describes."""

    folder: Path
    trial: Trial
    result: TrialResult

    @classmethod
    def open(cls, folder: Path, trial: Trial) -> Record:
        """Read the record in ``folder``, or make a new one.

        Raises:
            UserError: the record is damaged or of another version, or the trial was run with other settings.
        """
        path, new = folder / _RECORD, _new_result(trial)
        if not path.is_file():
            return cls(folder, trial, new)
        try:
            result = TrialResult.read(path)
        except UserError as error:
            raise UserError(f"{error}; delete {folder} to run its trial again, or give --out a new folder") from error
        _check_same_trial(path, result, new)
        result.about, result.varied = new.about, new.varied
        if result.status == "running":  # the runner was killed
            result.status = "waiting"
        return cls(folder, trial, result)

    @property
    def status(self) -> str:
        """``waiting``, ``running``, ``done`` or ``failed``."""
        return self.result.status

    @property
    def ended(self) -> bool:
        """True if the trial is done or has failed."""
        return self.status in ("done", "failed")

    def stage(self, name: str) -> TrialStage:
        """Return the result of a stage."""
        return self.result.stages[name]

    def path_of(self, name: str) -> Path:
        """Return the run directory of a stage."""
        return self.folder / (self.stage(name).path or name)

    def is_finished(self, name: str) -> bool:
        """True if a stage finished and its result still exists."""
        return self.stage(name).finished and (self.path_of(name) / "result.json").is_file()

    def update(self, **values: object) -> None:
        """Set fields of the result and write it."""
        for name, value in values.items():
            setattr(self.result, name, value)
        self.write()

    def write(self) -> None:
        """Write the record atomically."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / _RECORD, self.result.to_json())


def _new_result(trial: Trial) -> TrialResult:
    return TrialResult.model_validate(
        {
            "version": VERSION,
            "name": trial.name,
            "seed": trial.seed,
            "about": trial.variant.variation.description,
            "varied": dict(trial.variant.varied),
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
            "overhead": Overhead(processor_seconds=0.0),
        }
    )


def _check_same_trial(path: Path, known: TrialResult, new: TrialResult) -> None:
    """Raise `UserError` if a trial was run with another recipe file or other settings."""

    def settings(result: TrialResult) -> dict[str, str | None]:
        keys = ("recipe", "start_from", "vectors")
        starts = {f"{name}: {key}": getattr(stage, key) for name, stage in result.stages.items() for key in keys}
        return starts | {f"{name}: {a.partition('=')[0]}": a for name, every in result.settings.items() for a in every}

    for name, stage in new.stages.items():
        before = known.stages.get(name, stage)
        is_known = "recipe_digest" in before.model_fields_set  # not in records of earlier versions
        if before.recipe == stage.recipe and is_known and before.recipe_digest != stage.recipe_digest:
            raise UserError(
                f"{path.parent} was run with another {stage.recipe}, which was edited since; give --out a new folder, "
                f"or delete the folder of the trial"
            )
    old, now = settings(known), settings(new)
    changed = [f"{old.get(key)} is now {now.get(key)}" for key in old | now if old.get(key) != now.get(key)]
    if changed:
        more = f", and {len(changed) - 2} more" if len(changed) > 2 else ""
        raise UserError(
            f"{path.parent} was run with other settings: {'; '.join(changed[:2])}{more}; give --out a new folder, or "
            f"delete the folder of the trial"
        )


def _digest(recipe: str) -> str | None:
    """Compute the digest of a recipe file; None for a shipped recipe or a missing file."""
    if not recipe.endswith((".yaml", ".yml")) or not Path(recipe).is_file():
        return None
    content = json.dumps(read_yaml(recipe), sort_keys=True, default=str)
    return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def check_folder(out: Path) -> None:
    """Raise an error for a path that cannot be the folder of a comparison; creates nothing.

    Raises:
        UserError: a file, or a folder with other content.
    """
    if next(path for path in (out, *out.parents) if path.exists()).is_file():
        raise UserError(f"{out} is a file, or under one; a comparison needs a folder")
    if not (out / _RECIPE).is_file() and entries(out):
        raise UserError(f"{out} is a folder with other things in it; set --out to a new or empty one")


def open_folder(out: Path, recipe: CompareRecipe) -> None:
    """Create the folder ``out`` of a comparison, unless it exists.

    Raises:
        UserError: as in `check_folder`.
    """
    check_folder(out)
    out.mkdir(parents=True, exist_ok=True)
    if not (out / _RECIPE).is_file():
        write_text(out / _RECIPE, dump(recipe))


def open_records(out: Path, recipe: CompareRecipe, trials: Sequence[Trial]) -> list[Record]:
    """Open and write the records of all trials, and the recipe; a changed ``benchmark`` is measured again.

    Raises:
        UserError: as `check_folder` and `Record.open`, or ``out`` holds trials of another comparison.
    """
    open_folder(out, recipe)
    records = [Record.open(out / "trials" / trial.subfolder, trial) for trial in trials]
    requested = {record.folder for record in records}
    strange = sorted(p.parent for p in (out / "trials").glob(f"*/*/{_RECORD}") if p.parent not in requested)
    if strange:
        names = ", ".join(str(folder.relative_to(out / "trials")) for folder in strange[:3])
        raise UserError(
            f"{out} has trials that are not in this comparison ({len(strange)}): {names}; give --out a new folder, or "
            f"delete them"
        )
    measured = migrate(read_yaml(out / _RECIPE)).get("benchmark")
    if recipe.benchmark is not None and recipe.benchmark.model_dump(mode="json") != measured:
        for record in records:
            record.result.inference = None
            if record.status == "done":
                record.result.status = "waiting"
    for record in records:
        record.write()
    write_text(out / _RECIPE, dump(recipe))  # last: a killed call compares with the benchmark that was measured
    return records
