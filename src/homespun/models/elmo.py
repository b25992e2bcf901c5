"""Head of ELMo's bidirectional language model, which predicts the next word in each direction.

The backbone is a recurrent stack with independent directions: the left half of a hidden state depends on earlier
tokens, the right half on later tokens. Both directions share one softmax (Peters et al. 2018, section 3.1).
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


def _check_order(cutoffs: tuple[int, ...]) -> tuple[int, ...]:
    if list(cutoffs) != sorted(set(cutoffs)):
        raise ValueError(f"cutoffs={list(cutoffs)} must be increasing, the lowest first, each once")
    return cutoffs


Cutoffs = Annotated[
    tuple[Annotated[int, Field(ge=1)], ...],
    AfterValidator(_check_order),
    Field(description="adaptive softmax: first word of each group after the first; empty: by vocabulary size"),
]
_CUTOFFS = (2_000, 10_000, 50_000, 200_000)
_DIV_VALUE = 2  # width of each group divided by that of the next; 4 in Grave et al. 2017, for wider vectors


class FullSoftmax(nn.Module):
    """Softmax over all words, in bounded memory."""

    def __init__(self, vocab_size: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocab_size, width)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def loss(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor | None]:
        """Compute the sum of the cross-entropies and the number of labels with the highest logit.

        Args:
            features: (targets, width).
            labels: (targets,) int64 words.
        """
        prediction = predict_tokens(features, self.words.weight, self.bias, labels)
        return prediction.loss, prediction.correct

    def scores(self, features: Tensor) -> Tensor:
        """Map (..., width) to (..., vocab) logits."""
        return F.linear(features, self.words.weight, self.bias)


class AdaptiveSoftmax(nn.Module):
    """Adaptive softmax (Grave et al. 2017); word ids must be sorted by decreasing frequency.

    Args:
        vocab_size: number of words.
        width: width of the features.
        cutoffs: first word of each group after the first.
    """

    def __init__(self, vocab_size: int, width: int, cutoffs: tuple[int, ...]) -> None:
        super().__init__()
        self.network = nn.AdaptiveLogSoftmaxWithLoss(width, vocab_size, list(cutoffs), div_value=float(_DIV_VALUE))

    def loss(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor | None]:
        """Compute the loss as `FullSoftmax.loss`; the number of correct labels, which needs all logits, is None."""
        if not len(labels):
            return features.sum() * 0.0, None
        with torch.autocast(features.device.type, enabled=False):
            return -self.network(_to_float32(features), labels).output.sum(), None

    def scores(self, features: Tensor) -> Tensor:
        """Map (..., width) to (..., vocab) log probabilities."""
        with torch.autocast(features.device.type, enabled=False):
            log_probs: Tensor = self.network.log_prob(_to_float32(features).flatten(0, -2))
        return log_probs.view(*features.shape[:-1], -1)


def _to_float32(features: Tensor) -> Tensor:
    """Convert to float32 or wider; the network adds log probabilities in the dtype of its input."""
    return features.to(torch.promote_types(features.dtype, torch.float32))


class BiLMHead(nn.Module):
    """Softmax shared by both directions.

    Args:
        softmax: `FullSoftmax` or `AdaptiveSoftmax` on half of the backbone's width.
    """

    def __init__(self, softmax: FullSoftmax | AdaptiveSoftmax) -> None:
        super().__init__()
        self.softmax = softmax

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Map (..., 2 * width) to (..., 2, vocab) scores of the next and the previous word."""
        return self.softmax.scores(hidden.view(*hidden.shape[:-1], 2, -1))


class BiLMHeadConfig(HeadSettings):
    """Config of `BiLMHead`."""

    kind: Literal["bilm"] = "bilm"
    softmax: Softmax = "full"
    cutoffs: Cutoffs = ()

    def build(self, backbone: Backbone) -> BiLMHead:
        """Build the head; raises `UserError` for invalid cutoffs."""
        vocab_size, width = backbone.embeddings.vocab_size, backbone.hidden_size // 2
        if self.softmax == "full":
            return BiLMHead(FullSoftmax(vocab_size, width))
        cutoffs = self.cutoffs or cutoffs_for(vocab_size)
        if cutoffs[-1] >= vocab_size or width < _DIV_VALUE ** len(cutoffs):
            raise UserError(
                f"cutoffs={list(cutoffs)} of an adaptive softmax must be below vocab_size={vocab_size}, and each "
                f"halves the width of {width}; change or remove cutoffs"
            )
        return BiLMHead(AdaptiveSoftmax(vocab_size, width, cutoffs))


def cutoffs_for(vocab_size: int) -> tuple[int, ...]:
    """Default cutoffs of an adaptive softmax."""
    return tuple(cut for cut in _CUTOFFS if 2 * cut <= vocab_size) or (max(1, vocab_size // 4),)
