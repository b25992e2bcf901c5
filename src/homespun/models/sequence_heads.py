"""Sequence heads, which map the hidden states of all tokens to the logits of a text.

`head(hidden, attention_mask, chunks)` takes `hidden` (batch, seq, hidden) and `attention_mask` (batch, seq) bool or
``None`` and returns logits (batch, labels), ``classifier(dropout(features))``. Padding on the right does not change the
logits, and rows with only padding give no NaN. With `Batch.chunks`, logits (texts, labels) are means over the chunks of
a text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, Protocol

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from homespun.models.heads import HeadSettings, NumLabels, Probability
from homespun.models.layer_parts import Activation
from homespun.nn.layers import ACTIVATIONS

Width = Annotated[int, Field(ge=1)]


class HasHiddenSize(Protocol):
    """Properties of a backbone that sequence heads need."""

    @property
    def hidden_size(self) -> int: ...

    @property
    def layer_norm_eps(self) -> float: ...


class SequenceHead(nn.Module):
    """Interface of sequence heads: features, dropout and a linear classifier.

    Attributes:
        reads_first_token: `features` reads the first token only.
    """

    reads_first_token: bool = False
    dropout: nn.Dropout
    classifier: nn.Linear

    def features(self, hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Map (batch, seq, hidden) to (batch, width)."""
        raise NotImplementedError

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None, chunks: Tensor | None = None) -> Tensor:
        """Map (batch, seq, hidden) to (batch, labels) logits, or (texts, labels) means over ``chunks``."""
        logits: Tensor = self.classifier(self.dropout(self.features(hidden, attention_mask)))
        return logits if chunks is None else mean_token(*gather_chunks(logits, chunks))


def gather_chunks(values: Tensor, chunks: Tensor) -> tuple[Tensor, Tensor]:
    """Gather (batch, width) values of chunks by text.

    Returns:
        (texts, chunks, width) values, zero for missing chunks, and a (texts, chunks) mask.
    """
    keep = chunks >= 0  # (texts, chunks)
    # masked after gathering: missing chunks read the value of another text, which may be NaN
    return values[chunks.clamp(min=0)].masked_fill(~keep[..., None], 0.0), keep


def first_token(hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Map (batch, seq, hidden) to (batch, hidden)."""
    return hidden[:, 0]


def last_token(hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Map (batch, seq, hidden) to (batch, hidden) of the last real token."""
    if attention_mask is None:
        return hidden[:, -1]
    positions = torch.arange(hidden.shape[1], device=hidden.device)
    last = (positions * attention_mask).argmax(dim=1)  # (batch,), 0 if all is padding
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), last]  # torch.export would make len() a constant


def mean_token(hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Map (batch, seq, hidden) to (batch, hidden) mean of the real tokens."""
    if attention_mask is None:
        return hidden.mean(dim=1)
    count = attention_mask.sum(dim=1, keepdim=True).clamp(min=1)
    return _without_padding(hidden, attention_mask).sum(dim=1) / count


PICKS: dict[str, Callable[[Tensor, Tensor | None], Tensor]] = {
    "first": first_token,
    "last": last_token,
    "mean": mean_token,
}


class LinearHead(SequenceHead):
    """Dropout and linear layer on one token or the mean.

    The mean is for encoders without a trained [CLS] token (ELECTRA), the last token without a bias for causal models
    (GPT-2).

    Args:
        hidden_size: width of the hidden states.
        num_labels: number of classes.
        dropout: before the classifier.
        pick: (batch, seq, hidden) and mask -> (batch, hidden); one of `PICKS`.
        bias: add a bias to the classifier.
    """

    def __init__(
        self,
        hidden_size: int,
        num_labels: int,
        *,
        dropout: float,
        pick: Callable[[Tensor, Tensor | None], Tensor] = first_token,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.pick = pick
        self.reads_first_token = pick is first_token
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(hidden_size, num_labels, bias=bias)

    def features(self, hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
        return self.pick(hidden, attention_mask)


class PooledHead(SequenceHead):
    """Pooler and classifier: dropout, linear layer, activation, norm, dropout, linear layer.

    BERT: tanh without ``input_dropout`` and norm. RoBERTa and ELECTRA (GELU): the same dropout twice. DistilBERT: ReLU.
    Reformer: ``pooler_size`` of one stream. BART: last token. ModernBERT: norm, no bias.
    """

    def __init__(
        self,
        hidden_size: int,
        num_labels: int,
        activation: nn.Module,
        *,
        pooler_size: int,
        dropout: float,
        input_dropout: float,
        pick: Callable[[Tensor, Tensor | None], Tensor] = first_token,
        bias: bool = True,
        norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.pick = pick
        self.reads_first_token = pick is first_token
        self.input_dropout = nn.Dropout(input_dropout)
        self.dense = nn.Linear(hidden_size, pooler_size, bias=bias)
        self.activation = activation
        self.norm = norm or nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(pooler_size, num_labels)

    def features(self, hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
        pooled = self.input_dropout(self.pick(hidden, attention_mask))
        return self.norm(self.activation(self.dense(pooled)))


class ConvolutionalHead(SequenceHead):
    """Convolutions, ReLU, max pooling over the text, dropout and linear layer (Kim 2014).

    Filters start at every real token and read zeros beyond the end of the text.
    """

    def __init__(
        self, hidden_size: int, num_labels: int, *, filters: int, filter_sizes: tuple[int, ...], dropout: float
    ) -> None:
        super().__init__()
        self.filter_sizes = filter_sizes
        self.convolutions = nn.ModuleList(nn.Conv1d(hidden_size, filters, size) for size in filter_sizes)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(filters * len(filter_sizes), num_labels)

    def features(self, hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
        channels = _without_padding(hidden, attention_mask).transpose(1, 2)  # (batch, hidden, seq)
        features = []
        for size, convolution in zip(self.filter_sizes, self.convolutions, strict=True):
            outputs = convolution(nn.functional.pad(channels, (0, size - 1))).relu()  # (batch, filters, seq)
            if attention_mask is not None:
                outputs = outputs.masked_fill(~attention_mask[:, None], 0.0)  # the minimum of a ReLU
            features.append(outputs.amax(dim=2))
        return torch.cat(features, dim=1)


class BiLSTMHead(SequenceHead):
    """Two bidirectional LSTM layers over the real tokens, dropout and linear layer on the final states."""

    def __init__(self, hidden_size: int, num_labels: int, *, lstm_size: int, dropout: float) -> None:
        super().__init__()
        self.lstm = nn.LSTM(hidden_size, lstm_size, num_layers=2, bidirectional=True, batch_first=True, dropout=dropout)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(2 * lstm_size, num_labels)

    def features(self, hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
        if attention_mask is None:
            _, (states, _) = self.lstm(hidden)
        else:
            lengths = attention_mask.sum(dim=1).clamp(min=1).cpu()
            tokens = _without_padding(hidden, attention_mask)
            packed = pack_padded_sequence(tokens, lengths, batch_first=True, enforce_sorted=False)
            _, (states, _) = self.lstm(packed)
        return torch.cat([states[-2], states[-1]], dim=1)  # (batch, 2 * lstm_size) of the upper layer


def _without_padding(hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
    # not a product: 0 * NaN is NaN
    return hidden if attention_mask is None else hidden.masked_fill(~attention_mask[..., None], 0.0)


class SequenceHeadSettings(HeadSettings):
    """Base of the configs of sequence heads."""

    num_labels: NumLabels = 2
    dropout: Probability = 0.1

    @property
    def pipeline(self) -> str:
        return "text-classification"


class LinearHeadConfig(SequenceHeadSettings):
    """Config of `LinearHead` on the first token, the smallest head and the most stable one with few examples."""

    kind: Literal["linear"] = "linear"

    @property
    def reads_first_token(self) -> bool:
        return True

    def build(self, backbone: HasHiddenSize) -> LinearHead:
        return LinearHead(backbone.hidden_size, self.num_labels, dropout=self.dropout)


class MeanHeadConfig(SequenceHeadSettings):
    """Config of `LinearHead` on the mean of the real tokens."""

    kind: Literal["mean"] = "mean"

    def build(self, backbone: HasHiddenSize) -> LinearHead:
        return LinearHead(backbone.hidden_size, self.num_labels, dropout=self.dropout, pick=mean_token)


class LastTokenHeadConfig(SequenceHeadSettings):
    """Config of `LinearHead` on the last real token, without a bias."""

    kind: Literal["last"] = "last"

    def build(self, backbone: HasHiddenSize) -> LinearHead:
        return LinearHead(backbone.hidden_size, self.num_labels, dropout=self.dropout, pick=last_token, bias=False)


class FeedForwardHeadConfig(SequenceHeadSettings):
    """Config of the `PooledHead` of ELECTRA: the same dropout before and after a linear layer of the hidden size."""

    kind: Literal["ffn"] = "ffn"
    hidden_act: Activation = "gelu"

    @property
    def reads_first_token(self) -> bool:
        return True

    def build(self, backbone: HasHiddenSize) -> PooledHead:
        size, activation = backbone.hidden_size, ACTIVATIONS[self.hidden_act]()
        return PooledHead(
            size, self.num_labels, activation, pooler_size=size, dropout=self.dropout, input_dropout=self.dropout
        )


class PooledHeadConfig(SequenceHeadSettings):
    """Config of `PooledHead`."""

    kind: Literal["pooled"] = "pooled"
    input_dropout: Probability = 0.0
    hidden_act: Activation = "tanh"
    pooler_size: Annotated[int, Field(ge=0, description="width of the pooler; 0: hidden_size")] = 0
    token: Literal["first", "last", "mean"] = Field(
        default="first", description="pooled token: last in BART, mean in ModernBERT"
    )
    bias: bool = Field(default=True, description="bias of the pooler (not in ModernBERT)")
    norm: Literal["none", "layer_norm"] = Field(default="none", description="norm after the activation (ModernBERT)")
    norm_bias: bool = Field(default=True, description="bias of the norm (not in ModernBERT)")

    @property
    def reads_first_token(self) -> bool:
        return self.token == "first"

    def build(self, backbone: HasHiddenSize) -> PooledHead:
        size = self.pooler_size or backbone.hidden_size
        norm = None
        if self.norm == "layer_norm":
            norm = nn.LayerNorm(size, eps=backbone.layer_norm_eps, bias=self.norm_bias)
        return PooledHead(
            backbone.hidden_size,
            self.num_labels,
            ACTIVATIONS[self.hidden_act](),
            pooler_size=size,
            dropout=self.dropout,
            input_dropout=self.input_dropout,
            pick=PICKS[self.token],
            bias=self.bias,
            norm=norm,
        )


class ConvolutionalHeadConfig(SequenceHeadSettings):
    """Config of `ConvolutionalHead`: `filters` of each width in `filter_sizes` (tokens)."""

    kind: Literal["cnn"] = "cnn"
    filters: Width = 100
    filter_sizes: Annotated[tuple[Width, ...], Field(min_length=1)] = (2, 3, 4)

    def build(self, backbone: HasHiddenSize) -> ConvolutionalHead:
        return ConvolutionalHead(
            backbone.hidden_size,
            self.num_labels,
            filters=self.filters,
            filter_sizes=self.filter_sizes,
            dropout=self.dropout,
        )


class BiLSTMHeadConfig(SequenceHeadSettings):
    """Config of `BiLSTMHead`: `lstm_size` is the width of one direction."""

    kind: Literal["bilstm"] = "bilstm"
    lstm_size: Width = 128

    def build(self, backbone: HasHiddenSize) -> BiLSTMHead:
        return BiLSTMHead(backbone.hidden_size, self.num_labels, lstm_size=self.lstm_size, dropout=self.dropout)


SequenceHeadConfig = Annotated[
    LinearHeadConfig
    | MeanHeadConfig
    | LastTokenHeadConfig
    | FeedForwardHeadConfig
    | PooledHeadConfig
    | ConvolutionalHeadConfig
    | BiLSTMHeadConfig,
    Field(discriminator="kind"),
]
