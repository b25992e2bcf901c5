"""Teacher forcing of a decoder, for BART, T5, PEGASUS, ProphetNet and fine-tuning on pairs of texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Protocol

import numpy as np
import torch
from pydantic import Field

from homespun.batch import Batch, Loss, RowSeed, Term
from homespun.config import Config
from homespun.data.corpus import Corpus
from homespun.data.document_set import Documents
from homespun.data.rows import Row, SentenceRows, pad
from homespun.errors import UserError
from homespun.models.config import ModelConfig
from homespun.models.heads import CausalLMHeadConfig
from homespun.models.model import Model
from homespun.nn.masks import Source
from homespun.objectives.protocol import Objective, reuse_head

Weight = Annotated[float, Field(ge=0)]


class StreamWeights(Config):
    """Loss weights of the decoder streams: ``alpha`` of Qi et al. 2020, section 3.1.

    With ``weights: [1, 0]`` the loss covers only the next token.
    """

    weights: tuple[Weight, ...] | None = Field(default=None, description="by stream, next token first; default: equal")
    unseen: Literal["left_out", "predicted"] = Field(
        default="left_out", description="first tokens of a later stream: ignored (the paper), or labels (transformers)"
    )

    def shares(self, ngram: int) -> tuple[float, ...]:
        """Return the weight of each of ``ngram`` streams; a decoder without streams has one.

        Raises:
            UserError: the number of weights is not ``ngram``, or the first weight is 0.
        """
        if self.weights is None or not ngram:
            return tuple(1.0 / max(ngram, 1) for _ in range(max(ngram, 1)))
        if len(self.weights) != ngram:
            raise UserError(f"{len(self.weights)} stream weights {list(self.weights)} for ngram={ngram}; give {ngram}")
        if not self.weights[0]:
            raise UserError(f"stream weights {list(self.weights)} ignore the next token; set the first above 0")
        return self.weights


EQUAL_WEIGHTS = StreamWeights()


def decoder_loss(
    model: Model, source: Source, batch: Batch, streams: StreamWeights = EQUAL_WEIGHTS, *, label_smoothing: float = 0.0
) -> dict[str, Term]:
    """Compute ``seq2seq``, the cross-entropy, and ``seq2seq_accuracy`` of the next token.

    With streams, ``seq2seq`` is the weighted sum of their losses over the labels of the first; ``next_token``,
    ``ngram_2``, ``ngram_3`` ... report the mean of each.

    Args:
        model: encoder-decoder with a language model head.
        source: hidden states of the encoder.
        batch: from `add_decoder_inputs`; its ``targets`` hold for any number of streams.
        streams: loss weights of the streams.
        label_smoothing: see `homespun.nn.vocabulary_loss.predict_tokens`.
    """
    backbone, head = model.backbone, model.lm_head
    assert batch.decoder_input_ids is not None
    assert batch.positions is not None
    assert batch.labels is not None
    shares = streams.shares(backbone.ngram)
    inputs, keep = batch.decoder_input_ids, batch.decoder_attention_mask
    if any(shares[1:]):
        hidden = backbone.ngram_streams(inputs, source, attention_mask=keep)  # (batch, ngram, seq, hidden)
    else:
        hidden = backbone.decode(inputs, source, attention_mask=keep)[:, None]
    count = len(batch.labels)
    row = batch.positions // hidden.shape[2]
    position = batch.positions % hidden.shape[2]
    sums, terms = [], {}
    for stream in range(hidden.shape[1]):
        labels = batch.labels
        if stream and streams.unseen == "left_out":
            labels = torch.where(position >= stream, labels, -1)
        flat = (row * hidden.shape[1] + stream) * hidden.shape[2] + position
        prediction = head.predict(hidden.flatten(0, 2).index_select(0, flat), labels, label_smoothing=label_smoothing)
        sums.append(shares[stream] * prediction.loss)
        name = f"ngram_{stream + 1}" if stream else "next_token"
        terms[name] = Term(prediction.loss.detach(), (labels >= 0).sum(), weight=0.0)
        if not stream:
            correct = prediction.correct
    total = {"seq2seq": Term(torch.stack(sums).sum(), count), "seq2seq_accuracy": Term(correct, count, weight=0.0)}
    return total | terms if len(terms) > 1 else total


class Corruption(Protocol):
    """Function from a row to the ids of the encoder and the target ids of the decoder."""

    def __call__(self, row: Row, generator: torch.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return (source,) and (target,) ids; both end with the token that ends the row."""


@dataclasses.dataclass(frozen=True)
class CorruptionCollator:
    """Collate that corrupts each row."""

    pad_id: int  # padding of sources and targets
    start_id: int  # first token of the decoder
    corrupt: Corruption  # function from a row to its source and its target

    def __call__(self, rows: Sequence[Row], row_seeds: Sequence[RowSeed]) -> Batch:
        pairs = [self.corrupt(row, row_seed.generator()) for row, row_seed in zip(rows, row_seeds, strict=True)]
        sources = pad([Row(source) for source, _ in pairs], self.pad_id)
        targets = [target for _, target in pairs]
        return add_decoder_inputs(sources, targets, start_id=self.start_id, pad_id=self.pad_id)


def sentence_rows(corpus: Corpus, documents: Documents, *, length: int) -> SentenceRows:
    """Build rows of complete sentences of one document, with special tokens, if the corpus has sentence ends.

    The tokenizers of T5, PEGASUS and ProphetNet put no token before a text; tokenizers trained here put ``[CLS]``.
    """
    before = corpus.tokenizer.template[0][:1]
    begin_id = before[0] if before else None
    return SentenceRows(corpus, documents, length=length, begin_id=begin_id, end_id=corpus.tokenizer.sep_id)


def add_decoder_inputs(batch: Batch, targets: Sequence[np.ndarray], *, start_id: int, pad_id: int) -> Batch:
    """Add the inputs and labels of the decoder to a batch of sources.

    Args:
        batch: the sources.
        targets: (target,) ids for each row, with the end token: the labels.
        start_id: first input of the decoder; the next inputs are the labels except the last.
        pad_id: padding of the decoder.
    """
    lengths = np.array([len(target) for target in targets])
    shape = len(targets), int(lengths.max())
    ids = np.full(shape, pad_id, dtype=np.int64)
    for row, target in zip(ids, targets, strict=True):
        row[0] = start_id
        row[1 : len(target)] = target[:-1]
    keep = np.arange(shape[1]) < lengths[:, None]
    count = float(lengths.sum())
    return dataclasses.replace(
        batch,
        decoder_input_ids=torch.from_numpy(ids),
        decoder_attention_mask=None if keep.all() else torch.from_numpy(keep),
        positions=torch.from_numpy(np.flatnonzero(keep)),
        labels=torch.from_numpy(np.concatenate(targets).astype(np.int64)),
        targets={"seq2seq": count, "seq2seq_accuracy": count},
    )


def build_seq2seq_config(
    model: ModelConfig,
    kind: str,
    *,
    tokens: Mapping[str, int | None],
    head: CausalLMHeadConfig | None = None,
) -> ModelConfig:
    """Build the config of an encoder-decoder with other ``tokens`` of the backbone, by the names in `NAMED_TOKENS`.

    The language model head of ``model`` is kept; without one, ``head`` or a head with tied embeddings is new.

    Raises:
        UserError: the backbone is a single stack; the message has the ``kind`` of the objective.
    """
    if not model.backbone.has_decoder:
        raise UserError(
            f"objective {kind} needs an encoder-decoder, and this model is one stack; take one such as "
            f"model.preset=bart-mini, or objective clm for a causal stack"
        )
    backbone = model.backbone.model_copy(update=dict(tokens))
    return reuse_head(ModelConfig(backbone=backbone, head=model.head), head or CausalLMHeadConfig())


class Seq2SeqObjective(Objective):
    """Terms ``seq2seq`` and ``seq2seq_accuracy``. Exports the model with its language model head."""

    def __init__(self, model: Model, config: ModelConfig, streams: StreamWeights = EQUAL_WEIGHTS) -> None:
        super().__init__(model, config)
        self.streams = streams

    def forward(self, batch: Batch) -> Loss:
        """Compute `decoder_loss`."""
        source = self.model.backbone.encode(batch.input_ids, **batch.context)
        return Loss(decoder_loss(self.model, source, batch, self.streams))
