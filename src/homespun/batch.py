"""The two things that travel between the rooms: a `Batch` of tensors on the way in, a `Loss` on the way out."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class RowSeed:
    """The name of one row in one epoch: all its randomness comes from here, whoever computes it, and whenever."""

    seed: int
    epoch: int
    index: int

    def generator(self) -> torch.Generator:
        """A CPU generator that is a function of (seed, epoch, index) alone."""
        key = f"{self.seed}/{self.epoch}/{self.index}".encode()
        number = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
        return torch.Generator().manual_seed(number)


@dataclass(frozen=True)
class Batch:
    """What a model is given. Absent parts are ``None``; ``True`` in a mask means *takes part*.

    ``targets`` holds, for each term of the loss that the batch will produce, over how many targets that term's
    mean is taken. It is known before the forward pass, so that micro-batches and processes are weighted exactly.
    """

    input_ids: Tensor  # (batch, seq) int64
    attention_mask: Tensor | None = None  # (batch, seq) bool; None: no padding anywhere
    token_type_ids: Tensor | None = None  # (batch, seq) int64
    position_ids: Tensor | None = None  # (batch, seq) int64; restarts at every packed document
    documents: Tensor | None = None  # (batch, seq) int64: tokens attend within the same number only
    global_attention_mask: Tensor | None = None  # (batch, seq) bool: tokens that see all and are seen by all
    decoder_input_ids: Tensor | None = None  # (batch, target) int64: what a decoder reads while it writes its labels
    decoder_attention_mask: Tensor | None = None  # (batch, target) bool; None: no padding there
    positions: Tensor | None = None  # (targets,) int64 into batch * seq (of the decoder, where there is one): `labels`
    labels: Tensor | None = None  # (targets,) ids or tags, (batch,) classes, (batch, classes) 0/1, (batch, 2) ends
    source_positions: Tensor | None = None  # (masked,) int64 into batch * seq of what is read: `source_labels`
    source_labels: Tensor | None = None  # (masked,) token ids that an encoder is to tell, while its decoder writes
    pair_labels: Tensor | None = None  # (batch,) int64: next sentence prediction
    chunks: Tensor | None = None  # (texts, chunks) int64: the sequences of each text, in order; -1: no more. None: one
    sentences: Tensor | None = None  # (batch, seq) int64: the sentence, of those in `labels`, of a token; -1: none
    stream_positions: Tensor | None = None  # (batch, 2) int64: the stream that a row goes on in, and its number there
    targets: dict[str, float] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        """Tokens that the device works through, padding included."""
        return sum(ids.numel() for ids in (self.input_ids, self.decoder_input_ids) if ids is not None)

    @property
    def real_tokens(self) -> int:
        """Tokens without the padding, of source and target."""
        sides = ((self.input_ids, self.attention_mask), (self.decoder_input_ids, self.decoder_attention_mask))
        return sum(ids.numel() if keep is None else int(keep.sum()) for ids, keep in sides if ids is not None)

    @property
    def num_rows(self) -> int:
        """Rows of the data: sequences, or texts where these are read in chunks."""
        return len(self.input_ids if self.chunks is None else self.chunks)

    @property
    def context(self) -> dict[str, Tensor | None]:
        """What a backbone is given beside ``input_ids``."""
        return {
            "attention_mask": self.attention_mask,
            "token_type_ids": self.token_type_ids,
            "position_ids": self.position_ids,
            "documents": self.documents,
            "global_attention_mask": self.global_attention_mask,
        }

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on ``device``; copies from pinned memory do not block."""
        moved: dict[str, Any] = {
            f.name: value.to(device, non_blocking=True)
            for f in dataclasses.fields(self)
            if isinstance(value := getattr(self, f.name), Tensor)
        }
        return dataclasses.replace(self, **moved)

    def pin_memory(self) -> Batch:
        """Called by `torch.utils.data.DataLoader` on machines with a GPU."""
        pinned: dict[str, Any] = {
            f.name: value.pin_memory()
            for f in dataclasses.fields(self)
            if isinstance(value := getattr(self, f.name), Tensor)
        }
        return dataclasses.replace(self, **pinned)


@dataclass(frozen=True)
class Term:
    """One part of a loss: a sum over targets, how many there were, and the weight of its mean in the whole.

    A weight of zero makes it something to report (an accuracy), not something to learn from.
    """

    sum: Tensor  # () float
    count: Tensor | float
    weight: float = 1.0


@dataclass(frozen=True)
class Loss:
    """The terms of a loss, by name. The whole is the weighted sum of the terms' means."""

    terms: dict[str, Term]

    def total(self, targets: dict[str, float] | None = None) -> Tensor:
        """() float: ``sum(weight * sum / count)`` over the terms.

        ``targets`` replaces the counts by those of the whole step, so that the gradients of its micro-batches add
        up to the gradient of the step whatever the split. A term whose count is zero adds nothing.
        """
        parts = []
        for name, term in self.terms.items():
            if term.weight:
                count = term.count if targets is None else targets.get(name, 0.0)
                count = torch.as_tensor(count, dtype=torch.float32, device=term.sum.device)
                # not a clamp at 1: with class weights a count is a sum of weights, and may be a fraction
                parts.append(term.weight * term.sum.float() / torch.where(count > 0, count, 1.0))
        return torch.stack(parts).sum() if parts else torch.zeros(())
