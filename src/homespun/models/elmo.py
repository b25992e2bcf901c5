"""Head of ELMo's bidirectional language model: the next word in each direction.

The backbone is a recurrent stack whose directions are ``apart``: the left half of a vector has read what comes before,
the right half what comes after. Both tell words by one softmax (Peters et al. 2018, section 3.1).
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import AfterValidator, Field
from torch import Tensor, nn
from torch.nn import functional as F

from homespun.errors import UserError
from homespun.models.backbone import Backbone
from homespun.models.heads import HeadSettings
from homespun.nn.vocabulary_loss import predict_tokens

Softmax = Literal["full", "adaptive"]


def _ordered(cutoffs: tuple[int, ...]) -> tuple[int, ...]:
    if list(cutoffs) != sorted(set(cutoffs)):
        raise ValueError(f"cutoffs are words by number, the lowest first, each once, not {list(cutoffs)}")
    return cutoffs


Cutoffs = Annotated[
    tuple[Annotated[int, Field(ge=1)], ...],
    AfterValidator(_ordered),
    Field(description="adaptive: the first word of each group after the first; by the vocabulary where not given"),
]
_CUTS = (2_000, 10_000, 50_000, 200_000)  # where the groups of an adaptive softmax end
_NARROWER = 2  # each group of rarer words has vectors so many times narrower: 4 in Grave et al. 2017, of wider ones


class FullSoftmax(nn.Module):
    """A vector and a bias for every word; the logits are never held all at once."""

    def __init__(self, vocab_size: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocab_size, width)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def loss(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor | None]:
        """The sum of the cross entropies, and how many labels have the highest logit."""
        prediction = predict_tokens(features, self.words.weight, self.bias, labels)
        return prediction.loss, prediction.correct

    def scores(self, features: Tensor) -> Tensor:
        """(..., width) -> (..., vocab) logits."""
        return F.linear(features, self.words.weight, self.bias)


class AdaptiveSoftmax(nn.Module):
    """Frequent words first, and rarer ones in groups that are looked into only where one of them is meant (Grave et al.
    2017). Words must be numbered by how frequent they are.

    Args:
        vocab_size: words.
        width: of the vectors that they are told from.
        cutoffs: where the groups begin, but for the first, which begins at 0.
    """

    def __init__(self, vocab_size: int, width: int, cutoffs: tuple[int, ...]) -> None:
        super().__init__()
        self.network = nn.AdaptiveLogSoftmaxWithLoss(width, vocab_size, list(cutoffs), div_value=float(_NARROWER))

    def loss(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor | None]:
        """The sum of the cross entropies. Which word is the likeliest would take all of the softmax."""
        if not len(labels):
            return features.sum() * 0.0, None
        with torch.autocast(features.device.type, enabled=False):
            return -self.network(_full(features), labels).output.sum(), None

    def scores(self, features: Tensor) -> Tensor:
        """(..., width) -> (..., vocab) logarithms of probabilities."""
        with torch.autocast(features.device.type, enabled=False):
            found: Tensor = self.network.log_prob(_full(features).flatten(0, -2))
        return found.view(*features.shape[:-1], -1)


def _full(features: Tensor) -> Tensor:
    """In float32 at least: the groups' logarithms are put together in the features' type."""
    return features.to(torch.promote_types(features.dtype, torch.float32))


class BiLMHead(nn.Module):
    """One softmax for both directions.

    Args:
        softmax: `FullSoftmax` or `AdaptiveSoftmax`, over half of the backbone's width.
    """

    def __init__(self, softmax: FullSoftmax | AdaptiveSoftmax) -> None:
        super().__init__()
        self.softmax = softmax

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """(..., 2 * width) -> (..., 2, vocab): of the word that comes next, and of the one that came before."""
        return self.softmax.scores(hidden.view(*hidden.shape[:-1], 2, -1))

    def loss(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor | None]:
        """(targets, width) of one direction against (targets,): the sum of the cross entropies, and how many labels are
        the likeliest, where the softmax knows."""
        return self.softmax.loss(features, labels)


class BiLMHeadConfig(HeadSettings):
    """`BiLMHead`."""

    kind: Literal["bilm"] = "bilm"
    softmax: Softmax = "full"
    cutoffs: Cutoffs = ()

    def build(self, backbone: Backbone) -> BiLMHead:
        """The head of a backbone whose directions are apart.

        Raises:
            UserError: an adaptive softmax that cannot be.
        """
        vocab_size, width = backbone.embeddings.vocab_size, backbone.hidden_size // 2
        if self.softmax == "full":
            return BiLMHead(FullSoftmax(vocab_size, width))
        cutoffs = self.cutoffs or cutoffs_for(vocab_size)
        if cutoffs[-1] >= vocab_size or width < _NARROWER ** len(cutoffs):
            raise UserError(
                f"an adaptive softmax over {vocab_size} words from vectors of {width} cannot have the cutoffs "
                f"{list(cutoffs)}: they are below the vocabulary, and each halves the vectors; give others or fewer"
            )
        return BiLMHead(AdaptiveSoftmax(vocab_size, width, cutoffs))


def cutoffs_for(vocab_size: int) -> tuple[int, ...]:
    """Cutoffs of an adaptive softmax for a vocabulary size."""
    return tuple(cut for cut in _CUTS if 2 * cut <= vocab_size) or (max(1, vocab_size // 4),)
