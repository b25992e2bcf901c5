"""Interface of heads, and token heads for pretraining and tasks.

Heads take ``(hidden, attention_mask)``. Token heads ignore the mask and accept any leading shape, so that an objective
can pass only hidden states with a label.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Protocol

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
NumLabels = Annotated[int, Field(ge=1, description="number of classes; set from the labels in fine-tuning")]


class Reader(Protocol):
    """Interface of functions from ids and context to the hidden states for the head."""

    def __call__(self, backbone: Backbone, input_ids: Tensor, **context: Tensor) -> Tensor: ...


def last_layer(backbone: Backbone, input_ids: Tensor, **context: Tensor) -> Tensor:
    """Compute the (batch, seq, hidden) hidden states of the backbone for (batch, seq) ids."""
    return backbone(input_ids, **context)


def enhanced_mask_decoder(backbone: Backbone, input_ids: Tensor, **context: Tensor) -> Tensor:
    """Map (batch, seq) ids to (batch, seq, hidden) of `Encoder.decode_masked` if the backbone has late positions."""
    stack = backbone.stacks[0]
    if backbone.has_decoder or stack.embeddings.late is None:
        return last_layer(backbone, input_ids, **context)
    return stack.decode_masked(input_ids, **context)


class HeadSettings(Config):
    """Base of the configs of heads.

    Attributes:
        kept_by_student: `homespun.models.weight_transfer.build_student` keeps the head.
    """

    kept_by_student: ClassVar[bool] = False
    kind: str

    @property
    def reader(self) -> Reader:
        """Function that selects the hidden states for the head."""
        return last_layer

    @property
    def task_kind(self) -> str:
        """Kind of the head, or of the inner head of a mix of layers."""
        return self.kind

    @property
    def pipeline(self) -> str | None:
        """Name of the task on the Hugging Face hub; None without one."""
        return None

    @property
    def reads_first_token(self) -> bool:
        """True if the head reads the first token only."""
        return False

    def build(self, backbone: Backbone) -> nn.Module:
        """Build and initialise the head."""
        raise NotImplementedError


class LanguageModelHead(nn.Module):
    """Interface of heads that predict tokens: ``features(hidden) weight^T + bias``.

    Attributes:
        weight: (vocab, embedding).
        bias: (vocab,).
    """

    weight: Tensor
    bias: Tensor

    def features(self, hidden: Tensor) -> Tensor:
        """Map (..., hidden) to (..., embedding)."""
        raise NotImplementedError

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Map (..., hidden) to (..., vocab) logits."""
        return F.linear(self.features(hidden), self.weight, self.bias)

    def predict(
        self, hidden: Tensor, labels: Tensor, *, uniforms: Tensor | None = None, label_smoothing: float = 0.0
    ) -> TokenPrediction:
        """Apply `predict_tokens` to (targets, hidden) and (targets,) labels, in bounded memory."""
        return predict_tokens(
            self.features(hidden), self.weight, self.bias, labels, uniforms=uniforms, label_smoothing=label_smoothing
        )


class MaskedLMHead(LanguageModelHead):
    """BERT's head: linear layer, activation, norm, tied word embeddings with a bias.

    The linear layer projects to the width of the embeddings, as in ELECTRA's generator.

    Args:
        hidden_size: width of the hidden states.
        words: word embeddings of the backbone.
        activation: activation after the linear layer.
        layer_norm_eps: epsilon of the norm.
        transform_bias, norm_bias: add biases to the linear layer and the norm.
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
        """Map (..., hidden) to (..., embedding)."""
        return self.norm(self.activation(self.transform(hidden)))


class CausalLMHead(LanguageModelHead):
    """Output embeddings without a bias (GPT-2), after a projection if they are narrower than the hidden states.

    Args:
        hidden_size: width of the hidden states.
        words: output embeddings, tied if they are those of the backbone.
        final_logits_bias: save the constant bias of the logits in the state dict (BART).
        scaled: multiply features by ``hidden_size^-0.5`` (T5 1.0).
        transform_bias: add a bias to the projection.
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
        """Output embeddings, (vocab, embedding)."""
        return self.words.weight

    def features(self, hidden: Tensor) -> Tensor:
        """Map (..., hidden) to (..., embedding)."""
        features: Tensor = self.transform(hidden)
        return features if self.scale == 1.0 else features * self.scale


class DiscriminatorHead(nn.Module):
    """Linear layer, activation and one logit a token, positive for replaced tokens (ELECTRA, Clark et al. 2020)."""

    def __init__(self, hidden_size: int, activation: nn.Module) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.activation = activation
        self.classifier = nn.Linear(hidden_size, 1)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Map (..., hidden) to (...) logits."""
        return self.classifier(self.activation(self.dense(hidden))).squeeze(-1)


class NextSentenceHead(nn.Module):
    """BERT's pooler on the first token and two classes: 0 next sentence, 1 random (Devlin et al. 2019)."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.pooler = nn.Linear(hidden_size, hidden_size)
        self.activation = nn.Tanh()
        self.classifier = nn.Linear(hidden_size, 2)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Map (batch, seq, hidden) to (batch, 2) logits."""
        return self.classifier(self.activation(self.pooler(hidden[:, 0])))


class TokenClassificationHead(nn.Module):
    """Dropout and linear layer on every token (Devlin et al. 2019, section 5.3)."""

    def __init__(self, hidden_size: int, num_labels: int, *, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(hidden_size, num_labels)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Map (batch, seq, hidden) to (batch, seq, labels) logits."""
        return self.classifier(self.dropout(hidden))


class QuestionAnsweringHead(nn.Module):
    """Start and end logits of an answer at every token: feed-forward, dropout and linear layer.

    ``feedforward`` is the identity in BERT (Devlin et al. 2019, section 4.2).
    """

    def __init__(self, hidden_size: int, feedforward: nn.Module, *, dropout: float) -> None:
        super().__init__()
        self.feedforward = feedforward
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(hidden_size, 2)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Map (batch, seq, hidden) to (batch, seq, 2) logits of start and end."""
        return self.classifier(self.dropout(self.feedforward(hidden)))


class PoolerHead(nn.Module):
    """Text embedding: linear layer and activation on the first token (BERT's pooler)."""

    def __init__(self, hidden_size: int, activation: nn.Module) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.activation = activation

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Map (batch, seq, hidden) to (batch, hidden)."""
        return self.activation(self.dense(hidden[:, 0]))


class MaskedLMHeadConfig(HeadSettings):
    """Config of `MaskedLMHead`."""

    kept_by_student: ClassVar[bool] = True
    kind: Literal["masked_lm"] = "masked_lm"
    hidden_act: Activation = "gelu"
    transform_bias: bool = Field(default=True, description="bias of the linear layer (not in ModernBERT)")
    norm_bias: bool = Field(default=True, description="bias of the norm (not in ModernBERT)")

    @property
    def pipeline(self) -> str:
        return "fill-mask"

    @property
    def reader(self) -> Reader:
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
    """Config of `CausalLMHead`."""

    kind: Literal["causal_lm"] = "causal_lm"
    tie_word_embeddings: bool = Field(default=True, description="output embeddings are the input embeddings")
    final_logits_bias: bool = Field(default=False, description="constant bias of the logits (BART)")
    scaled: bool = Field(default=False, description="multiply hidden states by hidden_size^-0.5 (T5 1.0)")
    transform_bias: bool = Field(default=True, description="bias of the projection to narrower embeddings")

    @property
    def pipeline(self) -> str:
        return "text-generation"

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
    """Config of `DiscriminatorHead`."""

    kind: Literal["discriminator"] = "discriminator"
    hidden_act: Activation = "gelu"

    def build(self, backbone: Backbone) -> nn.Module:
        return DiscriminatorHead(backbone.hidden_size, ACTIVATIONS[self.hidden_act]())


class TokenClassificationHeadConfig(HeadSettings):
    """Config of `TokenClassificationHead`."""

    kind: Literal["token_classification"] = "token_classification"
    num_labels: NumLabels = 2
    dropout: Probability = 0.1

    @property
    def pipeline(self) -> str:
        return "token-classification"

    def build(self, backbone: Backbone) -> TokenClassificationHead:
        return TokenClassificationHead(backbone.hidden_size, self.num_labels, dropout=self.dropout)


class QuestionAnsweringHeadConfig(HeadSettings):
    """Config of `QuestionAnsweringHead`."""

    kind: Literal["question_answering"] = "question_answering"
    dropout: Probability = 0.0

    @property
    def pipeline(self) -> str:
        return "question-answering"

    def build(self, backbone: Backbone) -> QuestionAnsweringHead:
        return QuestionAnsweringHead(backbone.hidden_size, nn.Identity(), dropout=self.dropout)


class FeedForwardAnsweringHeadConfig(HeadSettings):
    """Config of `QuestionAnsweringHead` with a feed-forward sublayer (BigBird)."""

    kind: Literal["question_answering_ffn"] = "question_answering_ffn"
    intermediate_size: Annotated[int, Field(ge=1)] = 1024
    hidden_act: Activation = "gelu"
    dropout: Probability = 0.1

    @property
    def pipeline(self) -> str:
        return "question-answering"

    def build(self, backbone: Backbone) -> QuestionAnsweringHead:
        size = backbone.hidden_size
        inner = FeedForward(size, self.intermediate_size, ACTIVATIONS[self.hidden_act]())
        norm = nn.LayerNorm(size, eps=backbone.layer_norm_eps)
        dropped = nn.Sequential(nn.Dropout(self.dropout), inner)
        return QuestionAnsweringHead(size, PostNorm(dropped, norm, nn.Dropout(self.dropout)), dropout=0.0)


class PoolerHeadConfig(HeadSettings):
    """Config of `PoolerHead`."""

    kind: Literal["pooler"] = "pooler"
    hidden_act: Activation = "tanh"

    def build(self, backbone: Backbone) -> PoolerHead:
        return PoolerHead(backbone.hidden_size, ACTIVATIONS[self.hidden_act]())


TokenTaskHeadConfig = Annotated[
    TokenClassificationHeadConfig | QuestionAnsweringHeadConfig | FeedForwardAnsweringHeadConfig | PoolerHeadConfig,
    Field(discriminator="kind"),
]
