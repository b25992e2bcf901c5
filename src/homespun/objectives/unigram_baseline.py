"""The line that pretraining has to beat: what a model loses that knows nothing but how often each token is.

Masked objectives stay at it for long where a network has first to find out which token stands where.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor

from homespun.batch import Batch
from homespun.objectives.clm import CausalLM
from homespun.objectives.config import PretrainingObjective
from homespun.objectives.electra import Electra
from homespun.objectives.mlm import MaskedLM
from homespun.objectives.tbptt import StatefulCausalLM
from homespun.text.tokenizer import Tokenizer


def unigram_losses(
    objective: PretrainingObjective, counts: Callable[[], np.ndarray], held_out: Iterable[Batch], tokenizer: Tokenizer
) -> dict[str, float]:
    """Nats a predicted token by term, of the best guess from frequencies alone; nothing for objectives with a decoder.

    Where a token that is to be told stands there as it is, or another at random in its place, the guess goes by how
    likely either is.

    Args:
        objective: what is trained.
        counts: tells (vocabulary,) how often each token is in the training text, which is read only where a guess
            is made; special ones, which texts are framed with, are as frequent as in ``held_out``.
        held_out: the batches of the validation loss.
        tokenizer: of the text.
    """
    match objective:
        case CausalLM() | StatefulCausalLM():
            term, hidden, random = "causal", 1.0, 0.0
        case MaskedLM():
            term, hidden, random = "mlm", objective.mask_share, objective.random_share
        case Electra():
            term, hidden, random = "generator", objective.mask_share, 0.0
        case _:
            return {}
    labels, seen = _labels_and_inputs(held_out)
    special = torch.from_numpy(tokenizer.special_mask)
    framing = torch.bincount(labels[special[labels]], minlength=len(special)) / max(int((~special[labels]).sum()), 1)
    count = (torch.from_numpy(counts()).double() + 1.0).masked_fill(special, 0.0)
    count += framing * count.sum()
    share = count / count.sum()
    if term == "causal":
        return {term: float(-share[labels].log().mean())}
    itself = (1.0 - hidden - random) * share
    itself /= (itself + random / int((~special).sum())).clamp_min(torch.finfo(torch.float64).tiny)
    sure = torch.where(seen == tokenizer.mask_id, 0.0, itself[seen])
    return {term: float(-((1.0 - sure) * share[labels] + sure * (seen == labels)).log().mean())}


def _labels_and_inputs(batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
    """(targets,) the tokens that are to be told, and what stands in their places."""
    labels, seen = [], []
    for batch in batches:
        assert batch.positions is not None
        assert batch.labels is not None
        labels.append(batch.labels)
        seen.append(batch.input_ids.flatten()[batch.positions])
    return torch.cat(labels), torch.cat(seen)
