"""Truncated backpropagation through time: the recurrent state is kept between segments, the gradient is not."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from homespun.batch import Batch, Loss, RowSeed
from homespun.data.corpus import Corpus
from homespun.data.document_set import Documents
from homespun.data.loader import Order
from homespun.data.rows import Row, check_corpus_rows, check_index, pad
from homespun.errors import UserError
from homespun.models.config import ModelConfig
from homespun.models.heads import CausalLMHeadConfig
from homespun.models.model import Model
from homespun.nn.cache import Cache
from homespun.nn.recurrent import RecurrentLayer
from homespun.objectives.clm import find_next_tokens
from homespun.objectives.mlm import token_terms
from homespun.objectives.protocol import Objective, PretrainingConfig, UnigramTerm, reuse_head
from homespun.text.tokenizer import Tokenizer


class TbpttRows:
    """Split a corpus into ``streams`` parallel streams, and each stream into pieces of ``length`` tokens.

    Row ``piece * streams + stream``: ``streams`` consecutive rows are the same piece of all streams, and the next
    ``streams`` rows are the next pieces. Documents are ``[CLS] text [SEP]``, in the given order. A row has one more
    token, which is only a label; ``documents`` numbers its documents. The last pieces may be shorter, and fewer than
    ``streams`` tokens at the end of the corpus are dropped.

    Raises:
        UserError: ``length`` is below 8, or there are fewer than two tokens for each stream.
    """

    def __init__(self, corpus: Corpus, documents: Documents, *, length: int, streams: int) -> None:
        check_corpus_rows(length, documents)
        documents = np.asarray(documents)
        sizes = corpus.lengths[documents].astype(np.int64) + 2
        total = int(sizes.sum()) - 1  # the last is only a label
        if total < 2 * streams:
            raise UserError(
                f"{total + 1:,} tokens are too few for {streams} streams; give more text, or lower train.batch_size"
            )
        self._corpus, self._documents = corpus, documents
        self._ends = np.cumsum(sizes)  # (documents,) end of each in the corpus
        self._each = total // streams
        self._cls, self._sep = corpus.tokenizer.cls_id, corpus.tokenizer.sep_id
        self.length, self.streams = length, streams
        pieces = -(-self._each // length)
        last = self._each - (pieces - 1) * length
        self.lengths: np.ndarray = np.repeat(np.where(np.arange(pieces) < pieces - 1, length, last), streams)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Row:
        piece, stream = divmod(check_index(index, len(self)), self.streams)
        start = stream * self._each + piece * self.length
        end = start + int(self.lengths[index]) + 1
        ids, documents = [], []
        first = number = int(np.searchsorted(self._ends, start, side="right"))
        while start < end:
            begin = int(self._ends[number - 1]) if number else 0
            text = self._corpus.tokens(int(self._documents[number]))
            part = np.concatenate([[self._cls], text, [self._sep]])[start - begin : end - begin]
            ids.append(part)
            documents.append(np.full(len(part), number - first))
            start, number = int(self._ends[number]), number + 1
        return Row(
            np.concatenate(ids).astype(np.int64),
            documents=np.concatenate(documents).astype(np.int64),
            stream_position=(stream, piece),
        )


@dataclasses.dataclass(frozen=True)
class TbpttCollator:
    """Collate rows; the label of a token is the next token, unless that begins a document."""

    pad_id: int

    def __call__(self, rows: Sequence[Row], row_seeds: Sequence[RowSeed]) -> Batch:
        """Build a batch of `TbpttRows`, whose last tokens are labels only.

        Other rows start from a zero state, and their state is not kept.
        """
        padded = pad(rows, self.pad_id)
        positions, labels = find_next_tokens(padded)
        seq = padded.input_ids.shape[1] - 1
        keep = None if padded.attention_mask is None else padded.attention_mask[:, 1:]
        streams = [row.stream_position for row in rows]
        return Batch(
            padded.input_ids[:, :-1].contiguous(),
            attention_mask=None if keep is None or bool(keep.all()) else keep,
            positions=positions // (seq + 1) * seq + positions % (seq + 1),
            labels=labels,
            stream_positions=None if streams[0] is None else torch.tensor(streams),
            targets=dict.fromkeys(("causal", "causal_accuracy"), float(len(labels))),
        )


class StatefulCausalLM(PretrainingConfig):
    """Prediction of each next token of a stream, starting from the state after the previous piece.

    Truncated backpropagation through time (Mikolov et al. 2010): no gradient flows into the previous piece. The corpus
    is read in order, as ``streams`` parallel streams. The state is kept at the ends of documents, where objective clm
    resets it. A step of ``train.batch_size`` rows is a piece of each stream.
    """

    kind: Literal["stateful_clm"] = "stateful_clm"
    row_order: ClassVar[Order] = "in_order"
    max_processes: ClassVar[int | None] = 1
    streams: int = Field(default=0, ge=0, description="parallel streams; 0: train.batch_size")

    def with_batch_size(self, batch_size: int) -> StatefulCausalLM:
        if 0 < self.streams < batch_size:
            raise ValueError(
                f"train.batch_size={batch_size} rows of objective.streams={self.streams} streams would continue each "
                f"other in one step; give as many streams, or leave objective.streams out"
            )
        return self.model_copy(update={"streams": self.streams or batch_size})

    def rows(self, corpus: Corpus, documents: Documents, *, length: int, seed: int) -> TbpttRows:
        return TbpttRows(corpus, documents, length=length, streams=self._count)

    @property
    def unigram_term(self) -> UnigramTerm:
        return UnigramTerm("causal")

    def collate(self, tokenizer: Tokenizer) -> TbpttCollator:
        return TbpttCollator(tokenizer.pad_id)

    def build(self, model: ModelConfig, tokenizer: Tokenizer) -> StatefulCausalLMObjective:
        """Build the objective with a causal recurrent backbone, and its causal LM head or a new one.

        Raises:
            UserError: the backbone has no recurrent state, or is not causal.
        """
        stack = model.one_text("objective stateful_clm")
        if not stack.is_recurrent:
            raise UserError(
                "objective stateful_clm needs a recurrent model, and this one has attention; set objective.kind=clm, "
                "or take one such as model.preset=lstm-mini"
            )
        if not stack.causal:
            raise UserError("objective stateful_clm needs a causal model; set model.bidirectional=false")
        config = reuse_head(model, CausalLMHeadConfig())
        return StatefulCausalLMObjective(config.build(), config, streams=self._count)

    @property
    def _count(self) -> int:
        if not self.streams:
            raise UserError("objective.streams=0 is the number of streams; set it to train.batch_size")
        return self.streams


class StatefulCausalLMObjective(Objective):
    """Terms ``causal`` and ``causal_accuracy``. Exports the model with its LM head.

    States are buffers, so that a resumed run continues from them. ``before`` is the initial state of the last piece of
    each stream and ``piece`` its number: a step that is repeated after running out of memory starts from the same
    state. Validation has separate states, which are not stored.
    """

    before: Tensor
    after: Tensor
    piece: Tensor

    def __init__(self, model: Model, config: ModelConfig, *, streams: int) -> None:
        super().__init__(model, config)
        (stack,) = model.backbone.stacks
        self._layers = [layer for layer in stack.layers if isinstance(layer, RecurrentLayer)]
        self._sizes = [size for layer in self._layers for size in layer.state_sizes]
        self.register_buffer("before", torch.zeros(streams, sum(self._sizes)))
        self.register_buffer("after", torch.zeros(streams, sum(self._sizes)))
        self.register_buffer("piece", torch.full((streams,), -1))
        self._validation: Tensor | None = None  # states of a validation

    def train(self, mode: bool = True) -> StatefulCausalLMObjective:
        """Set the training mode; a validation starts from zero states."""
        super().train(mode)
        self._validation = None
        return self

    def forward(self, batch: Batch) -> Loss:
        """Compute the cross-entropy of each next token, starting from the states after the previous pieces."""
        cache = Cache()
        if batch.stream_positions is not None:
            states = iter(
                torch.split_with_sizes(self._initial_state(*batch.stream_positions.unbind(1)), self._sizes, dim=1)
            )
            for layer in self._layers:
                cache.keep_state(layer, tuple(next(states) for _ in range(layer.states)))
        hidden = self.model.backbone.decode(batch.input_ids, attention_mask=batch.attention_mask, cache=cache)
        if batch.stream_positions is not None:
            state = torch.cat([part for layer in self._layers for part in cache.state(layer) or ()], dim=1)
            self._store_state(batch.stream_positions[:, 0], state)
        return Loss(token_terms("causal", self.model.lm_head, hidden, batch.positions, batch.labels))

    @torch.no_grad()
    def _initial_state(self, stream: Tensor, piece: Tensor) -> Tensor:
        """Return the (rows, states) after the previous pieces, zero for first pieces."""
        if not self.training:
            if self._validation is None:
                self._validation = torch.zeros_like(self.after)
            return self._validation[stream].masked_fill((piece == 0)[:, None], 0.0)
        repeated = (self.piece[stream] == piece)[:, None]
        state = torch.where(repeated, self.before[stream], self.after[stream]).masked_fill((piece == 0)[:, None], 0.0)
        self.before.index_copy_(0, stream, state)
        self.piece.index_copy_(0, stream, piece)
        return state

    @torch.no_grad()
    def _store_state(self, stream: Tensor, state: Tensor) -> None:
        states = self.after if self.training or self._validation is None else self._validation
        states.index_copy_(0, stream, state.to(states.dtype))
