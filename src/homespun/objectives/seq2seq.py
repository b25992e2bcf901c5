"""Teacher forcing of a decoder, shared by BART, T5, PEGASUS, ProphetNet and fine-tuning on pairs of texts."""

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
from homespun.data.rows import Row, SentenceRows, pad
from homespun.errors import UserError
from homespun.models.config import ModelConfig
from homespun.models.heads import CausalLMHeadConfig
from homespun.models.model import Model
from homespun.nn.masks import Source
from homespun.objectives.protocol import Objective

Weight = Annotated[float, Field(ge=0)]


class StreamWeights(Config):
    """Weights of a decoder's streams in the loss: ``alpha`` of Qi et al. 2020, section 3.1.

    ``weights: [1, 0]`` is the ordinary loss of the next token alone.
    """

    weights: tuple[Weight, ...] | None = Field(
        default=None, description="of each stream's loss, that of the next token first; equal shares where not given"
    )
    unseen: Literal["left_out", "predicted"] = Field(
        default="left_out",
        description="a token that comes too early for a stream to have read one that far back: it is no label of that "
        "stream (the paper), or it is, from the first token alone (transformers, and the authors' fine-tuning)",
    )

    def shares(self, ngram: int) -> tuple[float, ...]:
        """The weight of each of ``ngram`` streams; a decoder without them has one, whatever the others weigh.

        Raises:
            UserError: there are other weights than streams, or none that is above zero.
        """
        if self.weights is None or not ngram:
            return tuple(1.0 / max(ngram, 1) for _ in range(max(ngram, 1)))
        if len(self.weights) != ngram:
            raise UserError(
                f"{len(self.weights)} stream weights {list(self.weights)} for a decoder of ngram={ngram} streams; give "
                f"one weight a stream, or leave them out"
            )
        if not self.weights[0]:
            raise UserError(
                f"stream weights {list(self.weights)} teach nothing of the next token, from which texts are written; "
                f"give the first stream a weight above 0"
            )
        return self.weights


EQUAL_WEIGHTS = StreamWeights()


def decoder_loss(
    model: Model, source: Source, batch: Batch, streams: StreamWeights = EQUAL_WEIGHTS, *, label_smoothing: float = 0.0
) -> dict[str, Term]:
    """Terms ``seq2seq``, the cross-entropy, and ``seq2seq_accuracy`` of the next token.

    Of a decoder with streams ``seq2seq`` is the weighted sum of theirs, over the labels of the first; ``next_token``,
    ``ngram_2``, ``ngram_3`` ... report the mean of each.

    Args:
        model: encoder-decoder with a language model head.
        source: hidden states of the encoder.
        batch: see `homespun.objectives.seq2seq.add_decoder_inputs`; its ``targets`` hold for any number of streams.
        streams: how they share the loss.
        label_smoothing: see `homespun.nn.vocabulary_loss.predict_tokens`.
    """
    backbone, head = model.backbone, model.lm_head
    assert batch.decoder_input_ids is not None
    assert batch.positions is not None
    assert batch.labels is not None
    shares = streams.shares(backbone.ngram)
    given, keep = batch.decoder_input_ids, batch.decoder_attention_mask
    if any(shares[1:]):
        hidden = backbone.ngram_streams(given, source, attention_mask=keep)  # (batch, ngram, seq, hidden)
    else:
        hidden = backbone.decode(given, source, attention_mask=keep)[:, None]
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
    learnt = {"seq2seq": Term(torch.stack(sums).sum(), count), "seq2seq_accuracy": Term(correct, count, weight=0.0)}
    return learnt | terms if len(terms) > 1 else learnt


class Corruption(Protocol):
    """Function from a row to the ids that the encoder reads and those that the decoder predicts."""

    def __call__(self, row: Row, generator: torch.Generator) -> tuple[np.ndarray, np.ndarray]:
        """(source,) and (target,) ids; the token that ends the row ends both."""


@dataclasses.dataclass(frozen=True)
class CorruptionCollator:
    """Collate: rows are corrupted one by one.

    Attributes:
        pad_id: fills sources and targets.
        start_id: token that the decoder reads first.
        corrupt: from a row to its source and its target.
    """

    pad_id: int
    start_id: int
    corrupt: Corruption

    def __call__(self, rows: Sequence[Row], row_seeds: Sequence[RowSeed]) -> Batch:
        """Rows to a batch."""
        pairs = [self.corrupt(row, row_seed.generator()) for row, row_seed in zip(rows, row_seeds, strict=True)]
        sources = pad([Row(source) for source, _ in pairs], self.pad_id)
        targets = [target for _, target in pairs]
        return add_decoder_inputs(sources, targets, start_id=self.start_id, pad_id=self.pad_id)


def sentence_rows(corpus: Corpus, documents: np.ndarray, *, length: int) -> SentenceRows:
    """Rows of complete sentences of one document, where the corpus knows them, with special tokens.

    T5's, PEGASUS's and ProphetNet's tokenizers put nothing before a text, those trained here ``[CLS]``.
    """
    before = corpus.tokenizer.template[0][:1]
    begin_id = before[0] if before else None
    return SentenceRows(corpus, documents, length=length, begin_id=begin_id, end_id=corpus.tokenizer.sep_id)


def add_decoder_inputs(batch: Batch, targets: Sequence[np.ndarray], *, start_id: int, pad_id: int) -> Batch:
    """The batch of sources with what the decoder reads and writes.

    Args:
        batch: the sources.
        targets: (target,) ids for each row, the end token included: the labels.
        start_id: what the decoder reads first; after it come the labels but for the last.
        pad_id: fills the decoder's rows.
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
    tokens: Mapping[str, int | None] | None = None,
    head: CausalLMHeadConfig | None = None,
) -> ModelConfig:
    """An encoder with a decoder under a language model's head, its own where it has one.

    Args:
        model: what is to write.
        kind: of the objective, for its name in errors.
        tokens: what its texts begin and end with, by the names in `NAMED_TOKENS`; others stay as they are.
        head: what it gets where it has none; by default one over the words that it reads.

    Raises:
        UserError: the backbone is one stack.
    """
    if not model.backbone.has_decoder:
        raise UserError(
            f"objective {kind} needs an encoder with a decoder, and this model is one stack; take one such as "
            f"model.preset=bart-mini, or objective clm for a causal stack"
        )
    own = model.head if isinstance(model.head, CausalLMHeadConfig) else None
    backbone = model.backbone.model_copy(update=dict(tokens or {}))
    return ModelConfig(backbone=backbone, head=own or head or CausalLMHeadConfig())


class Seq2SeqObjective(Objective):
    """Terms ``seq2seq`` and its accuracy. Keeps the model with its language model's head."""

    def __init__(self, model: Model, config: ModelConfig, streams: StreamWeights = EQUAL_WEIGHTS) -> None:
        super().__init__(model, config)
        self.streams = streams

    def forward(self, batch: Batch) -> Loss:
        """Decoder loss; see `homespun.objectives.seq2seq.decoder_loss`."""
        source = self.model.backbone.encode(batch.input_ids, **batch.context)
        return Loss(decoder_loss(self.model, source, batch, self.streams))
