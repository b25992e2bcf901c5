"""Processing and sampling of next-token scores, (rows, vocab)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor


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
