"""Interface of data, models and training: `Batch` in, `Loss` out."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # imported late: linear models need no torch
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class RowSeed:
    """Seed of the random choices of a row in an epoch."""

    seed: int
    epoch: int
    index: int

    def generator(self) -> torch.Generator:
        """CPU generator that depends only on (seed, epoch, index)."""
        import torch

        key = f"{self.seed}/{self.epoch}/{self.index}".encode()
        number = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
        return torch.Generator().manual_seed(number)


@dataclass(frozen=True)
class Batch:
    """Inputs and targets of a model; ``True`` in a mask keeps a token.

    ``targets`` has the number of targets of each loss term before the forward pass, so that micro-batches and processes
    are weighted exactly.
    """

    input_ids: Tensor  # (batch, seq) int64
    attention_mask: Tensor | None = None  # (batch, seq) bool; None: no padding
    token_type_ids: Tensor | None = None  # (batch, seq) int64
    position_ids: Tensor | None = None  # (batch, seq) int64; restarts at every packed document
    documents: Tensor | None = None  # (batch, seq) int64; tokens attend to those of the same number
    global_attention_mask: Tensor | None = None  # (batch, seq) bool; tokens that attend to all, and all to them
    decoder_input_ids: Tensor | None = None  # (batch, target) int64: decoder inputs
    decoder_attention_mask: Tensor | None = None  # (batch, target) bool; None: no padding
    positions: Tensor | None = None  # (targets,) int64 indices into batch * seq of `labels`, in the decoder if any
    labels: Tensor | None = None  # (targets,) ids or tags, (batch,) classes, (batch, classes) 0/1, (batch, 2) ends
    source_positions: Tensor | None = None  # (masked,) int64 indices into batch * seq of `source_labels`
    source_labels: Tensor | None = None  # (masked,) token ids that the encoder predicts
    pair_labels: Tensor | None = None  # (batch,) int64: next sentence prediction
    chunks: Tensor | None = None  # (texts, chunks) int64 sequences of each text; -1: none. None: one per text
    sentences: Tensor | None = None  # (batch, seq) int64 index into `labels` of the sentence of a token; -1: none
    stream_positions: Tensor | None = None  # (batch, 2) int64: stream of a row, and its index in the stream
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
        """Rows of the data: sequences, or texts in chunks."""
        return len(self.input_ids if self.chunks is None else self.chunks)

    @property
    def context(self) -> dict[str, Tensor | None]:
        """Inputs of a backbone other than ``input_ids``."""
        return {
            "attention_mask": self.attention_mask,
            "token_type_ids": self.token_type_ids,
            "position_ids": self.position_ids,
            "documents": self.documents,
            "global_attention_mask": self.global_attention_mask,
        }

    def to(self, device: torch.device | str) -> Batch:
        """Copy to ``device``, without blocking from pinned memory."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        """Copy to pinned memory, for `torch.utils.data.DataLoader`."""
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        from torch import Tensor

        mapped: dict[str, Any] = {
            f.name: function(value)
            for f in dataclasses.fields(self)
            if isinstance(value := getattr(self, f.name), Tensor)
        }
        return dataclasses.replace(self, **mapped)


@dataclass(frozen=True)
class Term:
    """Loss term: a sum over targets, their number, and the weight of the mean. A weight of 0 makes it a metric."""

    sum: Tensor  # () float
    count: Tensor | float
    weight: float = 1.0


def count_tensor(count: Tensor | float, device: torch.device) -> Tensor:
    """() float32 on ``device``, without waiting for the kernels of a GPU."""
    import torch
    from torch import Tensor

    if isinstance(count, Tensor):
        return count.to(device, torch.float32)
    return torch.full((), count, dtype=torch.float32, device=device)


@dataclass(frozen=True)
class Loss:
    """Loss: the weighted sum of the means of its terms."""

    terms: dict[str, Term]

    def total(self, targets: dict[str, float] | None = None) -> Tensor:
        """Sum ``weight * sum / count`` over the terms, () float; terms without targets add 0.

        ``targets`` are the counts of a step, so that the gradients of micro-batches add up to the gradient of the step.
        """
        import torch

        parts = []
        for name, term in self.terms.items():
            if term.weight:
                count = term.count if targets is None else targets.get(name, 0.0)
                count = count_tensor(count, term.sum.device)
                # not a clamp at 1: with class weights a count is a sum of weights, and may be below 1
                parts.append(term.weight * term.sum.float() / torch.where(count > 0, count, 1.0))
        return torch.stack(parts).sum() if parts else torch.zeros(())
