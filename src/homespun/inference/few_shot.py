"""In-context learning: log-probabilities of answers after a prompt.

A prompt is an instruction, examples with answers, and a text to answer (Brown et al. 2020, section 2). A decoder reads
the common prefix of all prompts once, and continues from its cache. An encoder reads the full prompt, and its decoder
scores the answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, field_validator
from torch import Tensor

from homespun.config import Config
from homespun.data.rows import Row, pad
from homespun.errors import UserError
from homespun.inference.generation import generate_batch
from homespun.models.backbone import Backbone
from homespun.models.generation.settings import TextGenerationConfig
from homespun.models.heads import LanguageModelHead
from homespun.models.model import Model
from homespun.nn.cache import Cache, NoCacheError
from homespun.text.tokenizer import Tokenizer

Ids = NDArray[np.int64]
_TEXT, _ANSWER = "{text}", "{answer}"


class PromptTemplate(Config):
    """Template of a prompt; white space in texts and answers becomes single spaces."""

    instruction: str = Field(default="", description="task description before the examples")
    example: str = Field(
        default="{text}\nAnswer: {answer}", description="format of an example; the last one ends before its answer"
    )
    separator: str = Field(default="\n\n", description="text after the instruction and after each example")

    @field_validator("example")
    @classmethod
    def _text_then_answer(cls, example: str) -> str:
        if (example.count(_TEXT), example.count(_ANSWER)) != (1, 1) or example.index(_TEXT) > example.index(_ANSWER):
            raise ValueError(f"an example must have {_TEXT} once and then {_ANSWER} once, not {example!r}")
        return example

    def before(self, examples: Sequence[tuple[str, str]]) -> str:
        """Build the common prefix of all prompts: the instruction and ``examples``, texts with their answers."""
        parts = [self.instruction] if self.instruction else []
        parts += [
            self.example.replace(_ANSWER, _line(answer)).replace(_TEXT, _line(text), 1) for text, answer in examples
        ]
        return "".join(f"{part}{self.separator}" for part in parts)

    def question(self, text: str) -> str:
        """Build the prompt of a text up to the space before its answer."""
        return self.example.partition(_ANSWER)[0].rstrip(" ").replace(_TEXT, _line(text))

    def answer(self, word: str) -> str:
        """Build the answer that follows `question`, with the space before it."""
        prefix = self.example.partition(_ANSWER)[0]
        return " " * (len(prefix) - len(prefix.rstrip(" "))) + _line(word)


def _line(text: str) -> str:
    return " ".join(text.split())


@dataclass(frozen=True)
class Prompts:
    """Token ids of prompts: the common prefix, the questions and the answers, encoded separately."""

    before: Ids
    questions: Sequence[Ids]
    answers: Sequence[Ids]

    @classmethod
    def of(
        cls,
        template: PromptTemplate,
        tokenizer: Tokenizer,
        *,
        examples: Sequence[tuple[str, str]],
        texts: Sequence[str],
        answers: Sequence[str],
    ) -> Prompts:
        """Encode the prompts of ``texts``.

        Raises:
            UserError: an answer or a question without a token.
        """
        (before,) = tokenizer.encode_batch([template.before(examples)])
        encoded = tokenizer.encode_batch([template.answer(answer) for answer in answers])
        for answer, ids in zip(answers, encoded, strict=True):
            if not len(ids):
                raise UserError(f"the answer {answer!r} has no tokens; set a word for it by --answers LABEL=WORD")
        questions = tokenizer.encode_batch([template.question(text) for text in texts])
        if not all(len(ids) for ids in questions):
            raise UserError("a question has no tokens; the template needs text besides {text}")
        begins, _ = tokenizer.template
        return cls(
            np.concatenate([begins, before], dtype=np.int64, casting="unsafe"),
            [ids.astype(np.int64) for ids in questions],
            [ids.astype(np.int64) for ids in encoded],
        )

    def max_length(self, *, seq2seq: bool) -> int:
        """Return the length of the longest input in tokens.

        Args:
            seq2seq: length for an encoder, with the end token; else for a decoder, with the longest answer without its
                last token.
        """
        extra = 1 if seq2seq else max(map(len, self.answers)) - 1
        return len(self.before) + max(map(len, self.questions), default=0) + extra


def score_answers(model: Model, prompts: Prompts, tokenizer: Tokenizer, *, batch_size: int = 16) -> NDArray[np.float64]:
    """Compute the log-probability of each answer after each prompt, summed over its tokens.

    Answers with a common prefix share a row of the batch, which has ``batch_size`` questions. The model is set to
    evaluation mode.

    Returns:
        (questions, answers) log-probabilities in nats.

    Raises:
        UserError: the model is not a language model, or a prompt is longer than its positions.
    """
    model.eval()
    scorer = _build_scorer(model, prompts, tokenizer)
    stems = _stems(prompts.answers)
    stem_of = [
        next(n for n, stem in enumerate(stems) if np.array_equal(stem[: len(ids) - 1], ids[:-1]))
        for ids in prompts.answers
    ]
    result = np.zeros((len(prompts.questions), len(prompts.answers)))
    order = sorted(range(len(prompts.questions)), key=lambda index: -len(prompts.questions[index]))
    with torch.no_grad():
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            tables = scorer([prompts.questions[index] for index in chosen], stems)
            for answer, ids in enumerate(prompts.answers):
                scores = tables[:, stem_of[answer], torch.arange(len(ids)), torch.from_numpy(ids)]  # (chosen, tokens)
                result[chosen, answer] = scores.double().sum(-1).numpy()
    return result


def generate_answers(model: Model, prompts: Prompts, tokenizer: Tokenizer, *, batch_size: int = 16) -> list[str]:
    """Generate greedy continuations of the prompts, at most as long as the longest answer."""
    end = np.array([tokenizer.sep_id] if model.backbone.has_decoder else [], dtype=np.int64)
    return generate_batch(
        model,
        [Row(np.concatenate([prompts.before, ids, end])) for ids in prompts.questions],
        tokenizer,
        end_id=tokenizer.sep_id,
        max_new_tokens=max(map(len, prompts.answers)),
        generation=TextGenerationConfig(no_repeat_ngram_size=0),
        batch_size=batch_size,
    )


def match_answers(texts: Sequence[str], answers: Sequence[str]) -> NDArray[np.int64]:
    """Return the (texts,) index of the longest answer that each text begins with; -1 for none."""
    lines = [_line(answer).casefold() for answer in answers]
    chosen = []
    for text in texts:
        matches = [index for index, line in enumerate(lines) if _line(text).casefold().startswith(line)]
        chosen.append(max(matches, key=lambda index: len(lines[index]), default=-1))
    return np.array(chosen, dtype=np.int64)


def normalize_by_length(scores: NDArray[np.float64], answers: Sequence[Ids]) -> NDArray[np.float64]:
    """Divide (questions, answers) log-probabilities by the number of tokens of the answer."""
    return scores / np.array([len(ids) for ids in answers])


def calibrate_scores(scores: NDArray[np.float64], content_free: NDArray[np.float64]) -> NDArray[np.float64]:
    """Subtract the log prior of each answer after the prompt (Zhao et al. 2021, section 5).

    Args:
        scores: (questions, answers).
        content_free: (texts, answers) scores of texts without content, whose probabilities are averaged.
    """
    from scipy.special import softmax

    prior = softmax(content_free, axis=1).mean(0)
    return scores - np.log(np.maximum(prior, np.finfo(np.float64).tiny))


def _stems(answers: Sequence[Ids]) -> list[Ids]:
    """Return the answers without their last tokens, except prefixes of others."""
    stems = {tuple(ids[:-1].tolist()) for ids in answers}
    kept = [s for s in stems if not any(s != other and other[: len(s)] == s for other in stems)]
    return [np.array(stem, dtype=np.int64) for stem in sorted(kept)]


class _DecoderScorer:
    """Scorer with a decoder, which reads the common prefix once if its attention supports a cache."""

    def __init__(self, backbone: Backbone, head: LanguageModelHead, before: Ids, pad_id: int) -> None:
        self.backbone, self.head, self.before, self.pad_id = backbone, head, before, pad_id
        self.device = head.weight.device
        self.cache: Cache | None = Cache() if len(before) else None
        if self.cache is None:
            return
        try:
            with torch.no_grad():
                backbone.decode(torch.from_numpy(before)[None].to(self.device), cache=self.cache)
        except NoCacheError:
            self.cache = None

    def __call__(self, questions: Sequence[Ids], stems: Sequence[Ids]) -> Tensor:
        """Compute next-token log-probabilities after each question and stem, (questions, stems, tokens + 1, vocab)."""
        rows = [Row(np.concatenate([ids, stem])) for ids in questions for stem in stems]
        hidden = self._hidden(rows)  # (rows, seq, hidden)
        positions = torch.tensor([len(ids) - 1 for ids in questions]).repeat_interleave(len(stems))[:, None]
        positions = positions + torch.arange(max(map(len, stems)) + 1)  # positions after a stem are not used
        positions = positions.clamp(max=hidden.shape[1] - 1).to(self.device)
        chosen = hidden.gather(1, positions[..., None].expand(-1, -1, hidden.shape[-1]))
        table = _log_softmax(self.head(chosen))
        return table.view(len(questions), len(stems), *table.shape[1:])

    def _hidden(self, rows: Sequence[Row]) -> Tensor:
        if self.cache is None:
            full = [Row(np.concatenate([self.before, row.input_ids])) for row in rows]
            batch = pad(full, self.pad_id).to(self.device)
            hidden: Tensor = self.backbone(batch.input_ids, attention_mask=batch.attention_mask)
            return hidden[:, len(self.before) :]
        batch = pad(rows, self.pad_id).to(self.device)
        keep = batch.attention_mask
        if keep is not None:
            keep = torch.cat([keep.new_ones(len(rows), len(self.before)), keep], 1)
        cache = self.cache.branch(torch.zeros(len(rows), dtype=torch.int64, device=self.device))
        return self.backbone.decode(batch.input_ids, attention_mask=keep, cache=cache)


class _EncoderDecoderScorer:
    """Scorer with an encoder-decoder: the encoder reads the prompt, the decoder the answers."""

    def __init__(self, backbone: Backbone, head: LanguageModelHead, before: Ids, tokenizer: Tokenizer) -> None:
        self.backbone, self.head, self.before = backbone, head, before
        self.pad_id, self.end = tokenizer.pad_id, np.array([tokenizer.sep_id])
        self.device = head.weight.device

    def __call__(self, questions: Sequence[Ids], stems: Sequence[Ids]) -> Tensor:
        """Compute next-token log-probabilities after each stem, (questions, stems, tokens + 1, vocab)."""
        prompts = [Row(np.concatenate([self.before, ids, self.end])) for ids in questions for _ in stems]
        batch = pad(prompts, self.pad_id).to(self.device)
        source = self.backbone.encode(batch.input_ids, attention_mask=batch.attention_mask)
        start = np.array([self.backbone.decoder_start_token_id])
        read = pad([Row(np.concatenate([start, stem])) for _ in questions for stem in stems], self.pad_id)
        read = read.to(self.device)
        hidden = self.backbone.decode(read.input_ids, source, attention_mask=read.attention_mask)
        table = _log_softmax(self.head(hidden))
        return table.view(len(questions), len(stems), *table.shape[1:])


def _log_softmax(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1).cpu()


def _build_scorer(model: Model, prompts: Prompts, tokenizer: Tokenizer) -> _DecoderScorer | _EncoderDecoderScorer:
    backbone, head = model.backbone, model.head
    if not isinstance(head, LanguageModelHead):
        raise UserError(
            "few-shot prompting needs a language model, and this model has no such head; train one with objective clm, "
            "or an encoder with a decoder"
        )
    if backbone.has_decoder:
        return _EncoderDecoderScorer(backbone, head, prompts.before, tokenizer)
    if not backbone.causal:
        raise UserError(
            "few-shot prompting needs a causal model, and this encoder is bidirectional; train one with objective clm"
        )
    return _DecoderScorer(backbone, head, prompts.before, tokenizer.pad_id)
