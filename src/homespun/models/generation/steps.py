"""Steps of generation with or without a cache."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from homespun.models.backbone import Backbone
from homespun.models.heads import LanguageModelHead
from homespun.nn.cache import Cache, NoCacheError
from homespun.nn.masks import Source
from homespun.nn.packed import Product, packed_linears, packed_product

_MIN_NUMBERS = 2**16  # numbers of a matrix; smaller ones fit the cache of the processor
_MIN_STEPS = 16  # for which packing pays


@dataclass(frozen=True, eq=False)
class Prompt:
    """Prompt of a generation.

    Args:
        input_ids: (batch, seq) ids to continue; for an encoder-decoder the decoder start token.
        keep: (batch, seq) bool, False at padding on the left; None: no padding.
        source: encoder output; None for one stack.
    """

    input_ids: Tensor
    keep: Tensor | None = None
    source: Source | None = None

    @property
    def positions(self) -> Tensor | None:
        """(batch, seq) int64 positions from the first real token; None without padding."""
        return None if self.keep is None else (self.keep.cumsum(1) - 1).clamp(min=0)


class Steps(Protocol):
    """Interface between a search and a model."""

    def start(self) -> Tensor:
        """Return (batch, vocab) logits of the first new token."""

    def advance(self, tokens: Tensor, rows: Tensor | None) -> Tensor:
        """Return (new rows, vocab) logits after one more token a row.

        Args:
            tokens: (new rows,) int64.
            rows: (new rows,) int64 previous row that each row continues; None: the same row. Rows of a text are
                adjacent, equally many for each text.
        """


class Writer:
    """Backbone and head of a generation.

    Args:
        backbone: causal stack or encoder-decoder.
        head: head that predicts tokens.
        steps: maximum number of new tokens.
    """

    def __init__(self, backbone: Backbone, head: LanguageModelHead, *, steps: int) -> None:
        self.backbone, self.head, self.steps = backbone, head, steps
        self._product: Product | None = None

    @contextmanager
    def packed(self) -> Iterator[None]:
        """Pack linear layers inside the context if there are enough steps."""
        if self.steps < _MIN_STEPS:
            yield
            return
        with packed_linears(self.backbone.stacks[-1], min_numbers=_MIN_NUMBERS):
            yield

    def decode(
        self, input_ids: Tensor, prompt: Prompt, keep: Tensor | None, positions: Tensor | None, cache: Cache | None
    ) -> Tensor:
        """Map (rows, seq) ids to (rows, seq, hidden)."""
        return self.backbone.decode(input_ids, prompt.source, attention_mask=keep, position_ids=positions, cache=cache)

    def logits(self, hidden: Tensor) -> Tensor:
        """Map (rows, hidden) to (rows, vocab) float32 logits, a new tensor."""
        features = self.head.features(hidden)
        if self._product is None:
            weight, bias = self.head.weight, self.head.bias
            packed = packed_product(weight, bias, min_numbers=_MIN_NUMBERS) if self.steps >= _MIN_STEPS else None
            self._product = packed or partial(F.linear, weight=weight, bias=bias)
        return self._product(features).float()


class CachedSteps:
    """`Steps` with a cache; `start` raises `NoCacheError` if an attention does not support it."""

    def __init__(self, writer: Writer, prompt: Prompt) -> None:
        self.writer, self.prompt = writer, prompt
        self.cache = Cache()
        self.keep = prompt.keep
        positions = prompt.positions
        self.next_positions = None if positions is None else positions[:, -1:] + 1

    def start(self) -> Tensor:
        hidden = self.writer.decode(
            self.prompt.input_ids, self.prompt, self.prompt.keep, self.prompt.positions, self.cache
        )
        return self.writer.logits(hidden[:, -1])

    def advance(self, tokens: Tensor, rows: Tensor | None) -> Tensor:
        if rows is not None:
            self.cache.follow(rows)
        if self.keep is not None and self.next_positions is not None:
            if rows is not None and len(rows) != len(self.keep):  # beams of a text have the same mask
                self.keep, self.next_positions = self.keep[rows], self.next_positions[rows]
            self.keep = torch.cat([self.keep, self.keep.new_ones(len(self.keep), 1)], 1)
        hidden = self.writer.decode(tokens[:, None], self.prompt, self.keep, self.next_positions, self.cache)
        if self.next_positions is not None:
            self.next_positions = self.next_positions + 1
        return self.writer.logits(hidden[:, -1])


class RaggedSteps:
    """Cached decoding of texts of different lengths, which may join and leave between calls.

    The newest tokens of all texts are aligned; shorter texts are padded on the left. Requires a single stack whose
    attention depends only on distances. `read` raises `NoCacheError` if an attention does not support a cache.

    Attributes:
        lengths: (rows,) int64 tokens of each text.
    """

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.cache = Cache()
        self.lengths = torch.empty(0, dtype=torch.int64)

    def read(self, input_ids: Tensor, lengths: Tensor) -> Tensor:
        """Map (rows, seq) next ids to (rows, hidden) hidden states of the last ones.

        ``lengths``, (rows,) int64, count the tokens of each text with the new ones; columns before are padding.
        """
        seq = input_ids.shape[1]
        total = self.cache.length + seq
        keep = torch.arange(total, device=input_ids.device) >= total - lengths[:, None]
        positions = (lengths[:, None] - seq + torch.arange(seq, device=input_ids.device)).clamp(min=0)
        prompt, mask = Prompt(input_ids), None if bool(keep.all()) else keep
        hidden = self.writer.decode(input_ids, prompt, mask, positions, self.cache)
        self.lengths = lengths
        return hidden[:, -1]

    def advance(self, tokens: Tensor) -> Tensor:
        """Map (rows,) int64 to (rows, vocab) logits after one more token a row."""
        return self.writer.logits(self.read(tokens[:, None], self.lengths + 1))

    def join(self, other: RaggedSteps) -> None:
        """Append the texts of ``other``, which must not be used again."""
        if len(self.lengths):
            self.cache.join(other.cache)
        else:
            self.cache = other.cache
        self.lengths = torch.cat([self.lengths.to(other.lengths.device), other.lengths])

    def drop(self, row: int) -> None:
        """Remove a text; the last one takes its row."""
        self.cache.drop(row)
        self.lengths[row] = self.lengths[-1]
        self.lengths = self.lengths[:-1]
        if len(self.lengths):
            self.cache.trim(int(self.lengths.max()))


class UncachedSteps:
    """`Steps` for any attention, which read the full text, padded on the right, for every new token."""

    def __init__(self, writer: Writer, prompt: Prompt) -> None:
        self.writer, self.prompt = writer, prompt
        keep = torch.ones_like(prompt.input_ids, dtype=torch.bool) if prompt.keep is None else prompt.keep
        self.lengths = keep.sum(1)
        order = (~keep).int().argsort(dim=1, stable=True)  # real tokens first
        self.ids = prompt.input_ids.gather(1, order)

    def start(self) -> Tensor:
        keep = torch.arange(self.ids.shape[1], device=self.ids.device) < self.lengths[:, None]
        hidden = self.writer.decode(self.ids, self.prompt, None if bool(keep.all()) else keep, None, None)
        return self.writer.logits(hidden[torch.arange(len(hidden), device=hidden.device), self.lengths - 1])

    def advance(self, tokens: Tensor, rows: Tensor | None) -> Tensor:
        if rows is not None:
            self.ids, self.lengths = self.ids[rows], self.lengths[rows]
        ids = torch.cat([self.ids, tokens[:, None]], 1)  # new column of padding for shorter rows
        self.ids = ids.scatter(1, self.lengths[:, None], tokens[:, None])
        self.lengths = self.lengths + 1
        return self.start()


def start(writer: Writer, prompt: Prompt, *, use_cache: bool) -> tuple[Steps, Tensor]:
    """Start generation and return the (batch, vocab) logits of the first new token.

    Warns and continues without a cache if an attention does not support it.
    """
    if use_cache:
        steps = CachedSteps(writer, prompt)
        try:
            return steps, steps.start()
        except NoCacheError as error:
            reason = str(error).partition(":")[0]
            warnings.warn(f"{reason}: the full text is read again for each new token", stacklevel=2)
    uncached = UncachedSteps(writer, prompt)
    return uncached, uncached.start()
