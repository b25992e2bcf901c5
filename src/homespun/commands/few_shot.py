"""Evaluation of in-context learning: accuracy by number of examples in the prompt, with baselines."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from homespun.baselines import majority, tfidf
from homespun.config import Config, Tree
from homespun.data.labels import Labels, read_labelled_texts
from homespun.errors import UserError, nearest
from homespun.hf.open import open_for_inference
from homespun.inference.few_shot import (
    Prompts,
    PromptTemplate,
    calibrate_scores,
    generate_answers,
    match_answers,
    normalize_by_length,
    score_answers,
)
from homespun.io.json import write_json
from homespun.models.bundle import ModelBundle
from homespun.report.console import SILENT, Display
from homespun.report.document import write_document
from homespun.report.page import in_context_document
from homespun.text.tokenizer import Tokenizer

_CONTENT_FREE = ("N/A", "[MASK]", "")  # Zhao et al. 2021, section 5


class Prompting(Config):
    """Settings of few-shot prompting: template, answers, numbers of examples, scores."""

    template: PromptTemplate = PromptTemplate()
    answers: dict[str, str] = Field(default={}, description="answer word by label; default: the label")
    shots: tuple[int, ...] = Field(default=(0, 1, 4), min_length=1, description="numbers of examples in the prompt")
    repeats: int = Field(default=3, ge=1, description="random draws of examples per number")
    balanced: bool = Field(default=True, description="balance the classes of the examples; false: draw uniformly")
    score: Literal["likelihood", "per_token", "generated"] = Field(
        default="likelihood", description="log-likelihood of the answer, its mean per token, or generated text"
    )
    calibrated: bool = Field(default=False, description="subtract the scores of a prompt without text")
    seed: int = Field(default=0, ge=0, description="seed of test examples and draws")
    limit: int = Field(default=500, ge=1, description="maximum number of test examples")
    text_tokens: int | None = Field(default=None, ge=1, description="truncate texts to this number of tokens")
    batch_size: int = Field(default=16, ge=1, description="texts per batch")

    @field_validator("shots")
    @classmethod
    def _sort_shots(cls, shots: tuple[int, ...]) -> tuple[int, ...]:
        if min(shots) < 0:
            raise ValueError(f"must be at least 0, not {min(shots)}")
        return tuple(sorted(set(shots)))

    @model_validator(mode="after")
    def _check_calibration(self) -> Prompting:
        if self.calibrated and self.score == "generated":
            raise ValueError("calibrated=true needs scores, which score=generated does not have; change one of them")
        return self


@dataclass(frozen=True)
class Labelled:
    """Texts and their class numbers, (texts,)."""

    texts: list[str]
    targets: NDArray[np.int64]

    def take(self, rows: NDArray[np.int64]) -> Labelled:
        """Select rows."""
        return Labelled([self.texts[row] for row in rows], self.targets[rows])


def few_shot(
    run: str,
    data: Sequence[str],
    out: str | Path,
    *,
    text: str | Sequence[str] = "text",
    label: str = "label",
    test: Sequence[str] | None = None,
    encoding: str | None = None,
    columns: Sequence[str] | None = None,
    prompting: Prompting | None = None,
    display: Display = SILENT,
) -> Tree:
    """Evaluate few-shot prompting of a generative model, and write ``in_context.json`` and ``index.html`` into ``out``.

    Within a draw, the examples of a smaller number of shots are a subset of those of a larger number.

    Args:
        run: a generative model, see `homespun.hf.open.open_for_inference`.
        data: labelled files with the examples of the prompts.
        out: output folder.
        text: text column, or several columns, which are joined.
        label: label column.
        test: labelled files with the test examples; default: at most half of the examples of ``data``, which the
            prompts then do not use.
        encoding: character encoding of the files; detected by default.
        columns: column names of a csv without a header.
        prompting: settings of the prompts.
        display: where progress is shown; nowhere by default.

    Returns:
        ``shots``: for each number of examples the means of ``accuracy``, ``macro_f1`` and ``tfidf`` (accuracy of a
        TF-IDF classifier trained on the same examples), and ``draws``, the values of each draw. ``majority`` and
        ``chance``: accuracies of baselines. ``prompt``: an example of a prompt. ``page``: the written page.

    Raises:
        UserError: the model does not generate text, ``data`` has too few examples or not all labels of
            ``prompting.answers`` and ``test``, or a prompt is too long.
    """
    settings = prompting or Prompting()
    stored = open_for_inference(run)
    texts, names = read_labelled_texts(data, text=text, label=label, encoding=encoding, columns=columns)
    labels = Labels.collect(names)
    words = _answer_words(labels, settings.answers)
    labelled = Labelled(_truncate(texts, stored.tokenizer, settings.text_tokens), labels.encode(names))
    random = np.random.default_rng(settings.seed)
    if test is None:
        rows = random.permutation(len(labelled.texts))
        count = min(settings.limit, len(rows) // 2)
        queries, pool = labelled.take(rows[:count]), labelled.take(rows[count:])
    else:
        texts, names = read_labelled_texts(test, text=text, label=label, encoding=encoding, columns=columns)
        test_set = Labelled(_truncate(texts, stored.tokenizer, settings.text_tokens), labels.encode(names))
        queries, pool = test_set.take(random.permutation(len(texts))[: settings.limit]), labelled
    if max(settings.shots) > len(pool.texts):
        raise UserError(
            f"--shots {max(settings.shots)} exceeds the {len(pool.texts)} examples for prompts; lower it or give more"
        )
    evaluation = _Evaluation(stored, settings, labels, words, pool, queries)
    measured, prompt = evaluation.run(display)
    result = {
        "kind": "in_context",
        "run": run,
        "labels": list(labels.names),
        "answers": dict(zip(labels.names, words, strict=True)),
        "rows": len(queries.texts),
        "settings": settings.model_dump(mode="json"),
        "majority": majority(pool.targets, queries.targets, labels).metrics["accuracy"],
        "chance": 1 / len(labels),
        "shots": measured,
        "prompt": prompt,
    }
    folder = Path(out)
    page = write_document(in_context_document(result), folder)
    write_json(folder / "in_context.json", result)
    return result | {"page": str(page)}


@dataclass(frozen=True)
class _Evaluation:
    """Model, settings, classes and examples of an evaluation."""

    stored: ModelBundle
    settings: Prompting
    labels: Labels
    words: list[str]  # answers by class number
    pool: Labelled  # examples for the prompts
    queries: Labelled  # test examples

    def run(self, display: Display) -> tuple[list[Tree], str]:
        """Return the metrics of each number of shots, and a prompt with the largest."""
        draws_of = {shots: self.settings.repeats if shots else 1 for shots in self.settings.shots}
        task = display.task("evaluating", total=float(sum(draws_of.values())))
        measured: list[Tree] = []
        done, prompt = itertools.count(1), ""
        for shots, repeats in draws_of.items():
            draws = []
            for draw in range(repeats):
                metrics, prompt = self._measure(shots, draw)
                draws.append(metrics)
                task.update(next(done))
            means = {name: float(np.mean([found[name] for found in draws])) for name in draws[0]}
            measured.append({"shots": shots, **means, "draws": draws})
        return measured, prompt

    def _measure(self, shots: int, draw: int) -> tuple[dict[str, float], str]:
        """Return the metrics with drawn examples, and the first prompt."""
        settings, queries, labels = self.settings, self.queries, self.labels
        rows = _draw_examples(self.pool.targets, shots, (settings.seed, draw), balanced=settings.balanced)
        examples = self.pool.take(rows)
        answered = [(t, self.words[target]) for t, target in zip(examples.texts, examples.targets, strict=True)]
        predicted = self._predict(answered)
        metrics = {
            "accuracy": float((queries.targets == predicted).mean()),
            "macro_f1": _macro_f1(labels, queries.targets, predicted),
        }
        if shots:
            learned = tfidf(examples.texts, examples.targets, queries.texts, queries.targets, labels)
            metrics["tfidf"] = learned.metrics["accuracy"]
        return metrics, settings.template.before(answered) + settings.template.question(queries.texts[0])

    def _predict(self, examples: Sequence[tuple[str, str]]) -> NDArray[np.int64]:
        """Class numbers, (texts,); -1 if the generated text starts with no answer."""
        settings, prompts = self.settings, self._prompts(examples, self.queries.texts)
        self._check_length(prompts, examples)
        model, tokenizer = self.stored.model, self.stored.tokenizer
        if settings.score == "generated":
            texts = generate_answers(model, prompts, tokenizer, batch_size=settings.batch_size)
            return match_answers(texts, self.words)

        def score(prompts: Prompts) -> NDArray[np.float64]:
            scores = score_answers(model, prompts, tokenizer, batch_size=settings.batch_size)
            return normalize_by_length(scores, prompts.answers) if settings.score == "per_token" else scores

        scores = score(prompts)
        if settings.calibrated:
            scores = calibrate_scores(scores, score(self._prompts(examples, _CONTENT_FREE)))
        return scores.argmax(1)

    def _prompts(self, examples: Sequence[tuple[str, str]], texts: Sequence[str]) -> Prompts:
        template, tokenizer = self.settings.template, self.stored.tokenizer
        return Prompts.of(template, tokenizer, examples=examples, texts=texts, answers=self.words)

    def _check_length(self, prompts: Prompts, examples: Sequence[tuple[str, str]]) -> None:
        """Raise `UserError` if a prompt exceeds the length of the model."""
        tokenizer, backbone = self.stored.tokenizer, self.stored.config.backbone
        limit, length = backbone.max_position_embeddings, prompts.max_length(seq2seq=backbone.has_decoder)
        if length <= limit:
            return
        prefix, _ = tokenizer.template

        def longest(count: int) -> int:
            (before,) = tokenizer.encode_batch([self.settings.template.before(examples[:count])])
            return length - len(prompts.before) + len(prefix) + len(before)

        fit = next((count for count in range(len(examples), 0, -1) if longest(count) <= limit), 0)
        without = longest(0)
        hint = f"{fit} examples fit" if without <= limit else f"it has {without} tokens without examples"
        raise UserError(
            f"the longest prompt with {len(examples)} examples has {length} tokens, which exceeds the model's "
            f"max_position_embeddings={limit}; {hint}: lower --shots, or truncate the texts with --text-tokens"
        )


def _answer_words(labels: Labels, given: Mapping[str, str]) -> list[str]:
    for name in given:
        if name not in labels.names:
            raise UserError(f"--answers has no label {name!r}{nearest(name, labels.names)}")
    words = [given.get(name, name) for name in labels.names]
    if empty := [name for name, word in zip(labels.names, words, strict=True) if not word.strip()]:
        raise UserError(f"the answer of label {empty[0]!r} is empty; set it with --answers LABEL=WORD")
    if len(set(words)) < len(words):
        twice = next(word for word in words if words.count(word) > 1)
        raise UserError(f"several labels have the answer {twice!r}; set different ones with --answers LABEL=WORD")
    return words


def _truncate(texts: Sequence[str], tokenizer: Tokenizer, tokens: int | None) -> list[str]:
    if tokens is None:
        return list(texts)
    ids = tokenizer.encode_batch(texts)
    return [t if len(i) <= tokens else tokenizer.decode(i[:tokens]) for t, i in zip(texts, ids, strict=True)]


def _draw_examples(
    targets: NDArray[np.int64], shots: int, seed: tuple[int, int], *, balanced: bool
) -> NDArray[np.int64]:
    """Draw rows of examples, (shots,), in random order. The rows of one seed are nested over ``shots``."""
    random = np.random.default_rng(seed)
    order = random.permutation(len(targets))
    if balanced:  # the first example of each class, then the second of each, with classes in random order
        seen: dict[int, int] = {}
        classes = random.permutation(int(targets.max()) + 1)
        ranks = []
        for row in order:
            target = int(targets[row])
            ranks.append((seen.get(target, 0), int(classes[target])))
            seen[target] = ranks[-1][0] + 1
        order = order[sorted(range(len(order)), key=ranks.__getitem__)]
    return random.permutation(order[:shots])


def _macro_f1(labels: Labels, truth: NDArray[np.int64], predicted: NDArray[np.int64]) -> float:
    from sklearn.metrics import f1_score

    classes = list(range(len(labels)))
    return float(f1_score(truth, predicted, labels=classes, average="macro", zero_division=0.0))
