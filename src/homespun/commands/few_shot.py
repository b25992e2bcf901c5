"""Evaluation of in-context learning: accuracy by number of examples in the prompt, with baselines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from homespun.baselines import majority, tfidf
from homespun.config import Config
from homespun.data.labels import Labels, read_labelled_texts
from homespun.errors import UserError, nearest
from homespun.hf.open import open_model
from homespun.inference.few_shot import (
    Prompts,
    PromptTemplate,
    calibrate_scores,
    generate_answers,
    match_answers,
    normalize_by_length,
    score_answers,
)
from homespun.io.atomic import write_text
from homespun.models.config import BackboneConfig
from homespun.models.model import Model
from homespun.report.console import Display
from homespun.report.document import write_document
from homespun.report.page import in_context_document
from homespun.text.tokenizer import Tokenizer

_CONTENT_FREE = ("N/A", "[MASK]", "")  # Zhao et al. 2021, section 5


class Prompting(Config):
    """Settings of the prompts and of the number of draws."""

    template: PromptTemplate = PromptTemplate()
    answers: dict[str, str] = Field(default={}, description="word for a label; default: the label")
    shots: tuple[int, ...] = Field(default=(0, 1, 4), min_length=1, description="examples in the prompt")
    repeats: int = Field(default=3, ge=1, description="times that examples are drawn, of each number")
    balanced: bool = Field(default=True, description="as many examples of each class as can be; false: as they come")
    score: Literal["likelihood", "per_token", "generated"] = Field(
        default="likelihood", description="log-likelihood of the answer, its mean per token, or generated text"
    )
    calibrated: bool = Field(default=False, description="less what the prompt says for each answer without a text")
    seed: int = Field(default=0, ge=0, description="of the test rows and of the examples")
    limit: int = Field(default=500, ge=1, description="at most so many texts are asked about")
    text_tokens: int | None = Field(default=None, ge=1, description="so many tokens of each text are kept")
    batch_size: int = Field(default=16, ge=1, description="texts at a time")

    @field_validator("shots")
    @classmethod
    def _in_order(cls, shots: tuple[int, ...]) -> tuple[int, ...]:
        if min(shots) < 0:
            raise ValueError(f"numbers of examples are 0 or more, unlike {min(shots)}")
        return tuple(sorted(set(shots)))

    @model_validator(mode="after")
    def _goes_together(self) -> Prompting:
        if self.calibrated and self.score == "generated":
            raise ValueError("what is generated has no score to calibrate; leave one of the two out")
        return self


@dataclass(frozen=True)
class Labelled:
    """Texts and their class numbers."""

    texts: list[str]
    targets: NDArray[np.int64]

    def take(self, rows: NDArray[np.int64]) -> Labelled:
        """Some of them."""
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
    display: Display | None = None,
) -> dict[str, Any]:
    """Ask a model of texts whose labels are known; into ``out`` go ``in_context.json`` and the page ``index.html``.

    The examples of one draw are nested: those of fewer shots are among those of more. Without ``test`` the texts asked
    about are drawn from ``data``, at most half of them, and the examples from the others.

    Returns:
        ``shots``: for each number of examples ``accuracy``, ``macro_f1`` and the accuracy of ``tfidf`` learned from the
        same examples, as means, with ``draws`` of each; ``majority`` and ``chance``; ``prompt``, one that was asked.

    Raises:
        UserError: a model that does not write, labels that there are none of, too few examples, or a prompt longer
            than the model, saying how many examples fit.
    """
    asking = prompting or Prompting()
    display = display or Display(json=True)
    stored = open_model(run)
    texts, names = read_labelled_texts(data, text=text, label=label, encoding=encoding, columns=columns)
    labels = Labels.collect(names)
    words = _words(labels, asking.answers)
    known = Labelled(_cut(texts, stored.tokenizer, asking.text_tokens), labels.encode(names))
    random = np.random.default_rng(asking.seed)
    if test is None:
        rows = random.permutation(len(known.texts))
        count = min(asking.limit, len(rows) // 2)
        asked, pool = known.take(rows[:count]), known.take(rows[count:])
    else:
        texts, names = read_labelled_texts(test, text=text, label=label, encoding=encoding, columns=columns)
        every = Labelled(_cut(texts, stored.tokenizer, asking.text_tokens), labels.encode(names))
        asked, pool = every.take(random.permutation(len(texts))[: asking.limit]), known
    if max(asking.shots) > len(pool.texts):
        raise UserError(f"{max(asking.shots)} examples of {len(pool.texts)} texts; give more, or fewer shots")

    task = display.task("asking", total=float(sum(asking.repeats if shots else 1 for shots in asking.shots)))
    measured: list[dict[str, Any]] = []
    shown = ""
    for shots in asking.shots:
        draws = []
        for draw in range(asking.repeats if shots else 1):
            examples = pool.take(_examples(pool.targets, shots, (asking.seed, draw), balanced=asking.balanced))
            answered = [(t, words[target]) for t, target in zip(examples.texts, examples.targets, strict=True)]
            prompts = _fitting(asking, stored.tokenizer, answered, asked.texts, words, stored.config.backbone)
            predicted = _predict(stored.model, prompts, answered, words, stored.tokenizer, asking)
            draws.append(_measure(labels, asked.targets, predicted))
            if shots:
                learned = tfidf(examples.texts, examples.targets, asked.texts, asked.targets, labels)
                draws[-1]["tfidf"] = learned.metrics["accuracy"]
            shown = asking.template.before(answered) + asking.template.question(asked.texts[0])
            task.update(float(sum(len(found["draws"]) for found in measured) + len(draws)))
        means = {name: float(np.mean([found[name] for found in draws])) for name in draws[0]}
        measured.append({"shots": shots, **means, "draws": draws})
    result = {
        "kind": "in_context",
        "run": run,
        "labels": list(labels.names),
        "answers": dict(zip(labels.names, words, strict=True)),
        "rows": len(asked.texts),
        "settings": asking.model_dump(mode="json"),
        "majority": majority(pool.targets, asked.targets, labels).metrics["accuracy"],
        "chance": 1 / len(labels),
        "shots": measured,
        "prompt": shown,
    }
    folder = Path(out)
    page = write_document(in_context_document(result), folder)
    write_text(folder / "in_context.json", json.dumps(result, indent=1, ensure_ascii=False))
    return result | {"page": str(page)}


def _words(labels: Labels, given: Mapping[str, str]) -> list[str]:
    for name in given:
        if name not in labels.names:
            raise UserError(f"--answers has no label {name!r}{nearest(name, labels.names)}")
    words = [given.get(name, name) for name in labels.names]
    if empty := [name for name, word in zip(labels.names, words, strict=True) if not word.strip()]:
        raise UserError(f"the answer of label {empty[0]!r} is empty; name a word for it with --answers LABEL=WORD")
    if len(set(words)) < len(words):
        twice = next(word for word in words if words.count(word) > 1)
        raise UserError(f"two labels have the answer {twice!r}; give each its own with --answers LABEL=WORD")
    return words


def _cut(texts: Sequence[str], tokenizer: Tokenizer, tokens: int | None) -> list[str]:
    if tokens is None:
        return list(texts)
    ids = tokenizer.encode_batch(texts)
    return [t if len(i) <= tokens else tokenizer.decode(i[:tokens]) for t, i in zip(texts, ids, strict=True)]


def _examples(targets: NDArray[np.int64], shots: int, seed: tuple[int, int], *, balanced: bool) -> NDArray[np.int64]:
    """(shots,) rows: the first of an order that a draw has for all numbers of examples, themselves in any order."""
    random = np.random.default_rng(seed)
    order = random.permutation(len(targets))
    if balanced:  # the first of each class, then the second of each, classes in an order of chance
        seen: dict[int, int] = {}
        classes = random.permutation(int(targets.max()) + 1)
        ranks = []
        for row in order:
            target = int(targets[row])
            ranks.append((seen.get(target, 0), int(classes[target])))
            seen[target] = ranks[-1][0] + 1
        order = order[sorted(range(len(order)), key=ranks.__getitem__)]
    chosen: NDArray[np.int64] = random.permutation(order[:shots])
    return chosen


def _fitting(
    asking: Prompting,
    tokenizer: Tokenizer,
    examples: Sequence[tuple[str, str]],
    texts: Sequence[str],
    words: Sequence[str],
    backbone: BackboneConfig,
) -> Prompts:
    prompts = Prompts.of(asking.template, tokenizer, examples=examples, texts=texts, answers=words)
    limit = backbone.max_position_embeddings
    seq2seq = backbone.has_decoder
    if prompts.max_length(seq2seq=seq2seq) <= limit:
        return prompts
    fit = len(examples)

    def longest(examples: Sequence[tuple[str, str]]) -> int:
        (before,) = tokenizer.encode_batch([asking.template.before(examples)])
        begins, _ = tokenizer.template
        return prompts.max_length(seq2seq=seq2seq) - len(prompts.before) + len(begins) + len(before)

    while fit and longest(examples[:fit]) > limit:
        fit -= 1
    without = longest([])
    what = f"{fit} of them fit" if without <= limit else f"without any it has {without}"
    raise UserError(
        f"the longest prompt with {len(examples)} examples has {prompts.max_length(seq2seq=seq2seq)} tokens, which "
        f"exceeds the model's max_position_embeddings={limit}; {what}: lower --shots, or cut the texts with "
        "--text-tokens"
    )


def _predict(
    model: Model,
    prompts: Prompts,
    examples: Sequence[tuple[str, str]],
    words: Sequence[str],
    tokenizer: Tokenizer,
    asking: Prompting,
) -> NDArray[np.int64]:
    """(texts,) class numbers; -1 where what was written is no answer."""
    if asking.score == "generated":
        return match_answers(generate_answers(model, prompts, tokenizer, batch_size=asking.batch_size), words)

    def scored(asked: Prompts) -> NDArray[np.float64]:
        scores = score_answers(model, asked, tokenizer, batch_size=asking.batch_size)
        return normalize_by_length(scores, asked.answers) if asking.score == "per_token" else scores

    scores = scored(prompts)
    if asking.calibrated:
        nothing = Prompts.of(asking.template, tokenizer, examples=examples, texts=_CONTENT_FREE, answers=words)
        scores = calibrate_scores(scores, scored(nothing))
    chosen: NDArray[np.int64] = scores.argmax(1)
    return chosen


def _measure(labels: Labels, truth: NDArray[np.int64], predicted: NDArray[np.int64]) -> dict[str, float]:
    from sklearn.metrics import f1_score

    classes = list(range(len(labels)))
    f1 = f1_score(truth, predicted, labels=classes, average="macro", zero_division=0.0)
    return {"accuracy": float((truth == predicted).mean()), "macro_f1": float(f1)}
