"""A search for the settings that each variation is at its best with, by Optuna, on the validation."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from homespun.compare.folder import Record
from homespun.compare.recipe import Choices, CompareRecipe, Range
from homespun.compare.trials import Trial, to_yaml, variants
from homespun.errors import UserError
from homespun.io.atomic import write_text
from homespun.io.json import read_optional
from homespun.metrics.registry import lower_is_better
from homespun.report import formats
from homespun.report.records import as_tree

if TYPE_CHECKING:
    from homespun.compare.runner import Runner

logger = logging.getLogger(__name__)

_FINISHED = ("done", "failed")
_PATIENCE, _UNKNOWN = 2.0, 3600.0  # times the longest trial so far; seconds, where none has ended
_LOOK = 1.0  # seconds between asking whether the trials of others have ended


@dataclass
class _OpenTrial:
    """A trial of a study that is not told yet."""

    study: Any
    number: int
    record: Record


class SettingsSearch:
    """Gives a runner trials to run, and tells their studies what came of them.

    A study belongs to what is searched, not to a folder: runners on several machines that share the storage, each with
    a folder of its own, work through it together. A study that was stopped goes on with the trials it had begun.

    Args:
        recipe: the comparison.
        out: its folder.
        known: lines that need no search.
        retry_failed: trials that have failed do not count: as many more are begun.

    Raises:
        UserError: Optuna is not installed, the storage cannot be used, or the measure is none.
    """

    def __init__(
        self, recipe: CompareRecipe, out: Path, *, known: Collection[str] = (), retry_failed: bool = False
    ) -> None:
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
        self.stage = recipe.searched
        self.out.mkdir(parents=True, exist_ok=True)
        storage = self.search.storage or f"sqlite:///{(self.out / 'study.db').absolute()}"
        self._variants = {variant.name: variant for variant in variants(recipe) if variant.name not in known}
        self._studies: dict[str, Any] = {}
        self._open: list[_OpenTrial] = []
        self._waiting: float | None = None  # since when
        lower = lower_is_better(self._measure())
        for name in self._variants:
            try:
                self._studies[name] = optuna.create_study(
                    study_name=f"{name}-{_digest(recipe, name)}",
                    storage=storage,
                    load_if_exists=True,
                    direction="minimize" if lower else "maximize",
                )
            except Exception as error:  # of whichever database
                raise UserError(f"search.storage={storage} cannot be used: {error}") from error
        failed = (optuna.trial.TrialState.FAIL,) if retry_failed else ()
        self._forgiven = {name: len(study.get_trials(False, failed)) for name, study in self._studies.items()}

    def reopen(self) -> list[Record]:
        """The trials that were begun here. Those that were not told go on; the others have what may be shared."""
        records = []
        for name, study in self._studies.items():
            for trial in study.get_trials(deepcopy=False):
                running = trial.state == self._optuna.trial.TrialState.RUNNING
                # in a storage of this folder alone, one without a record was begun when its runner was killed
                requested = running and not self.search.storage and trial.params.keys() == self.search.space.keys()
                if requested or (self._folder(name, trial.number) / "trial.json").is_file():
                    record = self._record(name, trial.number, trial.params)
                    if running:
                        self._open.append(_OpenTrial(study, trial.number, record))
                    if running or record.status in _FINISHED:
                        records.append(record)
        return records

    def tell(self) -> None:
        """Tell the studies what has ended."""
        for entry in [entry for entry in self._open if entry.record.status in _FINISHED]:
            self._open.remove(entry)
            score = math.nan if entry.record.status == "failed" else self._score(entry.record)
            if math.isnan(score):
                entry.study.tell(entry.number, state=self._optuna.trial.TrialState.FAIL)
            else:
                entry.study.tell(entry.number, score)

    def ask(self) -> Record | None:
        """The next trial, of the study that has fewest; None: all have been begun, here or elsewhere."""
        started = {name: len(study.get_trials(deepcopy=False)) for name, study in self._studies.items()}
        counted = {name: count - self._forgiven[name] for name, count in started.items()}
        name = min(counted, key=lambda name: counted[name])
        if counted[name] >= self.search.trials:
            return None
        study = self._studies[name]
        # seeded by the number of the trial, not of the call: a search that was stopped goes on as it would have
        seed = self.search.seed * 1_000_003 + started[name]
        study.sampler = self._optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        trial = study.ask({key: self._distribution(space) for key, space in self.search.space.items()})
        record = self._record(name, trial.number, trial.params)
        self._open.append(_OpenTrial(study, trial.number, record))
        return record

    @property
    def open(self) -> int:
        """Trials that are not told yet."""
        return len(self._open)

    def wait(self) -> bool:
        """Wait a moment for the trials that run elsewhere. False: there are none, or they have taken longer than the
        trials of their studies take, so that nobody is likely to be at work on them.
        """
        elsewhere = {name: count for name in self._studies if (count := self._elsewhere(name))}
        if not elsewhere:
            return False
        trials = f"trials of the search that run elsewhere ({sum(elsewhere.values())})"
        patience = max(self._patience(name) for name in elsewhere)
        if self._waiting is None:
            self._waiting = time.monotonic()
            logger.warning("waiting for the %s, for up to %s", trials, formats.duration(patience))
        if time.monotonic() - self._waiting > patience:
            logger.warning("the %s take too long; going on without them", trials)
            return False
        time.sleep(_LOOK)
        return True

    def found(self) -> dict[str, dict[str, Any]]:
        """By line, what ``search/found.json`` says of it: its best ``settings``, by key, and how they came to be.

        Raises:
            UserError: no trial of a line ended well.
        """
        results: dict[str, dict[str, Any]] = {}
        for name, study in self._studies.items():
            try:
                trial = study.best_trial
            except ValueError:
                if elsewhere := self._elsewhere(name):
                    raise UserError(
                        f"the search found nothing for {name} yet: {elsewhere} of its trials run elsewhere; give the "
                        f"same command again when they have ended"
                    ) from None
                raise UserError(
                    f"the search found nothing for {name}: all {len(study.trials)} trials failed; the logs in "
                    f"{self.out / name} say why, and --retry-failed begins as many again"
                ) from None
            results[name] = {"search": _identity(self.recipe, name), "settings": self._values(trial.params)}
            results[name] |= {self._measure(): trial.value, "trials": len(study.trials)}
        return results

    def _elsewhere(self, name: str) -> int:
        """Trials that others have begun and not told, when none is open here."""
        running = self._optuna.trial.TrialState.RUNNING
        return len(self._studies[name].get_trials(deepcopy=False, states=(running,))) if self.search.storage else 0

    def _patience(self, name: str) -> float:
        """Seconds after which a trial is not waited for any more."""
        complete = self._optuna.trial.TrialState.COMPLETE
        took = [trial.duration for trial in self._studies[name].get_trials(deepcopy=False, states=(complete,))]
        return max((_PATIENCE * duration.total_seconds() for duration in took), default=_UNKNOWN)

    def _folder(self, name: str, number: int) -> Path:
        return self.out / name / f"{number:04d}"

    def _record(self, name: str, number: int, params: Mapping[str, Any]) -> Record:
        variant = replace(self._variants[name], name=f"{name} search {number}")
        trial = Trial(self.recipe, variant, self.recipe.first_seed, self._values(params))
        record = Record.open(self._folder(name, number), trial)
        record.write()
        return record

    def _distribution(self, space: Range | Choices) -> Any:
        kinds = self._optuna.distributions
        if isinstance(space, Choices):
            return kinds.CategoricalDistribution([to_yaml(choice) for choice in space.choices])
        if space.integer:
            return kinds.IntDistribution(int(space.low), int(space.high), log=space.log)
        return kinds.FloatDistribution(space.low, space.high, log=space.log)

    def _values(self, params: Mapping[str, Any]) -> dict[str, Any]:
        values = dict(params)
        for key, space in self.search.space.items():
            if isinstance(space, Choices):
                values[key] = next(choice for choice in space.choices if to_yaml(choice) == params[key])
        return values

    def _measure(self) -> str:
        return self.search.metric or "loss"

    def _score(self, record: Record) -> float:
        """The validation of the checkpoint that was kept; over folds and seeds the mean."""
        folder = record.path_of(self.stage)
        single = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        several = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("trials/*/result.json")]
        values = [_validation(result["summary"], self._measure()) for result in several]
        values = values or [_validation(single, self._measure())]
        return sum(values) / len(values)


def search_settings(recipe: CompareRecipe, runner: Runner, *, retry_failed: bool = False) -> dict[str, dict[str, Any]]:
    """Search with ``runner`` until every line has had its trials; the best settings of each, by key.

    They are written to ``search/found.json``, and what that has of this search stands: trials were begun with it, and
    a study that others work on may have found better since. ``retry_failed`` is for a search that is not in it.

    Raises:
        UserError: see `SettingsSearch`; the runner was stopped.
    """
    path = runner.out / "search" / "found.json"
    known = _known(recipe, path)
    if len(known) < len(variants(recipe)):
        searching = SettingsSearch(recipe, runner.out, known=known, retry_failed=retry_failed)
        runner.add(searching.reopen())

        def feed() -> bool:
            searching.tell()
            while searching.open < runner.slots and (record := searching.ask()) is not None:
                runner.add([record])
            return searching.open > 0 or searching.wait()

        left = len(variants(recipe)) - len(known)
        runner.run(feed, total=left * searching.search.trials)
        write_text(path, json.dumps(known | searching.found(), indent=1))
        known = _known(recipe, path)
    return {name: dict(results["settings"]) for name, results in known.items()}


def _known(recipe: CompareRecipe, path: Path) -> dict[str, Any]:
    """By line, what was found in this very search."""
    results = read_optional(path)
    names = [variant.name for variant in variants(recipe)]
    return {
        name: results[name] for name in names if as_tree(results.get(name)).get("search") == _identity(recipe, name)
    }


def _validation(result: Mapping[str, Any], measure: str) -> float:
    """A measure of the validation of a run, never of its test; NaN where it could not be measured there.

    Raises:
        UserError: it has no such measure.
    """
    metrics = dict(result.get("validation_metrics") or {})
    metrics.setdefault("loss", metrics.get("log_loss", result["validation"]["loss"]))
    numbers = {name: value for name, value in metrics.items() if value is None or isinstance(value, int | float)}
    if measure not in numbers:
        available = ", ".join(sorted(numbers))
        raise UserError(f"search.metric={measure!r} is not measured on the validation; there are: {available}")
    value = numbers[measure]
    return math.nan if value is None else float(value)


def _digest(recipe: CompareRecipe, name: str) -> str:
    """Of what makes a study: all but how often and where it is run."""
    kept = recipe.model_dump(
        mode="json", exclude={"description", "seeds", "max_parallel", "benchmark", "variations", "search"}
    )
    kept["variation"] = [
        variant.variation.model_dump(mode="json") for variant in variants(recipe) if variant.name == name
    ]
    assert recipe.search is not None
    kept["search"] = recipe.search.model_dump(mode="json", exclude={"storage", "trials"})
    return hashlib.blake2b(json.dumps(kept, sort_keys=True).encode(), digest_size=6).hexdigest()


def _identity(recipe: CompareRecipe, name: str) -> str:
    """Of a study that has had its trials."""
    assert recipe.search is not None
    return f"{_digest(recipe, name)}-{recipe.search.trials}"
