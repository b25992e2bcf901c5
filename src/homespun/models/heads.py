"""Heads on single tokens, of pretraining and of tasks, and the interface of all heads.

Every head takes ``(hidden, attention_mask)``. A token head maps each vector by itself and ignores the mask, so that an
objective can pass only the vectors that have a label, of any leading shape.
"""

from __future__ import annotations

from typing import Annotated, Literal, Protocol

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from homespun.config import Config
from homespun.models.backbone import Backbone
from homespun.models.layer_parts import Activation
from homespun.nn.layers import ACTIVATIONS, FeedForward, PostNorm
from homespun.nn.vocabulary_loss import TokenPrediction, predict_tokens

Probability = Annotated[float, Field(ge=0, lt=1)]
NumLabels = Annotated[int, Field(ge=1, description="classes; set from the labels in fine-tuning")]


class Reader(Protocol):
    """Function from ids and their context to the hidden states that the head reads."""

    def __call__(self, backbone: Backbone, input_ids: Tensor, **context: Tensor) -> Tensor: ...


def last_layer(backbone: Backbone, input_ids: Tensor, **context: Tensor) -> Tensor:
    """(batch, seq) ids -> (batch, seq, hidden): the hidden states of the backbone."""
    hidden: Tensor = backbone(input_ids, **context)
    return hidden


def enhanced_mask_decoder(backbone: Backbone, input_ids: Tensor, **context: Tensor) -> Tensor:
    """(batch, seq) ids -> (batch, seq, hidden) from which masked tokens are predicted, see `Encoder.decode_masked`."""
    stack = backbone.stacks[0]
    if backbone.has_decoder or stack.embeddings.late is None:
        return last_layer(backbone, input_ids, **context)
    return stack.decode_masked(input_ids, **context)


class HeadSettings(Config):
    """Base of the configs of heads: what the rest of the package asks of a head."""

    kind: str

    @property
    def reader(self) -> Reader:
        """Function that selects the hidden states that the head reads."""
        return last_layer

    @property
    def task_kind(self) -> str:
        """Kind of the head without a mix of layers below it."""
        return self.kind

    @property
    def reads_first_token(self) -> bool:
        """True if only the vector of the first token is read."""
        return False

    def build(self, backbone: Backbone) -> nn.Module:
        """A freshly initialised head for this backbone."""
        raise NotImplementedError


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


class MaskedLMHeadConfig(HeadSettings):
    """Hidden -> vocabulary through a transform and the tied embeddings."""

    kind: Literal["masked_lm"] = "masked_lm"
    hidden_act: Activation = "gelu"
    transform_bias: bool = Field(default=True, description="the transform has a bias (ModernBERT's has none)")
    norm_bias: bool = Field(default=True, description="the norm has a bias (ModernBERT's has none)")

    @property
    def reader(self) -> Reader:
        """The mask decoder, where the backbone has one."""
        return enhanced_mask_decoder

    def build(self, backbone: Backbone) -> nn.Module:
        return MaskedLMHead(
            backbone.hidden_size,
            backbone.embeddings.words,
            ACTIVATIONS[self.hidden_act](),
            layer_norm_eps=backbone.layer_norm_eps,
            transform_bias=self.transform_bias,
            norm_bias=self.norm_bias,
        )


class CausalLMHeadConfig(HeadSettings):
    """Hidden -> vocabulary through the embeddings alone (GPT-2), or others of their own (Reformer)."""

    kind: Literal["causal_lm"] = "causal_lm"
    tie_word_embeddings: bool = Field(default=True, description="the same embeddings at both ends")
    final_logits_bias: bool = Field(default=False, description="a fixed number is added to each logit (BART)")
    scaled: bool = Field(default=False, description="vectors times hidden_size^-0.5 first (T5 1.0)")
    transform_bias: bool = Field(default=True, description="the projection to narrower embeddings has a bias")

    def build(self, backbone: Backbone) -> nn.Module:
        words = backbone.embeddings.words
        if not self.tie_word_embeddings:
            words = nn.Embedding(words.num_embeddings, backbone.hidden_size)
        return CausalLMHead(
            backbone.hidden_size,
            words,
            final_logits_bias=self.final_logits_bias,
            scaled=self.scaled,
            transform_bias=self.transform_bias,
        )


class DiscriminatorHeadConfig(HeadSettings):
    """Hidden -> one logit a token: was it replaced? (ELECTRA)"""

    kind: Literal["discriminator"] = "discriminator"
    hidden_act: Activation = "gelu"

    def build(self, backbone: Backbone) -> nn.Module:
        return DiscriminatorHead(backbone.hidden_size, ACTIVATIONS[self.hidden_act]())


class TokenClassificationHeadConfig(HeadSettings):
    """`TokenClassificationHead`."""

    kind: Literal["token_classification"] = "token_classification"
    num_labels: NumLabels = 2
    dropout: Probability = 0.1

    def build(self, backbone: Backbone) -> TokenClassificationHead:
        return TokenClassificationHead(backbone.hidden_size, self.num_labels, dropout=self.dropout)


class QuestionAnsweringHeadConfig(HeadSettings):
    """`QuestionAnsweringHead`."""

    kind: Literal["question_answering"] = "question_answering"
    dropout: Probability = 0.0

    def build(self, backbone: Backbone) -> QuestionAnsweringHead:
        return QuestionAnsweringHead(backbone.hidden_size, nn.Identity(), dropout=self.dropout)


class FeedForwardAnsweringHeadConfig(HeadSettings):
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


class PoolerHeadConfig(HeadSettings):
    """`PoolerHead`."""

    kind: Literal["pooler"] = "pooler"
    hidden_act: Activation = "tanh"

    def build(self, backbone: Backbone) -> PoolerHead:
        return PoolerHead(backbone.hidden_size, ACTIVATIONS[self.hidden_act]())


TokenTaskHeadConfig = Annotated[
    TokenClassificationHeadConfig | QuestionAnsweringHeadConfig | FeedForwardAnsweringHeadConfig | PoolerHeadConfig,
    Field(discriminator="kind"),
]
