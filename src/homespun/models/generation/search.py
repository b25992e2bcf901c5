"""Processing and sampling of next-token scores, (rows, vocab)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from homespun.models.generation.settings import GenerationConfig
from homespun.models.generation.steps import Steps


def ban_repeats(scores: Tensor, written: Tensor, size: int) -> None:
    """No ``size`` tokens in a row come twice: what would complete such a run has no chance any more.

    Args:
        scores: (rows, vocab), changed in place.
        written: (rows, seq) ids so far; below zero is what nothing may be compared with.
        size: of a run.
    """
    length = written.shape[1]
    if length < size:
        return
    runs = written.unfold(1, size, 1)  # (rows, runs, size)
    last = written[:, None, length - size + 1 :]
    again = (runs[..., :-1] == last).all(-1) & (runs[..., -1] >= 0)
    row, run = again.nonzero(as_tuple=True)
    scores[row, runs[row, run, -1]] = -torch.inf


def force(scores: Tensor, tokens: Sequence[int], score: Tensor | float = 0.0) -> None:
    """Allow only these tokens, in place; they get ``score``, (rows, 1) or a number."""
    scores.fill_(-torch.inf)
    scores[:, list(tokens)] = score


def draw(scores: Tensor, uniforms: Tensor, *, temperature: float, top_k: int, top_p: float) -> Tensor:
    """(rows,) tokens drawn from ``softmax(scores / temperature)``, of which first the likeliest are taken.

    In the order of `transformers`: temperature, then the ``top_k`` likeliest, then of these the likeliest that together
    have at least ``top_p`` (Holtzman et al. 2020, section 3.1), renormalised.

    Args:
        scores: (rows, vocab).
        uniforms: (rows,) float64 in [0, 1): the place in the distribution function, so that a row's token depends on
            its own number alone.
    """
    scores, places = scores / temperature, None
    if top_k:
        scores, places = scores.topk(min(top_k, scores.shape[1]))
    elif top_p < 1:
        scores, places = scores.sort(descending=True, stable=True)
    shares = scores.softmax(-1, dtype=torch.float64)
    running = shares.cumsum(-1)
    if top_p < 1:
        kept = running - shares < top_p  # what comes before a token has not reached it yet
        running = torch.where(kept, running, 0.0).cummax(-1).values
    chosen = torch.searchsorted(running, (uniforms * running[:, -1])[:, None], right=True)
    # rounding may leave the number at the very end: then the last that has any share
    last = (running < running[:, -1:]).sum(-1, keepdim=True)
    chosen = torch.minimum(chosen, last)
    return (chosen if places is None else places.gather(1, chosen)).squeeze(1)


def uniforms(seed: int, texts: Sequence[Sequence[int]], copies: int, steps: int) -> Tensor:
    """(texts * copies, steps) float64 in [0, 1): one number for each token of each text that may be written.

    They are a function of the seed, the tokens of the prompt and the number of the copy, so that a text is continued in
    a batch as alone, in whatever place; and of more steps the first are the same.
    """
    rows = []
    for text in texts:
        for copy in range(copies):
            key = f"{seed}/{copy}/{','.join(map(str, text))}".encode()
            number = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
            generator = torch.Generator().manual_seed(number)
            rows.append(torch.rand(steps, generator=generator, dtype=torch.float64))
    return torch.stack(rows)


Ends = Callable[[list[int]], bool]
"""Whether a text ends with these new tokens, for another reason than a token or its length."""


@dataclass(frozen=True, eq=False)
class GenerationTask:
    """Inputs and limits of one generation.

    Args:
        config: how.
        prompt: (rows, seq) ids before the first new token, as far as they count as written; below zero: padding.
        most: new tokens at the most.
        least: before so many no text ends.
        ends: see `Ends`.
    """

    config: GenerationConfig
    prompt: Tensor
    most: int
    least: int
    ends: Ends | None = None

    def limit(self, scores: Tensor, written: Tensor, number: int, forced: Tensor | float = 0.0) -> None:
        """Take from the scores of new token ``number``, in place, what may not come.

        Args:
            scores: (rows, vocab).
            written: (rows, new so far).
            number: from 0.
            forced: the score of a token that must come.
        """
        config = self.config
        if config.no_repeat_ngram_size:
            prompt = self.prompt.repeat_interleave(len(scores) // len(self.prompt), 0)
            ban_repeats(scores, torch.cat([prompt, written], 1), config.no_repeat_ngram_size)
        if number < self.least and config.eos_token_id:
            scores[:, list(config.eos_token_id)] = -torch.inf
        if config.forced_bos_token_id is not None and number + self.prompt.shape[1] == 1:
            force(scores, [config.forced_bos_token_id], forced)
        if config.forced_eos_token_id is not None and number == self.most - 1:
            force(scores, [config.forced_eos_token_id], forced)

    def ended(self, tokens: Tensor, texts: Callable[[], list[list[int]]]) -> Tensor:
        """Bool in the shape of ``tokens``: which of them end their texts, whose new tokens ``texts`` gives in order."""
        ended = torch.zeros_like(tokens, dtype=torch.bool)
        for token in self.config.eos_token_id:
            ended |= tokens == token
        if self.ends is not None:
            found = torch.tensor([self.ends(text) for text in texts()], device=tokens.device)
            ended |= found.view(tokens.shape)
        return ended


def one_by_one(task: GenerationTask, steps: Steps, logits: Tensor, uniforms: Tensor | None) -> Iterator[Tensor]:
    """(rows,) int64, step after step: greedy, or drawn where there are ``uniforms``, (rows, steps).

    Rows that have ended are padded, and when all have, nothing more comes.
    """
    config = task.config
    copies = config.num_return_sequences
    rows = torch.arange(len(logits), device=logits.device).repeat_interleave(copies) if copies > 1 else None
    if rows is not None:
        logits = logits[rows]
    alive = torch.ones(len(logits), dtype=torch.bool, device=logits.device)
    written = torch.empty(len(logits), task.most, dtype=torch.int64, device=logits.device)
    for number in range(task.most):
        task.limit(logits, written[:, :number], number)
        if uniforms is None:
            tokens = logits.argmax(-1)
        else:
            drawn = uniforms[:, number].to(logits.device)
            tokens = draw(logits, drawn, temperature=config.temperature, top_k=config.top_k, top_p=config.top_p)
        tokens = tokens.where(alive, config.pad_token_id)
        written[:, number] = tokens
        yield tokens
        alive &= ~task.ended(tokens, written[:, : number + 1].tolist)
        if number == task.most - 1 or not bool(alive.any()):
            return
        logits = steps.advance(tokens, rows if number == 0 else None)


class Beams:
    """Beam search over a batch, with the scores and the endings of `transformers`.

    Of each text ``num_beams`` continuations are held. Of their likeliest continuations, twice as many, those that have
    ended and are among the first ``num_beams`` are kept with their score, the others are held on. A score is the sum of
    the log-probabilities, divided by the number of new tokens to the power of ``length_penalty`` (Wu et al. 2016 write
    it otherwise) once the text has ended.

    A beam whose parent goes on stays in the place of its parent, so that of the cache only what dies is written over.
    """

    def __init__(self, task: GenerationTask, batch: int, vocab_size: int, device: torch.device) -> None:
        config, self.task = task.config, task
        self.beams = config.num_beams
        self.wide = max(2, 1 + len(config.eos_token_id)) * self.beams  # so many that enough go on if all others end
        self.shape = batch, self.beams, task.most
        self.scores = torch.full((batch, self.beams), _NONE, device=device)
        self.scores[:, 0] = 0.0
        self.written = torch.full(self.shape, config.pad_token_id, dtype=torch.int64, device=device)
        self.kept = self.written.clone()
        self.kept_scores = torch.full((batch, self.beams), _NONE, device=device)
        self.kept_lengths = torch.zeros(batch, self.beams, dtype=torch.int64, device=device)
        self.done = torch.zeros(batch, self.beams, dtype=torch.bool, device=device)
        self.hopeful = torch.ones(batch, 1, dtype=torch.bool, device=device)
        self.first = torch.arange(batch, device=device)[:, None] * self.beams
        self.wide = min(self.wide, vocab_size)

    def run(self, steps: Steps, logits: Tensor) -> Tensor:
        """(batch * num_return_sequences, new tokens): of each text the best, the best first; padded on the right."""
        most = self.task.most
        for number in range(most):
            tokens, rows, over = self._choose(logits, number)
            if over:
                break
            logits = steps.advance(tokens, rows)
        count = self.task.config.num_return_sequences
        longest = int(self.kept_lengths[:, :count].max())
        return self.kept[:, :count, :longest].flatten(0, 1)

    def _choose(self, logits: Tensor, number: int) -> tuple[Tensor, Tensor, bool]:
        """The tokens that the beams go on with, the rows that these go on from, and whether there is nothing more."""
        batch = len(self.first)
        beams = len(logits) // batch  # 1 at first: they do not differ yet
        total = logits.logsumexp(-1, keepdim=True)
        self.task.limit(logits, self.written[:, :beams, :number].flatten(0, 1), number, total)
        found, tokens = logits.topk(self.wide)  # each row's own, of which the best of a text are among
        found = (found - total).view(batch, beams, -1) + self.scores[:, :beams, None]
        top, place = found.flatten(1).topk(min(self.wide, found[0].numel()))  # (batch, wide)
        parents = place // self.wide
        tokens = tokens.view(batch, -1).gather(1, place)
        texts = self.written.gather(1, parents[..., None].expand(-1, -1, self.shape[2]))
        texts[:, :, number] = tokens
        ended = self.task.ended(tokens, texts[:, :, : number + 1].flatten(0, 1).tolist)
        if number == self.task.most - 1:
            ended = torch.ones_like(ended)
        self._keep(top, texts, ended, number)

        going, chosen = (top + ended * _NONE).topk(self.beams)
        chosen = chosen.gather(1, _in_place(parents.gather(1, chosen), self.beams))
        self.scores = (top + ended * _NONE).gather(1, chosen)
        self.written = texts.gather(1, chosen[..., None].expand(-1, -1, self.shape[2]))
        over = self._over(going[:, :1], ended, number)
        rows = parents.gather(1, chosen) + (self.first if beams > 1 else self.first // self.beams)
        return tokens.gather(1, chosen).flatten(), rows.flatten(), over

    def _keep(self, top: Tensor, texts: Tensor, ended: Tensor, number: int) -> None:
        """Take up what has ended, where it is better than what is kept."""
        new = ended.clone()
        new[:, self.beams :] = False
        if not bool(new.any()):
            return
        config = self.task.config
        scores = top / (number + 1) ** config.length_penalty
        closed = ~self.hopeful
        if config.early_stopping is True:
            closed = closed | self.done.all(1, keepdim=True)
        scores = scores + (closed.float() + (~new).float()) * _NONE
        merged = torch.cat([self.kept_scores, scores], 1)
        self.kept_scores, best = merged.topk(self.beams)
        every = best[..., None].expand(-1, -1, self.shape[2])
        self.kept = torch.cat([self.kept, texts], 1).gather(1, every)
        self.done = torch.cat([self.done, new], 1).gather(1, best)
        lengths = torch.cat([self.kept_lengths, new * (number + 1)], 1)
        self.kept_lengths = lengths.gather(1, best)

    def _over(self, best: Tensor, ended: Tensor, number: int) -> bool:
        """True where no beam can improve or continue; ``(batch, 1)`` are the scores of the best beams."""
        config = self.task.config
        never = config.early_stopping == "never" and config.length_penalty > 0
        length = self.task.most if never else number + 1
        possible = best / length**config.length_penalty
        worst = self.kept_scores.amin(1, keepdim=True)
        worst = torch.where(self.done, worst, _NONE)
        self.hopeful = self.hopeful & (possible > worst).any(1, keepdim=True)
        full = config.early_stopping is True and bool(self.done.all())
        return full or bool(ended.all()) or not bool(self.hopeful.any())


_NONE = -1.0e9  # the score of what is no candidate, as there: what is added to it is lost in its rounding


def _in_place(parents: Tensor, beams: int) -> Tensor:
    """(batch, beams) int64: the order in which a child of each parent stands where its parent stood."""
    orders: list[list[int]] = []
    for row in parents.tolist():
        order, rest = [-1] * beams, []
        for child, parent in enumerate(row):
            if order[parent] < 0:
                order[parent] = child
            else:
                rest.append(child)
        waiting = iter(rest)
        orders.append([next(waiting) if child < 0 else child for child in order])
    return torch.tensor(orders, device=parents.device)
