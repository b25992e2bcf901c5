"""Greedy decoding, sampling and beam search over next-token scores, (rows, vocab)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from homespun.models.generation.settings import GenerationConfig
from homespun.models.generation.steps import Steps


def ban_repeats(scores: Tensor, written: Tensor, size: int) -> None:
    """Mask tokens that would repeat an n-gram of ``size`` tokens.

    Args:
        scores: (rows, vocab), changed in place.
        written: (rows, seq) previous ids; negative ids match no token.
        size: size of n-grams.
    """
    length = written.shape[1]
    if length < size:
        return
    ngrams = written.unfold(1, size, 1)  # (rows, n, size)
    last = written[:, None, length - size + 1 :]
    repeated = (ngrams[..., :-1] == last).all(-1) & (ngrams[..., -1] >= 0)
    row, index = repeated.nonzero(as_tuple=True)
    scores[row, ngrams[row, index, -1]] = -torch.inf


def force(scores: Tensor, tokens: Sequence[int], score: Tensor | float = 0.0) -> None:
    """Mask all other tokens in place; ``tokens`` get ``score``, (rows, 1) or a number."""
    scores.fill_(-torch.inf)
    scores[:, list(tokens)] = score


def draw(scores: Tensor, uniforms: Tensor, *, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Sample (rows,) tokens: temperature, then ``top_k``, then ``top_p`` (Holtzman et al. 2020, section 3.1).

    Args:
        scores: (rows, vocab).
        uniforms: (rows,) float64 in [0, 1), where the distribution function is inverted.
        temperature: divides the scores.
        top_k: number of most probable tokens; 0: all.
        top_p: total probability of the most probable tokens.
    """
    scores, tokens = scores / temperature, None
    if top_k:
        scores, tokens = scores.topk(min(top_k, scores.shape[1]))
    elif top_p < 1:
        scores, tokens = scores.sort(descending=True, stable=True)
    probabilities = scores.softmax(-1, dtype=torch.float64)
    cumulative = probabilities.cumsum(-1)
    if top_p < 1:
        in_nucleus = cumulative - probabilities < top_p
        cumulative = torch.where(in_nucleus, cumulative, 0.0).cummax(-1).values
    index = torch.searchsorted(cumulative, (uniforms * cumulative[:, -1])[:, None], right=True)
    # after rounding, the number may reach the end: take the last token with any probability
    last = (cumulative < cumulative[:, -1:]).sum(-1, keepdim=True)
    index = torch.minimum(index, last)
    return (index if tokens is None else tokens.gather(1, index)).squeeze(1)


def uniforms(seed: int, texts: Sequence[Sequence[int]], copies: int, steps: int) -> Tensor:
    """Draw (texts * copies, steps) float64 random numbers in [0, 1), one for each new token.

    The numbers are a function of seed, prompt and copy, so that results do not depend on the batch or the number of
    steps.
    """
    rows = []
    for text in texts:
        for copy in range(copies):
            key = f"{seed}/{copy}/{','.join(map(str, text))}".encode()
            number = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
            generator = torch.Generator().manual_seed(number)
            rows.append(torch.rand(steps, generator=generator, dtype=torch.float64))
    return torch.stack(rows)


Ends = Callable[[list[int], list[int]], bool]
"""Tokens of a prompt, and new tokens -> True if the text ends with them, as with a stop string."""


@dataclass(frozen=True, eq=False)
class GenerationTask:
    """Inputs and limits of one generation.

    Args:
        config: settings.
        prompt: (rows, seq) ids before the first new token; negative at padding.
        max_new_tokens: maximum number of new tokens.
        min_new_tokens: minimum number of new tokens.
        ends: see `Ends`.
    """

    config: GenerationConfig
    prompt: Tensor
    max_new_tokens: int
    min_new_tokens: int
    ends: Ends | None = None

    def limit(self, scores: Tensor, written: Tensor, number: int, forced: Tensor | float = 0.0) -> None:
        """Mask the scores of new token ``number`` in place.

        Args:
            scores: (rows, vocab).
            written: (rows, number) new ids.
            number: index of the token, from 0.
            forced: score of forced tokens.
        """
        config = self.config
        if config.no_repeat_ngram_size:
            prompt = self.prompt.repeat_interleave(len(scores) // len(self.prompt), 0)
            ban_repeats(scores, torch.cat([prompt, written], 1), config.no_repeat_ngram_size)
        if number < self.min_new_tokens and config.eos_token_id:
            scores[:, list(config.eos_token_id)] = -torch.inf
        if config.forced_bos_token_id is not None and number + self.prompt.shape[1] == 1:
            force(scores, [config.forced_bos_token_id], forced)
        if config.forced_eos_token_id is not None and number == self.max_new_tokens - 1:
            force(scores, [config.forced_eos_token_id], forced)

    def choose(self, logits: Tensor, written: Tensor, uniforms: Tensor | None) -> Tensor:
        """Choose the (rows,) next tokens, greedy or sampled.

        Args:
            logits: (rows, vocab), changed in place.
            written: (rows, number) new ids.
            uniforms: (rows,) random numbers of `draw`; None: greedy.
        """
        self.limit(logits, written, written.shape[1])
        if uniforms is None:
            return logits.argmax(-1)
        config = self.config
        return draw(
            logits,
            uniforms.to(logits.device),
            temperature=config.temperature,
            top_k=config.top_k,
            top_p=config.top_p,
        )

    def ended(self, tokens: Tensor, texts: Callable[[], list[list[int]]]) -> Tensor:
        """Return a mask like ``tokens``, True at the end of a text; ``texts`` returns the new tokens of each text."""
        ended = torch.zeros_like(tokens, dtype=torch.bool)
        for token in self.config.eos_token_id:
            ended |= tokens == token
        if self.ends is not None:
            new = texts()
            copies = len(new) // len(self.prompt)
            found = [self.ends(self._prompts[index // copies], text) for index, text in enumerate(new)]
            ended |= torch.tensor(found, device=tokens.device).view(tokens.shape)
        return ended

    @cached_property
    def _prompts(self) -> list[list[int]]:
        return [[token for token in row if token >= 0] for row in self.prompt.tolist()]


def sample(task: GenerationTask, steps: Steps, logits: Tensor, uniforms: Tensor | None) -> Iterator[Tensor]:
    """Yield (rows,) int64 tokens of each step until all rows end, greedy or sampled by ``uniforms`` (rows, steps)."""
    config = task.config
    copies = config.num_return_sequences
    rows = torch.arange(len(logits), device=logits.device).repeat_interleave(copies) if copies > 1 else None
    if rows is not None:
        logits = logits[rows]
    alive = torch.ones(len(logits), dtype=torch.bool, device=logits.device)
    written = torch.empty(len(logits), task.max_new_tokens, dtype=torch.int64, device=logits.device)
    for number in range(task.max_new_tokens):
        tokens = task.choose(logits, written[:, :number], None if uniforms is None else uniforms[:, number])
        tokens = tokens.where(alive, config.pad_token_id)
        written[:, number] = tokens
        yield tokens
        alive &= ~task.ended(tokens, written[:, : number + 1].tolist)
        if number == task.max_new_tokens - 1 or not bool(alive.any()):
            return
        logits = steps.advance(tokens, rows if number == 0 else None)


class BeamSearch:
    """Beam search over a batch, with the results of `transformers`.

    Each step takes the ``2 * num_beams`` best continuations of the beams of a text. Finished continuations among the
    first ``num_beams`` are stored with their score, the log-probability divided by ``length^length_penalty``. The best
    unfinished ones are the next beams, in the row of their parent if possible, which reduces copies of the cache.
    """

    def __init__(self, task: GenerationTask, batch: int, vocab_size: int, device: torch.device) -> None:
        config, self.task = task.config, task
        self.beams = config.num_beams
        # enough if all others end
        self.candidates = min(max(2, 1 + len(config.eos_token_id)) * self.beams, vocab_size)
        self.shape = batch, self.beams, task.max_new_tokens
        self.scores = torch.full((batch, self.beams), _NONE, device=device)
        self.scores[:, 0] = 0.0
        self.written = torch.full(self.shape, config.pad_token_id, dtype=torch.int64, device=device)
        self.finished = self.written.clone()
        self.finished_scores = torch.full((batch, self.beams), _NONE, device=device)
        self.finished_lengths = torch.zeros(batch, self.beams, dtype=torch.int64, device=device)
        self.done = torch.zeros(batch, self.beams, dtype=torch.bool, device=device)
        self.can_improve = torch.ones(batch, 1, dtype=torch.bool, device=device)
        self.first = torch.arange(batch, device=device)[:, None] * self.beams

    def run(self, steps: Steps, logits: Tensor) -> Tensor:
        """Generate (batch * num_return_sequences, new) ids, the best of each text first, padded on the right."""
        most = self.task.max_new_tokens
        for number in range(most):
            tokens, rows, over = self._choose(logits, number)
            if over:
                break
            logits = steps.advance(tokens, rows)
        count = self.task.config.num_return_sequences
        longest = int(self.finished_lengths[:, :count].max())
        return self.finished[:, :count, :longest].flatten(0, 1)

    def _choose(self, logits: Tensor, number: int) -> tuple[Tensor, Tensor, bool]:
        """Return the next token of each beam, the previous row that it continues, and True at the end of the search."""
        batch = len(self.first)
        beams = len(logits) // batch  # 1 in the first step
        total = logits.logsumexp(-1, keepdim=True)
        self.task.limit(logits, self.written[:, :beams, :number].flatten(0, 1), number, total)
        scores, tokens = logits.topk(self.candidates)
        scores = (scores - total).view(batch, beams, -1) + self.scores[:, :beams, None]
        top, index = scores.flatten(1).topk(min(self.candidates, scores[0].numel()))  # (batch, candidates)
        parents = index // self.candidates
        tokens = tokens.view(batch, -1).gather(1, index)
        texts = self.written.gather(1, parents[..., None].expand(-1, -1, self.shape[2]))
        texts[:, :, number] = tokens
        ended = self.task.ended(tokens, texts[:, :, : number + 1].flatten(0, 1).tolist)
        if number == self.task.max_new_tokens - 1:
            ended = torch.ones_like(ended)
        self._store_finished(top, texts, ended, number)

        unfinished = top + ended * _NONE
        best, chosen = unfinished.topk(self.beams)
        chosen = chosen.gather(1, _parent_order(parents.gather(1, chosen), self.beams))
        self.scores = unfinished.gather(1, chosen)
        self.written = texts.gather(1, chosen[..., None].expand(-1, -1, self.shape[2]))
        over = self._is_over(best[:, :1], ended, number)
        rows = parents.gather(1, chosen) + (self.first if beams > 1 else self.first // self.beams)
        return tokens.gather(1, chosen).flatten(), rows.flatten(), over

    def _store_finished(self, top: Tensor, texts: Tensor, ended: Tensor, number: int) -> None:
        new = ended.clone()
        new[:, self.beams :] = False
        if not bool(new.any()):
            return
        config = self.task.config
        scores = top / (number + 1) ** config.length_penalty
        closed = ~self.can_improve
        if config.early_stopping is True:
            closed = closed | self.done.all(1, keepdim=True)
        scores = scores + (closed.float() + (~new).float()) * _NONE
        merged = torch.cat([self.finished_scores, scores], 1)
        self.finished_scores, best = merged.topk(self.beams)
        index = best[..., None].expand(-1, -1, self.shape[2])
        self.finished = torch.cat([self.finished, texts], 1).gather(1, index)
        self.done = torch.cat([self.done, new], 1).gather(1, best)
        self.finished_lengths = torch.cat([self.finished_lengths, new * (number + 1)], 1).gather(1, best)

    def _is_over(self, best: Tensor, ended: Tensor, number: int) -> bool:
        """True if no beam can improve the result; ``best`` (batch, 1) are the scores of the best beams."""
        config = self.task.config
        never = config.early_stopping == "never" and config.length_penalty > 0
        length = self.task.max_new_tokens if never else number + 1
        possible = best / length**config.length_penalty
        worst = self.finished_scores.amin(1, keepdim=True)
        worst = torch.where(self.done, worst, _NONE)
        self.can_improve = self.can_improve & (possible > worst).any(1, keepdim=True)
        full = config.early_stopping is True and bool(self.done.all())
        return full or bool(ended.all()) or not bool(self.can_improve.any())


_NONE = -1.0e9  # score of missing candidates, as in transformers


def _parent_order(parents: Tensor, beams: int) -> Tensor:
    """Compute a (batch, beams) int64 order that puts a child of each parent into the row of the parent."""
    orders: list[list[int]] = []
    for row in parents.tolist():
        order, rest = [-1] * beams, []
        for child, parent in enumerate(row):
            if order[parent] < 0:
                order[parent] = child
            else:
                rest.append(child)
        remaining = iter(rest)
        orders.append([next(remaining) if child < 0 else child for child in order])
    return torch.tensor(orders, device=parents.device)
