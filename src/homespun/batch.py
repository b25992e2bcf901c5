"""Interface of data, models and training: `Batch` in, `Loss` out."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class RowSeed:
    """Seed of a row in an epoch, the source of all its randomness."""

    seed: int
    epoch: int
    index: int

    def generator(self) -> torch.Generator:
        """CPU generator, a function of (seed, epoch, index)."""
        key = f"{self.seed}/{self.epoch}/{self.index}".encode()
        number = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
        return torch.Generator().manual_seed(number)


@dataclass(frozen=True)
class Batch:
    """Model inputs. Missing parts are ``None``; ``True`` in a mask means *takes part*.

    ``targets`` has the number of targets of each loss term, known before the forward pass, so that micro-batches and
    processes are weighted exactly.
    """

    input_ids: Tensor  # (batch, seq) int64
    attention_mask: Tensor | None = None  # (batch, seq) bool; None: no padding anywhere
    token_type_ids: Tensor | None = None  # (batch, seq) int64
    position_ids: Tensor | None = None  # (batch, seq) int64; restarts at every packed document
    documents: Tensor | None = None  # (batch, seq) int64: tokens attend within the same number only
    global_attention_mask: Tensor | None = None  # (batch, seq) bool: tokens that see all and are seen by all
    decoder_input_ids: Tensor | None = None  # (batch, target) int64: decoder inputs
    decoder_attention_mask: Tensor | None = None  # (batch, target) bool; None: no padding there
    positions: Tensor | None = None  # (targets,) int64 into batch * seq (of the decoder, where there is one): `labels`
    labels: Tensor | None = None  # (targets,) ids or tags, (batch,) classes, (batch, classes) 0/1, (batch, 2) ends
    source_positions: Tensor | None = None  # (masked,) int64 into batch * seq of the source: `source_labels`
    source_labels: Tensor | None = None  # (masked,) token ids that the encoder predicts
    pair_labels: Tensor | None = None  # (batch,) int64: next sentence prediction
    chunks: Tensor | None = None  # (texts, chunks) int64: the sequences of each text, in order; -1: no more. None: one
    sentences: Tensor | None = None  # (batch, seq) int64: the sentence, of those in `labels`, of a token; -1: none
    stream_positions: Tensor | None = None  # (batch, 2) int64: stream of a row, and its number there
    targets: dict[str, float] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        """Tokens with padding, of source and target."""
        return sum(ids.numel() for ids in (self.input_ids, self.decoder_input_ids) if ids is not None)

    @property
    def real_tokens(self) -> int:
        """Tokens without padding, of source and target."""
        sides = ((self.input_ids, self.attention_mask), (self.decoder_input_ids, self.decoder_attention_mask))
        return sum(ids.numel() if keep is None else int(keep.sum()) for ids, keep in sides if ids is not None)

    @property
    def num_rows(self) -> int:
        """Rows of the data: sequences, or texts if these are read in chunks."""
        return len(self.input_ids if self.chunks is None else self.chunks)

    @property
    def context(self) -> dict[str, Tensor | None]:
        """Inputs of a backbone besides ``input_ids``."""
        return {
            "attention_mask": self.attention_mask,
            "token_type_ids": self.token_type_ids,
            "position_ids": self.position_ids,
            "documents": self.documents,
            "global_attention_mask": self.global_attention_mask,
        }

    def to(self, device: torch.device | str) -> Batch:
        """Copy to ``device``; copies from pinned memory do not block."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        """Copy to pinned memory, for `torch.utils.data.DataLoader` on machines with a GPU."""
        return self._map(Tensor.pin_memory)

    def _map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        mapped: dict[str, Any] = {
            f.name: function(value)
            for f in dataclasses.fields(self)
            if isinstance(value := getattr(self, f.name), Tensor)
        }
        return dataclasses.replace(self, **mapped)


@dataclass(frozen=True)
class Term:
    """A loss term: a sum over targets, their number, and the weight of its mean.

    A weight of zero makes it a metric (an accuracy).
    """

    sum: Tensor  # () float
    count: Tensor | float
    weight: float = 1.0


@dataclass(frozen=True)
class Loss:
    """Terms of a loss by name. The loss is the weighted sum of their means."""

    terms: dict[str, Term]

    def total(self, targets: dict[str, float] | None = None) -> Tensor:
        """() float: ``sum(weight * sum / count)`` over the terms.

        ``targets`` replaces the counts by those of the step, so that gradients of micro-batches add up to the gradient
        of the step. A term whose count is zero adds nothing.
        """
        parts = []
        for name, term in self.terms.items():
            if term.weight:
                count = term.count if targets is None else targets.get(name, 0.0)
                count = torch.as_tensor(count, dtype=torch.float32, device=term.sum.device)
                # not a clamp at 1: with class weights a count is a sum of weights, and may be a fraction
                parts.append(term.weight * term.sum.float() / torch.where(count > 0, count, 1.0))
        return torch.stack(parts).sum() if parts else torch.zeros(())
