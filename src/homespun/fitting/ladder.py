"""Candidates of a fit, trained in order of cost within the time limit."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from homespun.commands.trials import copy_folder
from homespun.errors import NotFinite, StepTooLong, quantity
from homespun.fitting.candidates import (
    METRICS,
    Candidate,
    Clock,
    average_candidate,
    candidate,
    constant_candidate,
    fit_linear_model,
    score,
    stopwatch,
)
from homespun.fitting.card import CARD
from homespun.fitting.inspection import Inspection
from homespun.fitting.linear_plan import LinearPlan, bound_plan, plan_linear
from homespun.fitting.networks import (
    MAX_LENGTH,
    MIN_CHARACTERS,
    MIN_LENGTH,
    Source,
    distil_student,
    finetune_source,
    fit_frozen,
    layer_seconds,
    open_source,
    pretrain_on,
    shorten,
    texts_to_read,
    write_parts,
)
from homespun.fitting.results import FitSettings
from homespun.io.atomic import write_text
from homespun.io.json import read_object
from homespun.linear import LinearFit
from homespun.report import formats
from homespun.report.console import Display
from homespun.report.formats import metric_text
from homespun.tasks.text_models import LinearTextModel, TextModel, open_text_model, save_text_model
from homespun.training.precision import multiplies_faster_in_bf16

_LINEAR_SHARE = 0.25  # maximum share of the time for the linear model
_MIN_NETWORK = 60.0  # seconds that a network needs at least
_MIN_EXAMPLES = 4_000  # or all, that a fine-tuning reads at least (results/fit.md)
_DESCRIPTION = "candidate.json"
_REST = 2.0  # seconds for the average, the test and the report, besides their predictions
_OVERRUN = 0.1  # share of the time, by which a refit may exceed it
_MANY_TOKENS = 2.5  # tokens per word, above which a tokenizer does not suit the texts
_TEACHER_SHARE = 0.65  # teacher's share of the remaining time, if a student follows
_PRETRAINING_SHARE = 0.55  # share of an own network's time; the rest is for fine-tuning


@dataclass
class Ladder:
    """State of a fit: trained candidates and remaining time."""

    inspection: Inspection
    folder: Path
    settings: FitSettings
    sources: Sequence[Source]
    display: Display
    start: float

    def __post_init__(self) -> None:
        self.candidates: list[Candidate] = [constant_candidate(self.inspection)]
        self.skipped: list[str] = []
        self.metric = METRICS[self.inspection.task]
        self.linear: LinearFit | None = None
        self.plan: LinearPlan | None = None
        for path in (self.folder / "candidates").glob(f"*/{_DESCRIPTION}"):
            # time that earlier calls used counts, but for the linear model, which is fitted again
            if path.parent.name != "linear":
                self.start -= float(read_object(path)["seconds"]["wall"])

    def left(self) -> float:
        """Seconds that remain for training, without the time to evaluate and write the result."""
        return self.settings.seconds - (time.monotonic() - self.start) - _REST - self.refit_seconds()

    def refit_seconds(self) -> float:
        """Seconds of the last fit of the linear model, on training and validation examples."""
        linear = sum(one.seconds.wall for one in self.candidates if one.name == "linear")
        return 0.0 if self.plan is None else self.plan.refit * linear

    def evaluation(self, source: Source) -> float:
        """Seconds that a network takes for the validation and the test examples."""
        return 1.3 * (len(self.inspection.validation) + len(self.inspection.test)) / source.texts_per_second

    def best(self) -> Candidate:
        """Best candidate on the validation examples within the latency limit; of equal candidates the cheaper one."""
        limit = self.settings.latency or math.inf
        fast = [one for one in self.candidates if one.latency <= limit]
        return max(fast, key=lambda one: score(one.validation, self.metric))

    def climb(self) -> None:
        """Train the candidates."""
        plan = self._plan()

        def linear() -> TextModel:
            model, self.linear = fit_linear_model(
                self.inspection, self.inspection.train, plan=plan, seed=self.settings.seed
            )
            return model

        self._rung("linear", "linear model on TF-IDF n-grams", plan.seconds, linear)
        for number, source in enumerate(self.sources):
            self._from_checkpoint(source, number + 1, self._for_networks() / (len(self.sources) - number))
        if not self.sources:
            self._own_network(self._for_networks())
        networks = [one for one in self.candidates if one.model is not None and one.model.kind == "network"]
        if networks:
            network = max(networks, key=lambda one: score(one.validation, self.metric))
            linear_model = next(one for one in self.candidates if one.name == "linear")
            self.candidates.append(average_candidate(network, linear_model, self.inspection))
            self._show(self.candidates[-1])
            if self.settings.latency is not None and network.latency > self.settings.latency:
                self._student([one for one in networks if self._run(one.name).is_dir()])

    def _plan(self) -> LinearPlan:
        """Choose the settings of the linear model, and write what it cannot read in the time."""
        left = self.left()
        plan = plan_linear(self.inspection, _LINEAR_SHARE * self.settings.seconds)
        self.plan, spent = bound_plan(plan, self.inspection, left)
        if parts := self.plan.parts(len(self.inspection.train), plan.search_rows):
            line = f"linear model: reads {formats.listed(parts)}, as {_left(left)} is left; give more --time"
            self.inspection.decisions.append(line)
            self.display.line(line)
        if spent > left:
            line = (
                f"the smallest linear model and its predictions take about {formats.duration(spent)}, and "
                f"{_left(left)} of --time is left"
            )
            self.inspection.warnings.append(line)
            self.display.line(f"warning: {line}")
        return self.plan

    def _from_checkpoint(self, source: Source, number: int, seconds: float) -> None:
        name = Path(source.path).name or source.path
        longest = source.length
        source = self._affordable(source, seconds)
        reason = (
            f"the 95th percentile of the training texts, at most {MAX_LENGTH}"
            if source.length == longest
            else f"because {longest} would leave no time to train"
        )
        self.display.line(
            f"{name}: maximum length {source.length} tokens, {reason}; {source.texts_per_second:.0f} texts/s"
        )
        if source.tokens_per_word > _MANY_TOKENS:
            self.display.line(
                f"warning: {name} splits a word into {source.tokens_per_word:.1f} tokens on average; it was probably "
                "trained on another language or domain"
            )
        started = time.monotonic()
        rate = source.texts_per_second

        def fit() -> TextModel:
            nonlocal rate
            model, rate = fit_frozen(source, self.inspection)
            return model

        frozen, tuned = self._frozen(source), self._finetuning(source, _MIN_EXAMPLES)
        epoch = self._finetuning(source, len(self.inspection.train))
        if self._is_finished(f"frozen-{number}") or frozen + (epoch if tuned <= seconds else 0.0) <= seconds:
            self._rung(f"frozen-{number}", f"frozen {name} with a linear classifier", self._embedding(source), fit)
            seconds -= self.evaluation(source)
        elif tuned <= seconds:
            self._skip(f"frozen {name}: would take {formats.duration(frozen)} from fine-tuning; give more --time")
        else:
            least = formats.duration(frozen)
            self._skip(f"frozen {name}: takes {least}, and {_left(seconds)} is left; give more --time")
        source = replace(source, texts_per_second=rate)  # rate on all texts; the first measurement was on few
        seconds -= time.monotonic() - started
        tuned = self._finetuning(source, _MIN_EXAMPLES)
        if seconds < tuned and not self._is_finished(f"finetuned-{number}"):
            least = formats.duration(tuned)
            self._skip(f"fine-tuned {name}: takes at least {least}, and {_left(seconds)} is left; give more --time")
            return
        seconds -= self.evaluation(source)
        run = f"finetuned-{number}"
        self._rung(run, f"fine-tuned {name}", seconds, lambda: self._finetune(source, run, 0.85 * seconds))

    def _finetune(self, source: Source, name: str, seconds: float, *, own: bool = False) -> TextModel:
        return finetune_source(
            source,
            self.inspection,
            write_parts(self.inspection, self.folder / "data"),
            self._run(name),
            own=own,
            seconds=seconds,
            memory=self.settings.memory,
            display=self.display,
        )

    def _embedding(self, source: Source) -> float:
        """Seconds to encode the training and validation examples, and to fit the linear layer."""
        count = len(self.inspection.train) + len(self.inspection.validation)
        return 1.3 * count / source.texts_per_second + layer_seconds(source, self.inspection)

    def _frozen(self, source: Source) -> float:
        """Seconds to train and evaluate a frozen encoder."""
        return self._embedding(source) + self.evaluation(source)

    def _finetuning(self, source: Source, examples: int) -> float:
        """Seconds to fine-tune on ``examples``, at most one epoch, and to evaluate the model."""
        seconds = _training_cost() * min(len(self.inspection.train), examples) / source.texts_per_second
        return max(_MIN_NETWORK, seconds) + self.evaluation(source)

    def _affordable(self, source: Source, seconds: float) -> Source:
        """Shorten the inputs until fine-tuning fits into the time, or if it never does, the frozen encoder."""
        sources = [source]
        while self._finetuning(sources[-1], _MIN_EXAMPLES) > seconds and sources[-1].length > MIN_LENGTH:
            sources.append(shorten(sources[-1], self.inspection))
        if self._finetuning(sources[-1], _MIN_EXAMPLES) <= seconds:
            return sources[-1]
        return next((one for one in sources if self._frozen(one) <= seconds), source)

    def _run(self, name: str) -> Path:
        """Run folder of a fine-tuned candidate."""
        return self.folder / "candidates" / name / "run"

    def _student(self, tuned: Sequence[Candidate]) -> None:
        """Distil the best fine-tuned network into one with as many of its layers as the latency allows."""
        limit = self.settings.latency
        assert limit is not None
        seconds = self.left()
        if self.inspection.task != "classification" or not tuned:
            self._skip("student: only fine-tuned classifiers with one label per text can be distilled")
            return
        teacher = max(tuned, key=lambda one: score(one.validation, self.metric))
        if seconds < _MIN_NETWORK and not self._is_finished("student"):
            self._skip(f"student of {teacher.title}: {_left(seconds)} is left; give more --time")
            return
        self._rung(
            "student",
            f"student of {teacher.title}",
            seconds,
            lambda: distil_student(
                self._run(teacher.name),
                limit / teacher.latency,
                self._run("student"),
                seconds=0.85 * seconds,
                memory=self.settings.memory,
                display=self.display,
            ),
        )

    def _for_networks(self) -> float:
        """Seconds for networks; with a latency limit, part of the time is reserved for a student."""
        return self.left() * (1.0 if self.settings.latency is None else _TEACHER_SHARE)

    def _own_network(self, seconds: float) -> None:
        characters = sum(map(len, self.pretraining_texts()))
        if characters < MIN_CHARACTERS and not self.settings.texts:
            self._skip(
                f"own network: the training texts have {characters:,} characters, and pretraining needs "
                f"{MIN_CHARACTERS:,}; give more text with --texts, or a checkpoint with --from"
            )
            return
        if seconds < 2 * _MIN_NETWORK and not self._is_finished("own"):
            self._skip(
                f"own network: {_left(seconds)} is left, and pretraining with fine-tuning takes at least "
                f"{formats.duration(2 * _MIN_NETWORK)}; give more --time, or a checkpoint with --from"
            )
            return

        def own() -> TextModel:
            started = time.monotonic()
            if self.inspection.unlabelled:
                count = len(self.inspection.unlabelled)
                self.display.line(f"own network: pretraining also reads {quantity(count, 'text')} without a label")
            run, result = pretrain_on(
                texts_to_read(self.settings.texts, self.pretraining_texts(), self.folder / "pretrained"),
                self.folder / "pretrained",
                seconds=_PRETRAINING_SHARE * seconds,
                memory=self.settings.memory,
                display=self.display,
            )
            self.display.line(
                f"own network: {formats.count(result['parameters'])} parameters, pretrained on "
                f"{formats.count(result['tokens'])} tokens"
            )
            source = open_source(run, self.inspection)
            remaining = seconds - (time.monotonic() - started) - self.evaluation(source)
            return self._finetune(source, "own", max(10.0, 0.85 * remaining), own=True)

        self._rung("own", "own network", seconds, own, at_most=True)

    def pretraining_texts(self) -> Iterator[str]:
        """Yield the texts of the training examples, and those of the rows without a label."""
        for example in self.inspection.train:
            yield f"{example.text} {example.second or ''}".strip()
        yield from self.inspection.unlabelled

    def _rung(
        self, name: str, title: str, expected: float, make: Callable[[], TextModel], *, at_most: bool = False
    ) -> None:
        """Train a candidate, or open the one that an earlier call finished."""
        best = self.best()
        beat = best.title if best.validation.get(self.metric) is None else f"{self._value(best)} ({best.title})"
        bound = "at most" if at_most else "about"
        self.display.line(f"{title}: {bound} {formats.duration(expected)}; to beat: {beat}")
        folder = self.folder / "candidates" / name
        described = folder / _DESCRIPTION
        if self._is_finished(name):
            seconds = Clock(**read_object(described)["seconds"])
            model = open_text_model(folder / "model")
        else:
            try:
                with stopwatch() as seconds:
                    model = make()
            except (StepTooLong, NotFinite) as error:  # the other candidates are kept
                self._skip(f"{title}: {error}")
                return
        found = candidate(name, title, model, self.inspection, seconds)
        if found.model is not None and not self._is_finished(name):
            save_text_model(folder / "model", found.model)
            write_text(described, json.dumps({"title": title, "seconds": asdict(seconds)}) + "\n")
        self.candidates.append(found)
        self._show(found)

    def _is_finished(self, name: str) -> bool:
        """True for a candidate of an earlier call, which is kept; a linear model is fitted again in seconds."""
        return name != "linear" and (self.folder / "candidates" / name / _DESCRIPTION).is_file()

    def _show(self, found: Candidate) -> None:
        self.display.line(
            f"{found.title}: {self._value(found)} on {len(self.inspection.validation):,} validation examples, "
            f"{formats.rate(found.latency)} ms a text"
        )

    def _value(self, found: Candidate) -> str:
        value = metric_text(found.validation.get(self.metric), self.inspection.task)
        return f"{formats.metric_title(self.metric)} {value}"

    def _skip(self, reason: str) -> None:
        self.skipped.append(reason)
        self.display.line(f"skipped: {reason}")

    def final(self) -> Candidate:
        """Save the selected model; linear parts are fitted again on training and validation examples together."""
        best = self._selected()
        model = best.model
        assert model is not None
        linear = any(one.kind == "linear" for one in (model, *model.members.values()))
        if linear and self.left() < -_OVERRUN * self.settings.seconds:
            self._skip(
                f"linear model on training and validation examples together: takes about "
                f"{formats.duration(self.refit_seconds())}; give more --time"
            )
        else:
            model = model.refit(self._refit)
        save_text_model(self.folder / "model", model)
        (self.folder / CARD).unlink(missing_ok=True)  # left by a fit that is continued, like hf/
        copy_folder(self._run(best.name) / "hf", self.folder / "hf")
        return replace(best, model=model)

    def _selected(self) -> Candidate:
        """Best model on the validation examples within the latency limit; the fastest if none is within it."""
        models, limit = [one for one in self.candidates if one.model is not None], self.settings.latency or math.inf
        if fast := [one for one in models if one.latency <= limit]:
            best = self.best()
            return best if best.model is not None else max(fast, key=lambda one: score(one.validation, self.metric))
        fastest = min(models, key=lambda one: one.latency)
        line = (
            f"no model predicts a text in --latency {limit:g} ms; selected the fastest, {fastest.title}, with "
            f"{formats.rate(fastest.latency)} ms"
        )
        self.inspection.warnings.append(line)
        self.display.line(f"warning: {line}")
        return fastest

    def _refit(self, linear: LinearTextModel) -> LinearTextModel:
        """Fit the linear model with the settings of its search on training and validation examples together."""
        assert self.linear is not None
        examples = [*self.inspection.train, *self.inspection.validation]
        best, decision = self.linear.candidates[0], linear.decision
        return fit_linear_model(self.inspection, examples, plan=self.plan, settings=best, decision=decision)[0]


def _left(seconds: float) -> str:
    return formats.duration(max(0.0, seconds))


def _training_cost() -> float:
    """Time of training on a text relative to its prediction in float32; measured: 1.6 in bf16, 4.8 in float32."""
    return 2.5 if multiplies_faster_in_bf16() else 5.0
