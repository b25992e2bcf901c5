"""Decoder loss: next-token cross-entropy, plus the n-gram streams of ProphetNet (Qi et al. 2020)."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field

from homespun.batch import Batch, Term
from homespun.config import Config
from homespun.errors import UserError
from homespun.models.model import Model
from homespun.nn.masks import Source

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
