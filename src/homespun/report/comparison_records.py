"""Records of the folder of a comparison; missing, damaged and foreign files are reported, others are read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

import yaml

from homespun.comparison_results import InferenceCost, TrialResult, TrialStage
from homespun.config import parse_yaml, read_yaml
from homespun.errors import UserError
from homespun.migration import migrate
from homespun.report.records import (
    RunRecord,
    Tree,
    as_tree,
    average,
    comparable,
    final_losses,
    pretraining_quantity,
    read_run,
)

STATUSES = ("waiting", "running", "done", "failed", "unreadable")


@dataclass(frozen=True)
class StageRecord:
    """Stage of a trial: pretraining, or a task by its name."""

    name: str
    result: TrialStage
    record: RunRecord | None  # None: not started

    @property
    def kind(self) -> str:
        """``pretrain`` or ``finetune``."""
        return self.result.kind or ("pretrain" if self.name == "pretrain" else "finetune")

    @property
    def baselines(self) -> str:
        """Folder below ``baselines/`` of the baselines of a task."""
        return self.result.baselines or self.name

    @property
    def start_settings(self) -> dict[str, str]:
        """Recipe, model and word vectors at the start, as far as given."""
        given = {key: getattr(self.result, key) for key in ("recipe", "start_from", "vectors")}
        return {key: value for key, value in given.items() if value is not None}


@dataclass(frozen=True)
class TrialRecord:
    """Variant with one seed."""

    name: str
    seed: int
    status: str  # one of `STATUSES`
    why: str = ""  # why the trial failed or cannot be read
    result: TrialResult = field(default_factory=TrialResult)
    stages: Mapping[str, StageRecord] = field(default_factory=dict)

    @property
    def stage(self) -> str:
        """Stage that failed; empty for other trials."""
        return (self.result.stage or "") if self.status == "failed" else ""

    @property
    def settings(self) -> dict[str, dict[str, object]]:
        """Changed settings by stage; values are parsed as in a command."""
        return {stage: _settings(given) for stage, given in self.result.settings.items()}

    @property
    def inference(self) -> list[InferenceCost]:
        """Costs of inference by length; empty if not measured."""
        return self.result.inference or []


@dataclass(frozen=True)
class Variant:
    """Trials that differ only in their seed."""

    name: str
    trials: Sequence[TrialRecord]

    @property
    def done(self) -> list[TrialRecord]:
        """Finished trials."""
        return [trial for trial in self.trials if trial.status == "done"]

    @property
    def state(self) -> str:
        """``3 done``, ``2 done, 1 failed``."""
        counts = Counter(trial.status for trial in self.trials)
        return ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])

    @property
    def why(self) -> str | None:
        """Reasons of missing trials, each once."""
        reasons = [f"{trial.stage}: {trial.why}" if trial.stage else trial.why for trial in self.trials if trial.why]
        return "; ".join(dict.fromkeys(reasons)) or None

    def records(self, stage: str, *, finished: bool = True) -> list[RunRecord]:
        """Return the runs of a stage by seed, in finished trials or in all."""
        found = [
            trial.stages[stage].record for trial in (self.done if finished else self.trials) if stage in trial.stages
        ]
        return [record for record in found if record is not None]

    def mean(self, stage: str) -> RunRecord | None:
        """Return the mean of the runs of a stage, under the name of the variant."""
        records = self.records(stage)
        return average(records, self.name) if records else None

    def validation_losses(self) -> list[float]:
        """Validation losses at the end of each pretraining."""
        found = [final_losses(record)[1].get("loss") for record in self.records("pretrain")]
        return [loss for loss in found if loss is not None]

    def baseline_set(self, task: str) -> str | None:
        """Return the folder of the baselines of a task; None if not yet known."""
        found = [trial.stages[task].baselines for trial in self.trials if task in trial.stages]
        return found[0] if found else None

    def stage_seconds(self, stage: str) -> float | None:
        """Return the mean duration of a stage in seconds over finished trials; None if unknown."""
        found = [trial.stages[stage].result.seconds for trial in self.done if stage in trial.stages]
        known = [value for value in found if value is not None]
        return fmean(known) if known else None


@dataclass(frozen=True)
class Comparison:
    """Content of the folder of a comparison."""

    path: Path
    recipe: Tree
    variants: Sequence[Variant]
    tasks: Sequence[str]
    baselines: Mapping[str, Path]  # folders with the baselines' result and predictions, by name
    warnings: Sequence[str]  # a sentence for each file that could not be read

    @property
    def trials(self) -> list[TrialRecord]:
        """All trials, by variation and seed."""
        return [trial for variant in self.variants for trial in variant.trials]

    def sharing(self) -> list[list[str]]:
        """Return groups of variants that share pretraining runs."""
        found: list[tuple[set[Path], list[str]]] = []
        for variant in self.variants:
            runs = {record.path.resolve() for record in variant.records("pretrain", finished=False)}
            same = next((group for group in found if group[0] & runs), None)
            if same is None:
                found.append((runs, [variant.name]))
            else:
                same[0].update(runs)
                same[1].append(variant.name)
        return [names for _, names in found if len(names) > 1]

    @property
    def pretrains(self) -> bool:
        """True if there is a pretraining stage."""
        return any(stage.kind == "pretrain" for trial in self.trials for stage in trial.stages.values())


def is_comparison(folder: Path) -> bool:
    """True for the folder of a comparison, False for that of a run."""
    return (folder / "comparison.yaml").is_file() or any(folder.glob("trials/*/*/trial.json"))


def read_comparison(folder: Path) -> Comparison:
    """Read the folder of a comparison; its trials may be in any state.

    Raises:
        UserError: no comparison, or its ``comparison.yaml`` is damaged.
    """
    if not is_comparison(folder):
        state = "holds no comparison" if folder.is_dir() else "is not a folder"
        raise UserError(f"{folder} {state}: it has neither comparison.yaml nor trials/NAME/seed-K/trial.json")
    recipe = migrate(read_yaml(folder / "comparison.yaml")) if (folder / "comparison.yaml").is_file() else {}
    warnings = [] if recipe else ["comparison.yaml is missing: the settings are taken from the trials."]
    named = [str(name) for name in as_tree(recipe.get("variations"))]
    found: dict[str, list[TrialRecord]] = {}
    for path in sorted(folder.glob("trials/*/seed-*"), key=lambda path: _natural(path.name)):
        if path.is_dir():
            trial = _trial(path, warnings)
            found.setdefault(path.parent.name, []).append(trial)
    order = sorted(found, key=lambda name: (_recipe_order(name, named), _natural(name)))
    variants = [Variant(found[name][0].name, found[name]) for name in order]
    present = [s.name for v in variants for t in v.trials for s in t.stages.values() if s.kind == "finetune"]
    tasks = list(dict.fromkeys([*map(str, as_tree(recipe.get("finetune"))), *present]))
    baseline_sets = [s.baselines for v in variants for t in v.trials for s in t.stages.values() if s.kind == "finetune"]
    folders = {name: folder / "baselines" / name for name in [*tasks, *baseline_sets] if Path(name).name == name}
    baselines = {name: path for name, path in folders.items() if path.is_dir()}
    return Comparison(folder, recipe, variants, tasks, baselines, warnings)


def _recipe_order(name: str, named: Sequence[str]) -> int:
    """Return the position in the recipe; names in a grid begin with the name of their variation."""
    fitting = [i for i, known in enumerate(named) if name.startswith(known)]
    return max(fitting, key=lambda i: len(named[i])) if fitting else len(named)


def _natural(name: str) -> list[tuple[bool, float, str]]:
    parts = re.findall(r"\d+\.?\d*|\D+", name)
    return [(True, float(p), "") if p[0].isdigit() else (False, 0.0, p) for p in parts]


def _trial(path: Path, warnings: list[str]) -> TrialRecord:
    where = f"trials/{path.parent.name}/{path.name}"
    seed = int(digits) if (digits := path.name.removeprefix("seed-")).isdigit() else 0
    if not (path / "trial.json").is_file():
        warnings.append(f"{where} has no trial.json.")
        return TrialRecord(path.parent.name, seed, "unreadable", "trial.json is missing")
    try:
        result = TrialResult.read(path / "trial.json")
    except UserError as error:
        why = str(error).replace(f"{path}/", "")
        warnings.append(f"{where}: {why}.")
        return TrialRecord(path.parent.name, seed, "unreadable", why)
    stages: dict[str, StageRecord] = {}
    status, why = str(result.status), " ".join((result.why or "").split())
    for name, stage in result.stages.items():
        record = None
        try:
            record = _record(path, name, stage)
        except UserError as error:
            status, why = "unreadable", " ".join(str(error).replace(f"{path}/", "").split())
            warnings.append(f"{where}: {why}.")
        stages[name] = StageRecord(name, stage, record)
    seed = seed if result.seed is None else result.seed
    return TrialRecord(result.name or path.parent.name, seed, status, why, result, stages)


def _record(trial: Path, name: str, stage: TrialStage) -> RunRecord | None:
    """Read the run of a stage: at its ``path``, else under its name."""
    for run in (trial / (stage.path or name), trial / name):
        if (run / "config.yaml").is_file() or (run / "result.json").is_file():
            return read_run(run)
    return None


def _settings(given: Sequence[str]) -> dict[str, object]:
    """Parse ``KEY=VALUE`` assignments to a mapping."""
    settings: dict[str, object] = {}
    for assignment in given:
        key, _, value = assignment.partition("=")
        try:
            settings[key] = parse_yaml(value)
        except yaml.YAMLError:
            settings[key] = value
    return settings


def comparable_variants(comparison: Comparison, stage: str) -> list[list[Variant]]:
    """Group variants by the quantity that the loss of a stage measures.

    Losses with other terms are other quantities; in pretraining also losses on other held-out rows or of other
    objectives.
    """
    means = [mean for variant in comparison.variants if (mean := variant.mean(stage)) is not None]
    by_name = {variant.name: variant for variant in comparison.variants}
    found: dict[str, list[Variant]] = {}
    for terms, group in enumerate(comparable(means)):
        for record in group:
            quantity = pretraining_quantity(record) if stage == "pretrain" else str(terms)
            found.setdefault(quantity, []).append(by_name[record.name])
    return list(found.values())
