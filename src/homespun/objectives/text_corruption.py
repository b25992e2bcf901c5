"""Corruption of texts that a decoder restores: pure functions of ids without special tokens and a generator.

The first five are BART's (Lewis et al. 2020, section 2.2), the last two T5's (Raffel et al. 2020, section 3.1.4).
"""

from __future__ import annotations

import numpy as np
import torch


def mask_tokens(ids: np.ndarray, generator: torch.Generator, *, probability: float, mask_id: int) -> np.ndarray:
    """(seq,) -> (seq,): ``round(probability * seq)`` of the tokens, chosen at random, are the mask token."""
    masked = ids.copy()
    masked[_choose_positions(len(ids), probability, generator)] = mask_id
    return masked


def delete_tokens(ids: np.ndarray, generator: torch.Generator, *, probability: float) -> np.ndarray:
    """(seq,) -> (seq - n,): ``round(probability * seq)`` of the tokens, chosen at random, are gone."""
    return np.delete(ids, _choose_positions(len(ids), probability, generator))


def infill(
    ids: np.ndarray, generator: torch.Generator, *, probability: float, mean_span: float, mask_id: int
) -> np.ndarray:
    """(seq,) -> (at most seq,): spans of tokens are each one mask token; a span of no token is one that is put in.

    Lengths of spans are Poisson with mean ``mean_span``; they are drawn until they hold ``round(probability * seq)``
    tokens, and the last is cut to have that exactly. Spans do not overlap, but may touch; each way to lay them out is
    equally likely, which leaves the first and last few tokens of a text hidden less often than those between. Spans of
    no token are left out where there would be more spans than hidden tokens: a text never grows beyond its model.
    """
    count = round(probability * len(ids))
    if not count:
        return ids.copy()
    lengths = _poisson(count, mean_span, generator)
    # where a span begins: the text is a line of what is kept and of spans, in random order
    size = len(ids) - count + len(lengths)
    spans = np.sort(torch.randperm(size, generator=generator)[: len(lengths)].numpy())
    is_span = np.zeros(size, np.bool_)
    is_span[spans] = True
    widths = np.ones(size, np.int64)
    widths[spans] = lengths
    begins = np.cumsum(widths) - widths  # of each piece of that line, in the text
    filled: np.ndarray = ids[np.minimum(begins, len(ids) - 1)]
    filled[is_span] = mask_id
    return filled


def _poisson(count: int, mean_span: float, generator: torch.Generator) -> np.ndarray:
    """(at most count,) lengths of spans that sum to ``count``."""
    drawn = np.zeros(0, np.int64)
    while drawn.sum() < count:
        rates = torch.full((int(1.5 * count / mean_span) + 4,), mean_span)
        drawn = np.concatenate([drawn, torch.poisson(rates, generator=generator).numpy().astype(np.int64)])
    passed = np.cumsum(drawn)
    last = int(np.searchsorted(passed, count))
    lengths = drawn[: last + 1]
    lengths[-1] -= passed[last] - count
    spare = len(lengths) - count
    return np.delete(lengths, np.flatnonzero(lengths == 0)[:spare]) if spare > 0 else lengths


def permute_sentences(ids: np.ndarray, ends: np.ndarray, generator: torch.Generator) -> np.ndarray:
    """(seq,) ids and (sentences,) where each ends -> (seq,): the sentences in random order."""
    sentences = np.split(ids, ends[:-1])
    order = torch.randperm(len(sentences), generator=generator).tolist()
    return np.concatenate([sentences[number] for number in order])


def rotate(ids: np.ndarray, generator: torch.Generator) -> np.ndarray:
    """(seq,) -> (seq,): the text begins with a token chosen at random, and what was before it is at the end."""
    if not len(ids):
        return ids.copy()
    return np.roll(ids, -int(torch.randint(len(ids), (1,), generator=generator)))


def _choose_positions(length: int, probability: float, generator: torch.Generator) -> np.ndarray:
    return torch.randperm(length, generator=generator)[: round(probability * length)].numpy()


def count_noise_and_spans(length: int, *, probability: float, mean_span: float) -> tuple[int, int]:
    """Numbers of noise tokens and of spans in ``length`` tokens; of two tokens or more neither all nor none."""
    noise = min(max(round(length * probability), 1), length - 1)
    return max(noise, 0), min(max(round(noise / mean_span), 1), noise, length - noise) if noise > 0 else 0


def choose_spans(length: int, generator: torch.Generator, *, probability: float, mean_span: float) -> np.ndarray:
    """(length,) bool: what is noise, as the authors' ``random_spans_noise_mask`` chooses it.

    How much and in how many spans is a function of the length alone (`count_noise_and_spans`). Noise, and what is
    not, is cut into as many parts of one token or more, each way to do so equally likely; they
    alternate, and noise comes last.
    """
    noise, spans = count_noise_and_spans(length, probability=probability, mean_span=mean_span)
    if not spans:
        return np.zeros(length, np.bool_)
    parts = np.stack(
        [_partition(length - noise, spans, generator), _partition(noise, spans, generator)], axis=1
    ).ravel()
    return np.repeat(np.arange(len(parts)) % 2 == 1, parts)


def _partition(count: int, parts: int, generator: torch.Generator) -> np.ndarray:
    """(parts,) lengths of one or more that sum to ``count``."""
    cuts = np.sort(torch.randperm(count - 1, generator=generator)[: parts - 1].numpy()) + 1
    return np.diff(cuts, prepend=0, append=count)


def cut_out(ids: np.ndarray, noise: np.ndarray, sentinel_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(seq,) ids, of which ``noise`` (seq,) is hidden -> what is left of them, and what is to be written.

    Each span of noise is one sentinel in the former, and comes after the same sentinel in the latter.

    Args:
        sentinel_ids: (n,) at least as many as there are spans, used from the first on.
    """
    begins = noise & ~np.concatenate([[False], noise[:-1]])
    starts = np.flatnonzero(begins)
    marked = ids.copy()
    marked[starts] = sentinel_ids[: len(starts)]
    hidden = np.insert(ids[noise], np.flatnonzero(begins[noise]), sentinel_ids[: len(starts)])
    return marked[~noise | begins], hidden
