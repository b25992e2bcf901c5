"""Token heads: what stands on a backbone in pretraining. Heads over whole texts are in `sequence_heads`.

Every head takes ``(hidden, attention_mask)``. A token head treats each vector alone and does not look at the mask, so
that an objective can hand it only the vectors that have a label, of any leading shape.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from homespun.nn.vocabulary_loss import TokenPrediction, predict_tokens


class LanguageModelHead(nn.Module):
    """Interface of heads that predict tokens: features, times the word embeddings, plus a bias.

    Attributes:
        weight: (vocab, embedding).
        bias: (vocab,).
    """

    weight: Tensor
    bias: Tensor

    def features(self, hidden: Tensor) -> Tensor:
        """(..., hidden) -> (..., embedding): vectors that are multiplied by the word embeddings."""
        raise NotImplementedError

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """(..., hidden) -> (..., vocab) logits."""
        return F.linear(self.features(hidden), self.weight, self.bias)

    def predict(
        self, hidden: Tensor, labels: Tensor, *, uniforms: Tensor | None = None, label_smoothing: float = 0.0
    ) -> TokenPrediction:
        """(targets, hidden) against (targets,) labels, without ever holding all logits; see `predict_tokens`."""
        return predict_tokens(
            self.features(hidden), self.weight, self.bias, labels, uniforms=uniforms, label_smoothing=label_smoothing
        )


class MaskedLMHead(LanguageModelHead):
    """Transform, activation, norm, the tied word embeddings with a bias (Devlin et al. 2019, BERT's released head).

    The transform goes to the width of the embeddings, which makes it ELECTRA's generator head where they are narrower.

    Args:
        hidden_size: width of the stream.
        words: the embeddings of the backbone.
        activation: after the transform.
        layer_norm_eps: of the norm.
        transform_bias, norm_bias: whether the transform and the norm have biases.
    """

    def __init__(
        self,
        hidden_size: int,
        words: nn.Embedding,
        activation: nn.Module,
        *,
        layer_norm_eps: float,
        transform_bias: bool = True,
        norm_bias: bool = True,
    ) -> None:
        super().__init__()
        vocab_size, embedding_size = words.weight.shape
        self.transform = nn.Linear(hidden_size, embedding_size, bias=transform_bias)
        self.activation = activation
        self.norm = nn.LayerNorm(embedding_size, eps=layer_norm_eps, bias=norm_bias)
        self.weight = words.weight  # tied: the same parameter
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def features(self, hidden: Tensor) -> Tensor:
        """(..., hidden) -> (..., embedding)."""
        features: Tensor = self.norm(self.activation(self.transform(hidden)))
        return features


class CausalLMHead(LanguageModelHead):
    """The word embeddings alone (GPT-2); a projection first where they are narrower than the stream.

    Args:
        hidden_size: width of the stream.
        words: the embeddings of the backbone, which are then tied, or others.
        final_logits_bias: a number that is added to each logit is kept with the weights, and not learned (BART).
        scaled: the vectors are multiplied by ``hidden_size^-0.5`` first (T5 1.0, whose words are large).
        transform_bias: whether the projection has a bias.
    """

    def __init__(
        self,
        hidden_size: int,
        words: nn.Embedding,
        *,
        final_logits_bias: bool = False,
        scaled: bool = False,
        transform_bias: bool = True,
    ) -> None:
        super().__init__()
        vocab_size, embedding_size = words.weight.shape
        self.scale = hidden_size**-0.5 if scaled else 1.0
        narrow = embedding_size != hidden_size
        self.transform = nn.Linear(hidden_size, embedding_size, bias=transform_bias) if narrow else nn.Identity()
        self.words = words
        self.register_buffer("bias", torch.zeros(vocab_size), persistent=final_logits_bias)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]  # read-only here
        """(vocab, embedding)."""
        return self.words.weight

    def features(self, hidden: Tensor) -> Tensor:
        """(..., hidden) -> (..., embedding)."""
        features: Tensor = self.transform(hidden)
        return features if self.scale == 1.0 else features * self.scale


class DiscriminatorHead(nn.Module):
    """Dense, activation, one logit a token: above zero means *replaced* (Clark et al. 2020)."""

    def __init__(self, hidden_size: int, activation: nn.Module) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.activation = activation
        self.classifier = nn.Linear(hidden_size, 1)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """(..., hidden) -> (...) logits."""
        logits: Tensor = self.classifier(self.activation(self.dense(hidden)))
        return logits.squeeze(-1)


class NextSentenceHead(nn.Module):
    """BERT's pooler on the first token, and two classes: 0 follows, 1 is random (Devlin et al. 2019)."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.pooler = nn.Linear(hidden_size, hidden_size)
        self.activation = nn.Tanh()
        self.classifier = nn.Linear(hidden_size, 2)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """(batch, seq, hidden) -> (batch, 2) logits."""
        logits: Tensor = self.classifier(self.activation(self.pooler(hidden[:, 0])))
        return logits
