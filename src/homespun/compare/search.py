"""Search for the best settings of each variant with Optuna, by the validation."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from pydantic import JsonValue

from homespun.compare.folder import Record
from homespun.compare.recipe import Choices, CompareRecipe, Range
from homespun.compare.runner import Runner
from homespun.compare.trials import Settings, Trial, to_yaml, variants
from homespun.errors import UserError
from homespun.io.json import read_object, read_optional, write_json
from homespun.metrics.classification import scalars
from homespun.metrics.registry import lower_is_better
from homespun.report import formats
from homespun.report.records import as_tree

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution

logger = logging.getLogger(__name__)

_PATIENCE, _UNKNOWN = 2.0, 3600.0  # times the longest trial so far; seconds if none has ended
_POLL = 1.0  # seconds between polls of trials on other machines


@dataclass
class _OpenTrial:
    """Trial without a result in its study."""

    study: Study
    number: int
    record: Record


class SettingsSearch:
    """Creates trials for a runner, and reports their results to the studies of Optuna.

    A study is identified by its settings, not by a folder: runners on several machines that share the storage, each
    with its own folder, cooperate on it. A stopped study continues with its open trials.

    Args:
        out: folder of the comparison.
        known: variants that need no search.
        retry_failed: start as many more trials as have failed.

    Raises:
        UserError: Optuna is not installed, the storage cannot be used, or the metric is unknown.
    """

    def __init__(
        self, recipe: CompareRecipe, out: Path, *, known: Collection[str] = (), retry_failed: bool = False
    ) -> None:
        assert recipe.search is not None
        try:
            import optuna
        except ImportError:
            raise UserError("Optuna is not installed, and `search` needs it: pip install 'homespun[tune]'") from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna = optuna
        self.recipe, self.search, self.out = recipe, recipe.search, out / "search"
        self.stage = recipe.searched
        self.out.mkdir(parents=True, exist_ok=True)
        storage = self.search.storage or f"sqlite:///{(self.out / 'study.db').absolute()}"
        self._variants = {variant.name: variant for variant in variants(recipe) if variant.name not in known}
        self._studies: dict[str, Study] = {}
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
            except Exception as error:  # each database has its own
                raise UserError(f"search.storage={storage} cannot be used: {error}") from error
        failed = (optuna.trial.TrialState.FAIL,) if retry_failed else ()
        self._failed = {name: len(study.get_trials(False, failed)) for name, study in self._studies.items()}

    def reopen(self) -> list[Record]:
        """Return the trials of this folder: open ones, which continue, and ended ones, whose runs may be shared."""
        records = []
        for name, study in self._studies.items():
            for trial in study.get_trials(deepcopy=False):
                running = trial.state == self._optuna.trial.TrialState.RUNNING
                # the storage is in this folder: a trial without a record was suggested before its runner was killed
                is_own = running and not self.search.storage and trial.params.keys() == self.search.space.keys()
                if is_own or (self._folder(name, trial.number) / "trial.json").is_file():
                    record = self._record(name, trial.number, trial.params)
                    if running:
                        self._open.append(_OpenTrial(study, trial.number, record))
                    if running or record.ended:
                        records.append(record)
        return records

    def tell(self) -> None:
        """Report ended trials to the studies."""
        for entry in [entry for entry in self._open if entry.record.ended]:
            self._open.remove(entry)
            score = math.nan if entry.record.status == "failed" else self._score(entry.record)
            if math.isnan(score):
                entry.study.tell(entry.number, state=self._optuna.trial.TrialState.FAIL)
            else:
                entry.study.tell(entry.number, score)

    def ask(self) -> Record | None:
        """Create a trial of the study with the fewest trials; None if all were started, here or elsewhere."""
        started = {name: len(study.get_trials(deepcopy=False)) for name, study in self._studies.items()}
        counted = {name: count - self._failed[name] for name, count in started.items()}
        name = min(counted, key=lambda name: counted[name])
        if counted[name] >= self.search.trials:
            return None
        study = self._studies[name]
        # seeded by the number of the trial, so that a stopped search continues as it would have
        seed = self.search.seed * 1_000_003 + started[name]
        study.sampler = self._optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        trial = study.ask({key: self._distribution(space) for key, space in self.search.space.items()})
        record = self._record(name, trial.number, trial.params)
        self._open.append(_OpenTrial(study, trial.number, record))
        return record

    @property
    def open(self) -> int:
        """Number of trials without a reported result."""
        return len(self._open)

    def wait(self) -> bool:
        """Wait briefly for trials that run elsewhere.

        Returns:
            False if there are none, or if they take so long that their runners have probably stopped.
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
            logger.warning("the %s take too long; continuing without them", trials)
            return False
        time.sleep(_POLL)
        return True

    def found(self) -> dict[str, dict[str, object]]:
        """Return the best settings and their score by variant, as in ``search/found.json``.

        Raises:
            UserError: no trial of a variant succeeded.
        """
        results: dict[str, dict[str, object]] = {}
        for name, study in self._studies.items():
            try:
                trial = study.best_trial
            except ValueError:
                if elsewhere := self._elsewhere(name):
                    raise UserError(
                        f"no result of the search for {name} yet: {elsewhere} of its trials run elsewhere; run the "
                        f"same command again when they have ended"
                    ) from None
                raise UserError(
                    f"no result of the search for {name}: all {len(study.trials)} trials failed; see the logs in "
                    f"{self.out / name}, and give --retry-failed to start as many again"
                ) from None
            results[name] = {"search": _identity(self.recipe, name), "settings": self._values(trial.params)}
            results[name] |= {self._measure(): trial.value, "trials": len(study.trials)}
        return results

    def _elsewhere(self, name: str) -> int:
        """Return the number of open trials of other runners, while none is open here."""
        running = self._optuna.trial.TrialState.RUNNING
        return len(self._studies[name].get_trials(deepcopy=False, states=(running,))) if self.search.storage else 0

    def _patience(self, name: str) -> float:
        """Return the timeout of a trial in seconds."""
        complete = self._optuna.trial.TrialState.COMPLETE
        took = [trial.duration for trial in self._studies[name].get_trials(deepcopy=False, states=(complete,))]
        return max((_PATIENCE * duration.total_seconds() for duration in took if duration), default=_UNKNOWN)

    def _folder(self, name: str, number: int) -> Path:
        return self.out / name / f"{number:04d}"

    def _record(self, name: str, number: int, params: Settings) -> Record:
        variant = replace(self._variants[name], name=f"{name} search {number}")
        trial = Trial(self.recipe, variant, self.recipe.first_seed, self._values(params))
        record = Record.open(self._folder(name, number), trial)
        record.write()
        return record

    def _distribution(self, space: Range | Choices) -> BaseDistribution:
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if isinstance(space, Choices):
            return CategoricalDistribution([to_yaml(choice) for choice in space.choices])
        if space.integer:
            return IntDistribution(int(space.low), int(space.high), log=space.log)
        return FloatDistribution(space.low, space.high, log=space.log)

    def _values(self, params: Settings) -> dict[str, JsonValue]:
        values = dict(params)
        for key, space in self.search.space.items():
            if isinstance(space, Choices):
                values[key] = next(choice for choice in space.choices if to_yaml(choice) == params[key])
        return values

    def _measure(self) -> str:
        return self.search.metric or "loss"

    def _score(self, record: Record) -> float:
        """Return the validation metric of the best checkpoint, the mean over folds and seeds."""
        folder = record.path_of(self.stage)
        several = [read_object(path)["summary"] for path in folder.glob("trials/*/result.json")]
        results = several or [read_object(folder / "result.json")]
        return fmean(_validation(result, self._measure()) for result in results)


def search_settings(recipe: CompareRecipe, runner: Runner, *, retry_failed: bool = False) -> dict[str, Settings]:
    """Run the trials of every variant's search; returns the best settings by variant.

    They are written to ``search/found.json`` and then fixed: trials were started with them, although a study with other
    runners may have found better settings since. ``retry_failed`` applies to searches that are not in the file.

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
        write_json(path, known | searching.found())
        known = _known(recipe, path)
    return {name: as_tree(results["settings"]) for name, results in known.items()}


def _known(recipe: CompareRecipe, path: Path) -> dict[str, dict[str, JsonValue]]:
    """Read the results of this search, by variant."""
    results = read_optional(path)
    names = [variant.name for variant in variants(recipe)]
    return {
        name: results[name] for name in names if as_tree(results.get(name)).get("search") == _identity(recipe, name)
    }


def _validation(result: Mapping[str, JsonValue], metric: str) -> float:
    """Return a validation metric of a run, never of its test; NaN if it was undefined.

    Raises:
        UserError: the validation has no such metric.
    """
    numbers = scalars(as_tree(result.get("validation_metrics")))
    numbers.setdefault("loss", numbers.get("log_loss", as_tree(result["validation"])["loss"]))
    if metric not in numbers:
        available = ", ".join(sorted(numbers))
        raise UserError(f"search.metric={metric!r} is not a metric of the validation; choose one of: {available}")
    value = numbers[metric]
    return math.nan if value is None else float(value)


def _digest(recipe: CompareRecipe, name: str) -> str:
    """Compute a digest of everything that defines a study, without the number of trials and the storage."""
    kept = recipe.model_dump(
        mode="json",
        exclude={"description", "seeds", "max_parallel", "gpus_per_trial", "benchmark", "variations", "search"},
    )
    kept["variation"] = [
        variant.variation.model_dump(mode="json") for variant in variants(recipe) if variant.name == name
    ]
    assert recipe.search is not None
    kept["search"] = recipe.search.model_dump(mode="json", exclude={"storage", "trials"})
    return hashlib.blake2b(json.dumps(kept, sort_keys=True).encode(), digest_size=6).hexdigest()


def _identity(recipe: CompareRecipe, name: str) -> str:
    """Identifier of a complete study."""
    assert recipe.search is not None
    return f"{_digest(recipe, name)}-{recipe.search.trials}"
