"""A search for the settings that each variation is at its best with, by Optuna, on the validation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from homespun.compare.folder import Record
from homespun.compare.recipe import Choices, CompareRecipe, Range, Search
from homespun.compare.trials import Line, lines, trial_of, written
from homespun.errors import UserError
from homespun.training.checkpoint import write_file

if TYPE_CHECKING:
    from homespun.compare.run import Runner

_FINISHED = ("done", "failed")


@dataclass
class _Open:
    """A trial of a study that is not told yet."""

    study: Any
    number: int
    record: Record


class Searching:
    """Gives a runner trials to run, and tells their studies what came of them.

    A study belongs to what is searched, not to a folder: runners on several machines that share the storage, each with
    a folder of its own, work through it together. A study that was stopped goes on with the trials it had begun.

    Raises:
        UserError: Optuna is not installed, the storage cannot be used, or the space is of stages that there are not.
    """

    def __init__(self, recipe: CompareRecipe, out: Path) -> None:
        assert recipe.search is not None
        try:
            import optuna
        except ImportError:
            raise UserError(
                "Optuna is not installed, and `search` needs it to look for settings: pip install 'homespun[tune]'"
            ) from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna = optuna
        self.recipe, self.search, self.out = recipe, recipe.search, out / "search"
        self.stage = _stage(recipe, recipe.search)
        self.out.mkdir(parents=True, exist_ok=True)
        storage = self.search.storage or f"sqlite:///{(self.out / 'study.db').absolute()}"
        self._lines = {line.name: line for line in lines(recipe)}
        self._studies: dict[str, Any] = {}
        self._open: list[_Open] = []
        for name in self._lines:
            try:
                self._studies[name] = optuna.create_study(
                    study_name=f"{name}-{_digest(recipe, name)}",
                    storage=storage,
                    load_if_exists=True,
                    direction="minimize" if self._measure().endswith(("loss", "error")) else "maximize",
                )
            except Exception as error:  # of whichever database
                raise UserError(f"search.storage={storage} cannot be used: {error}") from error

    def reopen(self) -> list[Record]:
        """The trials that were begun here, and not told."""
        running = self._optuna.trial.TrialState.RUNNING
        for name, study in self._studies.items():
            for trial in study.get_trials(deepcopy=False, states=(running,)):
                if (self._folder(name, trial.number) / "trial.json").is_file():
                    self._open.append(_Open(study, trial.number, self._record(name, trial.number, trial.params)))
        return [entry.record for entry in self._open]

    def tell(self) -> None:
        """Tell the studies what has ended."""
        for entry in [entry for entry in self._open if entry.record.status in _FINISHED]:
            self._open.remove(entry)
            if entry.record.status == "failed":
                entry.study.tell(entry.number, state=self._optuna.trial.TrialState.FAIL)
            else:
                entry.study.tell(entry.number, self._score(entry.record))

    def ask(self) -> Record | None:
        """The next trial, of the study that has fewest; None: all have been begun, here or elsewhere."""
        begun = {name: len(study.get_trials(deepcopy=False)) for name, study in self._studies.items()}
        name = min(begun, key=lambda name: begun[name])
        if begun[name] >= self.search.trials:
            return None
        study = self._studies[name]
        # seeded by the number of the trial, not of the call: a search that was stopped goes on as it would have
        seed = self.search.seed * 1_000_003 + begun[name]
        study.sampler = self._optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        trial = study.ask({key: self._distribution(space) for key, space in self.search.space.items()})
        record = self._record(name, trial.number, trial.params)
        self._open.append(_Open(study, trial.number, record))
        return record

    @property
    def open(self) -> int:
        """Trials that are not told yet."""
        return len(self._open)

    def found(self) -> dict[str, dict[str, Any]]:
        """The best settings of each line, by key; written to ``search/found.json`` too.

        Raises:
            UserError: all trials of a line failed.
        """
        best: dict[str, dict[str, Any]] = {}
        told: dict[str, Any] = {}
        for name, study in self._studies.items():
            try:
                trial = study.best_trial
            except ValueError:
                raise UserError(
                    f"the search found nothing for {name}: all {self.search.trials} trials failed; the logs in "
                    f"{self.out / name} say why"
                ) from None
            best[name] = self._values(trial.params)
            told[name] = {"settings": best[name], self._measure(): trial.value, "trials": len(study.trials)}
        write_file(self.out / "found.json", json.dumps(told, indent=1))
        return best

    def _folder(self, name: str, number: int) -> Path:
        return self.out / name / f"{number:04d}"

    def _record(self, name: str, number: int, params: Mapping[str, Any]) -> Record:
        line: Line = self._lines[name]
        trial = trial_of(self.recipe, line, self.recipe.first_seed, self._values(params))
        named = replace(trial, name=f"{name} search {number}")
        record = Record.open(self._folder(name, number), named)
        record.write()
        return record

    def _distribution(self, space: Range | Choices) -> Any:
        kinds = self._optuna.distributions
        if isinstance(space, Choices):
            return kinds.CategoricalDistribution([written(choice) for choice in space.choices])
        if space.whole:
            return kinds.IntDistribution(int(space.low), int(space.high), log=space.log)
        return kinds.FloatDistribution(space.low, space.high, log=space.log)

    def _values(self, params: Mapping[str, Any]) -> dict[str, Any]:
        values = dict(params)
        for key, space in self.search.space.items():
            if isinstance(space, Choices):
                values[key] = next(choice for choice in space.choices if written(choice) == params[key])
        return values

    def _measure(self) -> str:
        return self.search.measure or "loss"

    def _score(self, record: Record) -> float:
        """The validation of the checkpoint that was kept; over folds and seeds the mean."""
        folder = record.path_of(self.stage)
        single = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        several = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("trials/*/result.json")]
        values = [_validation(result["summary"], self._measure()) for result in several]
        values = values or [_validation(single, self._measure())]
        return sum(values) / len(values)


def found_by(recipe: CompareRecipe, runner: Runner) -> dict[str, dict[str, Any]]:
    """Search with ``runner`` until every line has had its trials; the best settings of each.

    Raises:
        UserError: see `Searching`; the runner was stopped.
    """
    searching = Searching(recipe, runner.out)
    runner.add(searching.reopen())

    def feed() -> bool:
        searching.tell()
        while searching.open < runner.slots and (record := searching.ask()) is not None:
            runner.add([record])
        return searching.open > 0

    runner.run(feed)
    return searching.found()


def _stage(recipe: CompareRecipe, search: Search) -> str:
    """Whose validation counts."""
    return search.task or next(iter(recipe.finetune), "pretrain")


def _validation(result: Mapping[str, Any], measure: str) -> float:
    """A measure of the validation of a run, never of its test.

    Raises:
        UserError: it has no such measure.
    """
    metrics = dict(result.get("validation_metrics") or {})
    metrics.setdefault("loss", metrics.get("log_loss", result["validation"]["loss"]))
    value = metrics.get(measure)
    if not isinstance(value, int | float):
        there = ", ".join(sorted(name for name, v in metrics.items() if isinstance(v, int | float)))
        raise UserError(f"search.measure={measure!r} is not measured on the validation; there are: {there}")
    return float(value)


def _digest(recipe: CompareRecipe, name: str) -> str:
    """Of what makes a study: all but how often and where it is run."""
    kept = recipe.model_dump(mode="json", exclude={"about", "seeds", "slots", "measure", "variations", "search"})
    kept["variation"] = [line.variation.model_dump(mode="json") for line in lines(recipe) if line.name == name]
    assert recipe.search is not None
    kept["search"] = recipe.search.model_dump(mode="json", exclude={"storage", "trials"})
    return hashlib.blake2b(json.dumps(kept, sort_keys=True).encode(), digest_size=6).hexdigest()
