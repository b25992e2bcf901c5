"""Heads over the tokens of a text, for tasks: a label for each, the ends of an answer, the vector of the first one.

Every head takes ``(hidden, attention_mask)`` with ``hidden`` (batch, seq, hidden), and treats each vector alone: what
stands in the padding has no say in the logits of real tokens, and its own logits are nobody's.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor, nn

from homespun.config import Config
from homespun.models.activation import Activation
from homespun.models.backbone import Backbone
from homespun.models.sequence_heads import NumLabels, Probability
from homespun.nn.feedforward import ACTIVATIONS, FeedForward
from homespun.nn.residual import PostNorm


class TokenClassificationHead(nn.Module):
    """Dropout -> linear over every token (Devlin et al. 2019, section 5.3)."""

    def __init__(self, hidden_size: int, num_labels: int, *, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(hidden_size, num_labels)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """(batch, seq, hidden) -> (batch, seq, labels) logits."""
        logits: Tensor = self.classifier(self.dropout(hidden))
        return logits


class QuestionAnsweringHead(nn.Module):
    """Start and end logits of an answer at every token: dropout, then a linear layer to two.

    ``feedforward``: what is made of the vectors first; BERT makes nothing (Devlin et al. 2019, section 4.2).
    """

    def __init__(self, hidden_size: int, feedforward: nn.Module, *, dropout: float) -> None:
        super().__init__()
        self.feedforward = feedforward
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(hidden_size, 2)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """(batch, seq, hidden) -> (batch, seq, 2) logits, of start and end."""
        logits: Tensor = self.classifier(self.dropout(self.feedforward(hidden)))
        return logits


class PoolerHead(nn.Module):
    """First token -> dense -> activation: one vector a text, as BERT's next-sentence task trained it."""

    def __init__(self, hidden_size: int, activation: nn.Module) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.activation = activation

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """(batch, seq, hidden) -> (batch, hidden)."""
        pooled: Tensor = self.activation(self.dense(hidden[:, 0]))
        return pooled


class TokenClassificationHeadConfig(Config):
    """`TokenClassificationHead`."""

    kind: Literal["token_classification"] = "token_classification"
    num_labels: NumLabels = 2
    dropout: Probability = 0.1

    def build(self, backbone: Backbone) -> TokenClassificationHead:
        return TokenClassificationHead(backbone.hidden_size, self.num_labels, dropout=self.dropout)


class QuestionAnsweringHeadConfig(Config):
    """`QuestionAnsweringHead`."""

    kind: Literal["question_answering"] = "question_answering"
    dropout: Probability = 0.0

    def build(self, backbone: Backbone) -> QuestionAnsweringHead:
        return QuestionAnsweringHead(backbone.hidden_size, nn.Identity(), dropout=self.dropout)


class FeedForwardAnsweringHeadConfig(Config):
    """`QuestionAnsweringHead` over a normalised feed-forward sublayer (BigBird), with dropout on the way in and out."""

    kind: Literal["question_answering_ffn"] = "question_answering_ffn"
    intermediate_size: Annotated[int, Field(ge=1)] = 1024
    hidden_act: Activation = "gelu"
    dropout: Probability = 0.1

    def build(self, backbone: Backbone) -> QuestionAnsweringHead:
        size = backbone.hidden_size
        inner = FeedForward(size, self.intermediate_size, ACTIVATIONS[self.hidden_act]())
        norm = nn.LayerNorm(size, eps=backbone.layer_norm_eps)
        dropped = nn.Sequential(nn.Dropout(self.dropout), inner)
        return QuestionAnsweringHead(size, PostNorm(dropped, norm, nn.Dropout(self.dropout)), dropout=0.0)


class PoolerHeadConfig(Config):
    """`PoolerHead`."""

    kind: Literal["pooler"] = "pooler"
    hidden_act: Activation = "tanh"

    def build(self, backbone: Backbone) -> PoolerHead:
        return PoolerHead(backbone.hidden_size, ACTIVATIONS[self.hidden_act]())


TokenTaskHeadConfig = Annotated[
    TokenClassificationHeadConfig | QuestionAnsweringHeadConfig | FeedForwardAnsweringHeadConfig | PoolerHeadConfig,
    Field(discriminator="kind"),
]
