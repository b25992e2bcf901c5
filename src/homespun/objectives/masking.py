"""Masking of tokens as pure functions of ids and a generator (Devlin et al. 2019, section 3.1)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from homespun.text.tokenizer import Tokenizer

Replace = Callable[[np.ndarray, np.ndarray, torch.Generator], np.ndarray]
"""(seq,) ids, (chosen,) positions and a generator -> (seq,) corrupted ids."""


def check_shares(mask_share: float, random_share: float) -> None:
    """Refuse shares of masked and random tokens that exceed 1 together.

    Raises:
        ValueError: they do.
    """
    if mask_share + random_share > 1:
        raise ValueError(f"mask_share={mask_share} and random_share={random_share} are more than the whole; lower one")


def replacement(tokenizer: Tokenizer, *, mask_share: float, random_share: float) -> Replace:
    """`replace` with the tokens of a tokenizer."""
    ordinary_ids = np.flatnonzero(~tokenizer.special_mask)
    return partial(
        replace,
        mask_id=tokenizer.mask_id,
        ordinary_ids=ordinary_ids,
        mask_share=mask_share,
        random_share=random_share,
    )


def choose_positions(
    input_ids: np.ndarray,
    special: np.ndarray,
    generator: torch.Generator,
    *,
    probability: float,
    word_starts: np.ndarray | None = None,
) -> np.ndarray:
    """(chosen,) sorted positions to predict: ``round(probability * ordinary tokens)`` of them, and at least one.

    The count is exact, as in BERT's released code; drawing each token alone would only add variance.

    Args:
        input_ids: (seq,) ids.
        special: (vocab,) bool; special tokens are never chosen.
        generator: all the randomness.
        probability: share of the ordinary tokens.
        word_starts: (vocab,) bool, the token begins a word; where given, whole words are chosen, until the count is
            reached; a word that would pass it is left out, unless it is the first.
    """
    candidates = np.flatnonzero(~special[input_ids])
    if not len(candidates):
        return candidates
    count = max(1, round(probability * len(candidates)))
    if word_starts is None:
        order = torch.randperm(len(candidates), generator=generator).numpy()
        return np.sort(candidates[order[:count]])
    # a word also begins after a gap, that is after a special token
    begins = word_starts[input_ids[candidates]] | (np.diff(candidates, prepend=-2) > 1)
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], len(candidates))
    chosen: list[np.ndarray] = []
    taken = 0
    for word in torch.randperm(len(starts), generator=generator).tolist():
        size = ends[word] - starts[word]
        if taken and taken + size > count:
            continue
        chosen.append(candidates[starts[word] : ends[word]])
        taken += size
        if taken >= count:
            break
    return np.sort(np.concatenate(chosen))


def replace(
    input_ids: np.ndarray,
    positions: np.ndarray,
    generator: torch.Generator,
    *,
    mask_id: int,
    ordinary_ids: np.ndarray,
    mask_share: float,
    random_share: float,
) -> np.ndarray:
    """A copy of (seq,) ``input_ids`` where, at ``positions``, a share becomes the mask token, a share a random token
    of ``ordinary_ids``, and the rest stays.
    """
    corrupted = input_ids.copy()
    if not len(positions):
        return corrupted
    draw = torch.rand(len(positions), generator=generator).numpy()
    corrupted[positions[draw < mask_share]] = mask_id
    swapped = positions[(draw >= mask_share) & (draw < mask_share + random_share)]
    if len(swapped):
        picks = torch.randint(len(ordinary_ids), (len(swapped),), generator=generator).numpy()
        corrupted[swapped] = ordinary_ids[picks]
    return corrupted
