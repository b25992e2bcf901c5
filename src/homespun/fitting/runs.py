"""Fits whose candidates are run folders: language models, token classification, text-to-text."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import cast

from homespun.commands.finetune import finetune
from homespun.commands.predict import evaluate
from homespun.commands.trials import copy_model
from homespun.config import Tree
from homespun.data.reading import Reading, reading
from homespun.data.source_target import SourceTargetPair
from homespun.data.token_labels import TaggedWords
from homespun.errors import NotFinite, StepTooLong, UserError
from homespun.fitting.candidates import Clock, score, stopwatch
from homespun.fitting.card import write_card
from homespun.fitting.linear_tagger import TaggerFit, TaggerPlan, fit_tagger, plan_tagger
from homespun.fitting.networks import (
    MAX_LENGTH,
    MIN_CHARACTERS,
    common_length,
    open_recipe,
    pretrain_on,
    removed_if_too_slow,
    texts_to_read,
)
from homespun.fitting.page import write_page
from homespun.fitting.results import (
    FitSettings,
    candidate_row,
    never_predicted,
    next_steps,
    not_better,
    numbers_not_in_sources,
    open_folder,
    write_results,
)
from homespun.fitting.run_tasks import Example, RunTask, divide, texts_of_example, write_examples
from homespun.fitting.summarizer import SummarizerFit, SummarizerPlan, fit_summarizer, plan_summarizer
from homespun.hf.open import open_model
from homespun.io.atomic import write_text
from homespun.io.json import read_object
from homespun.metrics.classification import Metrics, scalars
from homespun.models.bundle import ModelBundle
from homespun.report import formats
from homespun.report.console import Display
from homespun.report.formats import metric_text
from homespun.results import VERSION
from homespun.tasks.seq2seq_data import TextPairsData
from homespun.tasks.taggers import TaggedData
from homespun.text.input_files import digest_files

_PRETRAINING_SHARE, _TRAINING_SHARE = 0.5, 0.85  # shares of a model's time, and of the rest for its last training
_LINEAR_SHARE, _LINEAR_SHARE_ALONE = 0.25, 0.75  # shares of the time of a linear tagger, with and without networks
_MIN_SECONDS = 60.0
_DESCRIPTION = "candidate.json"
_LATENCY = "--latency applies to classification and regression, and was ignored"

_Train = Callable[[], TaggerFit | SummarizerFit]


def fit_runs(
    task: RunTask, folder: Path, settings: FitSettings, *, resume: bool, display: Display, start: float
) -> Tree:
    """Train and select a model of a task whose candidates are runs; see `homespun.fitting.fit.fit`.

    The candidates are the checkpoints of ``settings.start_from``, or without any a model pretrained on the text. The
    first candidate for tagged words is a linear tagger, for text to text an extractive summarizer; any time limit
    allows them. Validation examples select the candidate.

    Raises:
        UserError: too little text or too few examples, or a checkpoint of another kind.
    """
    if settings.seconds < _MIN_SECONDS and task.name == "language-model":
        raise UserError(f"a network needs {formats.duration(_MIN_SECONDS)} at least; give more --time")
    fit = _RunFit(task, folder, settings, display, start)
    fit.check()
    if task.name == "language-model":
        read = reading(
            [*settings.train, *settings.texts],
            text_fields=task.texts,
            encoding=settings.encoding,
            columns=settings.columns,
            duplicates="near",
        )
        _check_amount(document.text for document in read.documents())
        open_folder(folder, settings, [digest_files(settings.train)], resume=resume)
        result = fit.language_model(read)
    else:
        parts = divide(task, settings, fit.decisions)
        open_folder(folder, settings, *parts.values(), resume=resume)
        result = fit.finetuned(parts)
    result["next"] = next_steps(result, settings)
    result["seconds"] = time.monotonic() - fit.start
    write_page(result, folder)
    write_card(result, folder)
    write_results(folder, result)
    return result


@dataclass
class _RunFit:
    task: RunTask
    folder: Path
    settings: FitSettings
    display: Display
    start: float

    def __post_init__(self) -> None:
        self.decisions = [f"task: {self.task.name.replace('-', ' ')} ({self.task.decision})"]
        self.skipped: list[str] = []
        self.reserved = 0.0  # seconds
        self.stored = {path: open_model(path, head=None) for path in self.settings.start_from}
        for finished in (self.folder / "candidates").glob(f"*/{_DESCRIPTION}"):
            self.start -= float(read_object(finished)["wall"])  # time that earlier calls used counts

    def check(self) -> None:
        """Raise `UserError` for checkpoints that cannot do the task."""
        language_model = self.task.name == "language-model"
        if language_model and len(self.stored) > 1:
            raise UserError("losses of several checkpoints do not compare; give --from once")
        for path, stored in self.stored.items():
            kind = _kind(stored)
            if self.task.name == "text-to-text" and kind == "encoder":
                raise UserError(f"{path} is an encoder; text to text needs an encoder-decoder or a decoder")
            if self.task.name != "text-to-text" and kind == "encoder-decoder":
                raise UserError(f"{path} is an encoder-decoder; {self.task.name} needs an encoder or a decoder")

    def check_amount(self, training: Sequence[Example]) -> None:
        """Raise `UserError` if an own network would have too little text to pretrain on."""
        if not self.settings.start_from and not self.settings.texts:
            _check_amount(text for example in training for text in texts_of_example(example))

    def left(self) -> float:
        """Seconds that remain for networks."""
        return self.settings.seconds - (time.monotonic() - self.start) - self.reserved

    def pretrain(self, read: Reading, recipe: str, start_from: str | None, seconds: float) -> tuple[str, Tree]:
        """Pretrain in ``pretrained/``; see `homespun.fitting.networks.pretrain_on`."""
        return pretrain_on(
            read,
            self.folder / "pretrained",
            recipe=recipe,
            start_from=start_from,
            seconds=seconds,
            memory=self.settings.memory,
            display=self.display,
        )

    def language_model(self, read: Reading) -> Tree:
        """Pretrain a language model, measured on held-out documents."""
        for line in self.decisions:
            self.display.line(line)
        path = next(iter(self.stored), None)
        masked = path is not None and _kind(self.stored[path]) == "encoder"
        recipe = "spun-encoder" if masked else "spun-decoder"
        with stopwatch() as spent:
            run, trained = self.pretrain(read, recipe, path, _TRAINING_SHARE * self.left())
        title = "own language model" if path is None else f"{Path(path).name}, trained further"
        unigram = next(iter(trained["unigram_baseline"].values()))
        baseline, losses = _losses(unigram), _losses(trained["validation"]["loss"])
        row = candidate_row("model", title, trained["parameters"], spent, validation={}, test=losses)
        rows = [candidate_row("unigram", "unigram baseline", 0, Clock(), validation={}, test=baseline), row]
        counts = {"documents": trained["corpus"]["documents"], "tokens": trained["corpus"]["tokens"]}
        copy_model(self.folder, Path(run))
        found = self._result("loss", row, losses, rows, counts) | {"masked": masked}
        if losses["loss"] >= baseline["loss"]:
            found["warnings"].append("the model is not better than the unigram baseline; give more --time")
        return found

    def finetuned(self, parts: Mapping[str, Sequence[Example]]) -> Tree:
        """Train the candidates, and select one on the validation examples."""
        counts = {name: len(part) for name, part in parts.items()}
        held_out = "" if self.settings.test else " (held out)"
        shown = ", ".join(f"{name} {counts[name]:,}" for name in ("train", "validation", "test"))
        self.decisions.append(f"{shown} examples{held_out}")
        for line in self.decisions:
            self.display.line(line)
        linear, row = self._linear(parts)
        rows, runs, tests = [row], dict[str, Path](), dict[str, Metrics]()
        self._show(row)
        if self._may_train_network(parts):
            for row, run, result in self._networks(parts):
                rows.append(row)
                self._show(row)
                runs[row["name"]], tests[row["name"]] = run, result["test"]
        metric = _main_metric(rows[0])
        selected = max(rows, key=lambda row: score(row["validation"], metric))
        if selected["name"] in runs:
            copy_model(self.folder, runs[selected["name"]])
        else:
            linear = linear.with_validation()
            linear.model.save(self.folder / "model")
            shutil.rmtree(self.folder / "hf", ignore_errors=True)  # left by a fit that is continued
        tests[linear.name] = linear.measure("test")
        for row in rows:
            row["test"] = scalars(tests[row["name"]])
        measured = [
            candidate_row(name, name.replace("-", " "), 0, Clock(), validation={}, test=scalars(metrics))
            for name, metrics in linear.baselines().items()
        ]
        found = self._result(metric, selected, tests[selected["name"]], [*measured, *rows], counts)
        if linear.model.labels is not None:
            found["labels"] = list(linear.model.labels.names)
        if measured:
            best = max(measured, key=lambda row: score(row["test"], metric))
            compared = {"test": (selected["test"], best["test"])}
            found["warnings"] += not_better(compared, best["title"], metric, self.task.name)
        found["warnings"] += numbers_not_in_sources(selected["test"])
        return found

    def _show(self, row: Tree) -> None:
        metric = _main_metric(row)
        value = metric_text(row["validation"][metric], self.task.name)
        self.display.line(f"{row['title']}: {formats.metric_title(metric)} {value} on the validation examples")

    def _linear(self, parts: Mapping[str, Sequence[Example]]) -> tuple[TaggerFit | SummarizerFit, Tree]:
        """Fit the candidate that is not a network; a resumed fit trains it again."""
        share = _LINEAR_SHARE if self.settings.seconds >= _MIN_SECONDS else _LINEAR_SHARE_ALONE
        prepare = self._tagger if self.task.name == "token-classification" else self._summarizer
        plan, train = prepare(parts, share * self.settings.seconds)
        title = plan.title
        self.display.line(f"{title}: about {formats.duration(plan.seconds)}, with a last training on all examples")
        if plan.share < 1:
            self.display.line(f"{title}: learns from {plan.share:.0%} of the examples; give more --time")
        with stopwatch() as spent:
            found = train()
        found.model.save(self.folder / "candidates" / found.name / "model")
        self.reserved = spent.wall  # wall time of the last training
        validation = scalars(found.measure("validation"))
        return found, candidate_row(found.name, title, found.model.parameters, spent, validation=validation)

    def _tagger(self, parts: Mapping[str, Sequence[Example]], seconds: float) -> tuple[TaggerPlan, _Train]:
        sentences = cast(Mapping[str, list[TaggedWords]], parts)
        plan = plan_tagger(sentences["train"], seconds)
        data = TaggedData(words=self.task.texts[0], tags=self.task.target)
        return plan, partial(fit_tagger, data, sentences, plan, seed=self.settings.seed)

    def _summarizer(self, parts: Mapping[str, Sequence[Example]], seconds: float) -> tuple[SummarizerPlan, _Train]:
        pairs = cast(Mapping[str, list[SourceTargetPair]], parts)
        plan = plan_summarizer(pairs["train"], seconds)
        data = TextPairsData(source=list(self.task.texts), target=self.task.target)
        return plan, partial(fit_summarizer, data, pairs, plan)

    def _may_train_network(self, parts: Mapping[str, Sequence[Example]]) -> bool:
        """Return False and print the reason if time or text do not suffice for a network."""
        reason = f"a network needs {formats.duration(_MIN_SECONDS)} at least; give more --time"
        try:
            if self.settings.seconds >= _MIN_SECONDS:
                self.check_amount(parts["train"])
                return True
        except UserError as error:
            reason = f"own network: {error}"
        self._skip(reason)
        return False

    def _skip(self, reason: str) -> None:
        self.skipped.append(reason)
        self.display.line(f"skipped: {reason}")

    def _networks(self, parts: Mapping[str, Sequence[Example]]) -> Iterator[tuple[Tree, Path, Tree]]:
        """Fine-tune each checkpoint, or a model pretrained on the text; yield its row, run and result."""
        files = write_examples(parts, self.folder / "data")
        paths: list[str | None] = list(self.stored) or [None]
        for number, path in enumerate(paths, start=1):
            seconds = self.left() / (len(paths) - number + 1)
            name = "own" if path is None else f"finetuned-{number}"
            title = "own network" if path is None else f"fine-tuned {Path(path).name}"
            self.display.line(f"{title}: about {formats.duration(seconds)}")
            try:
                run, result, spent = self._candidate(name, path, parts, files, seconds)
            except (StepTooLong, NotFinite) as error:
                self._skip(f"{title}: {error}")
                continue
            validation = scalars(evaluate(str(run), [str(files["validation"])]))
            yield candidate_row(name, title, result["parameters"], spent, validation=validation), run, result

    def _candidate(
        self,
        name: str,
        path: str | None,
        parts: Mapping[str, Sequence[Example]],
        files: Mapping[str, Path],
        seconds: float,
    ) -> tuple[Path, Tree, Clock]:
        """Return the run of a candidate, its result, and its time."""
        folder = self.folder / "candidates" / name
        run, described = folder / "run", folder / _DESCRIPTION
        if not described.is_file():
            started = time.monotonic()
            with stopwatch() as spent:
                if path is None:
                    recipe = "spun-encoder" if self.task.name == "token-classification" else "spun-encoder-decoder"
                    texts = (text for example in parts["train"] for text in texts_of_example(example))
                    read = texts_to_read(self.settings.texts, texts, self.folder / "pretrained")
                    path, _ = self.pretrain(read, recipe, None, _PRETRAINING_SHARE * seconds)
                    own, stored = True, open_model(path, head=None)
                else:
                    own, stored = False, self.stored[path]
                left = max(20.0, _TRAINING_SHARE * (seconds - (time.monotonic() - started)))
                if not (run / "result.json").is_file():
                    base = "tag" if self.task.name == "token-classification" else "summarize"
                    found, resume = open_recipe(run, base, self._finetuning(stored, parts, files, left, own=own))
                    with removed_if_too_slow(run):
                        finetune(found, run, start_from=path, resume=resume, display=self.display)
            write_text(described, json.dumps(asdict(spent)) + "\n")
        return run, read_object(run / "result.json"), Clock(**read_object(described))

    def _finetuning(
        self,
        stored: ModelBundle,
        parts: Mapping[str, Sequence[Example]],
        files: Mapping[str, Path],
        seconds: float,
        *,
        own: bool,
    ) -> list[str]:
        """Settings of the fine-tuning."""
        settings: dict[str, object] = {f"data.{part}": str(file) for part, file in files.items()}
        settings |= self.task.example_columns | {"train.budget.time": round(seconds), "train.validate_every": 0.25}
        if self.settings.memory is not None:
            settings["train.budget.memory"] = self.settings.memory
        if own:
            settings["train.optimizer.learning_rate"] = 1e-3
        backbone, sample = stored.config.backbone, parts["train"][:: max(1, len(parts["train"]) // 2_000)]
        sources, *targets = zip(*map(texts_of_example, sample), strict=True)
        if self.task.name == "token-classification":
            limit = min(MAX_LENGTH, backbone.max_position_embeddings)
            settings |= {"data.max_length": _length(stored, sources, 64, limit), "train.budget.epochs": 8 if own else 4}
        else:
            source_limit, target_limit = 512, 128
            if backbone.has_decoder and not backbone.causal:
                source_limit = min(source_limit, backbone.encoder.max_position_embeddings)
                target_limit = min(target_limit, backbone.decoder.max_position_embeddings)
            else:
                target_limit = min(target_limit, backbone.max_position_embeddings // 2)
                source_limit = min(source_limit, backbone.max_position_embeddings - target_limit)
            settings |= {
                "data.max_source_length": _length(stored, sources, 32, source_limit),
                "data.max_target_length": _length(stored, targets[0], 16, target_limit),
                "train.budget.epochs": 10,
            }
        return [f"{key}={json.dumps(value)}" for key, value in settings.items()]

    def _result(
        self, metric: str, selected: Tree, test: Mapping[str, object], rows: Sequence[Tree], counts: Mapping[str, int]
    ) -> Tree:
        """Content of ``result.json``, as of `homespun.fitting.results.summarise` where it applies."""
        return {
            "version": VERSION,
            "kind": "fit",
            "task": self.task.name,
            "pairs": False,
            "metric": metric,
            "selected": selected["name"],
            "title": selected["title"],
            "test": dict(test),
            "interval": None,
            "labels": None,
            "examples": dict(counts),
            "test_from": "files" if self.settings.test else "split",
            "decisions": self.decisions,
            "warnings": [_LATENCY] if self.settings.latency is not None else [],
            "skipped": self.skipped,
            "candidates": list(rows),
            "next_best": None,
            "never_predicted": never_predicted(dict(test)),
            "errors": [],
            "learning_curve": [],
            "cost": {"parameters": selected["parameters"]},
            "settings": self.settings.model_dump(mode="json"),
        }


def _main_metric(row: Tree) -> str:
    return next(one for one in ("f1", "rougeL", "accuracy") if one in row["validation"])


def _kind(stored: ModelBundle) -> str:
    backbone = stored.config.backbone
    if backbone.causal:
        return "decoder"
    return "encoder-decoder" if backbone.has_decoder else "encoder"


def _check_amount(texts: Iterable[str]) -> None:
    """Raise `UserError` for too little text to pretrain on, or for one text, of which none can be held out."""
    characters = 0
    for number, text in enumerate(texts, start=1):
        characters += len(text)
        if characters >= MIN_CHARACTERS and number > 1:
            return
    if characters >= MIN_CHARACTERS:
        raise UserError(
            "the files hold one text, and some texts are held out; divide it into several .txt files, or name it .tsv "
            "and give --columns text, so that each line is a text"
        )
    raise UserError(
        f"the texts have {characters:,} characters, and pretraining needs {MIN_CHARACTERS:,}; give more text with "
        f"--texts, or a checkpoint with --from"
    )


def _length(stored: ModelBundle, texts: Sequence[str], least: int, most: int) -> int:
    return common_length([len(ids) + 2 for ids in stored.tokenizer.encode_batch(list(texts))], least, most)


def _losses(loss: float) -> Tree:
    return {"loss": loss, "perplexity": math.exp(min(loss, 50.0))}
