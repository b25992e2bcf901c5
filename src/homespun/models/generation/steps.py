"""Products of few rows by large matrices on a CPU, which is what a decoder's steps are made of.

Such a product is as fast as the matrix can be read, and PyTorch's reads it at a third of that speed where the rows are
few. The same product by weights that oneDNN has laid out for the number of rows takes about half the time: 0.33 against
0.70 ms for 8 rows and 512 x 2,048 weights that come from memory, 7.4 against 21 ms for a vocabulary of 50,265.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from homespun.models.backbone import Backbone
from homespun.models.heads import LanguageModelHead
from homespun.nn.cache import Cache, NoCacheError
from homespun.nn.masks import Source
from homespun.nn.torch_private import packed_linear_ops

Product = Callable[[Tensor], Tensor]
"""(..., in) -> (..., out)."""
_MOST_ROWS = 64  # from here on PyTorch's own is as good
_LEAST = 2**16  # numbers in a matrix; smaller ones stay in the processor's cache as they are


def product(weight: Tensor, bias: Tensor | None, *, rows: int) -> Product:
    """``values weight^T + bias``, as fast as it can be for ``rows`` rows; right for any number.

    What is laid out anew is a copy, which lives as long as the function that is returned, and does not follow the
    weights when they change.
    """
    operations = packed_linear_ops()
    if operations is None or not can_pack(weight, rows):
        return lambda values: F.linear(values, weight, bias)
    lay_out, multiply = operations
    packed = lay_out(weight.detach(), rows)
    offset = None if bias is None else bias.detach()
    return lambda values: multiply(values, packed, offset, "none", [], "")


def can_pack(weight: Tensor, rows: int) -> bool:
    """True if prepacked weights are supported and faster here: the operations that `torch.compile` uses on a CPU."""
    plain = weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.numel() >= _LEAST
    return plain and 1 < rows <= _MOST_ROWS and packed_linear_ops() is not None


@contextmanager
def packed_linears(module: nn.Module, *, rows: int) -> Iterator[None]:
    """Inside, the linear layers of ``module`` are `product`s for ``rows`` rows; nothing may be learned meanwhile."""
    linears = [part for part in module.modules() if isinstance(part, nn.Linear) and can_pack(part.weight, rows)]
    try:
        for linear in linears:
            # what a module is called with is looked up in itself first; its class is not touched
            vars(linear)["forward"] = product(linear.weight, linear.bias, rows=rows)
        yield
    finally:
        for linear in linears:
            vars(linear).pop("forward", None)  # another thread may have done so


_WORTHWHILE = 16  # steps from which on laying out the weights anew pays


@dataclass(frozen=True, eq=False)
class Prompt:
    """Prompt: state before the first new token.

    Args:
        input_ids: (batch, seq) ids of what is gone on with; for a decoder of its own, one token a row.
        keep: (batch, seq) bool, False at padding, which stands on the left; None: there is none.
        source: what a decoder reads; None for a stack that stands alone.
    """

    input_ids: Tensor
    keep: Tensor | None = None
    source: Source | None = None

    @property
    def positions(self) -> Tensor | None:
        """(batch, seq) int64: places counted from the first real token; None: they are those of the columns."""
        return None if self.keep is None else (self.keep.cumsum(1) - 1).clamp(min=0)


class Steps(Protocol):
    """Interface between a search and a model."""

    def start(self) -> Tensor:
        """(batch, vocab) logits of what comes after the prompt."""

    def advance(self, tokens: Tensor, rows: Tensor | None) -> Tensor:
        """(new rows, vocab) logits of what comes after these tokens, (new rows,) int64.

        Args:
            tokens: one more a row.
            rows: (new rows,) int64: which of the rows before each goes on from; None: each from its own. Those that
                come from one text of the prompt stay beside each other, of each text as many.
        """


class Writer:
    """A backbone that writes, its head, and how both are called.

    Args:
        backbone: a causal stack, or an encoder with a decoder.
        head: the scores of the vocabulary.
        rows: how many are written at a time.
        steps: how many tokens at the most.
    """

    def __init__(self, backbone: Backbone, head: LanguageModelHead, *, rows: int, steps: int) -> None:
        self.backbone, self.head, self.rows, self.steps = backbone, head, rows, steps
        self._product: Product | None = None

    @contextmanager
    def lean(self) -> Iterator[None]:
        """Inside, what a step multiplies by is laid out for it, where there are steps enough."""
        if self.steps < _WORTHWHILE:
            yield
            return
        with packed_linears(self.backbone.stacks[-1], rows=self.rows):
            yield

    def decode(
        self, input_ids: Tensor, prompt: Prompt, keep: Tensor | None, positions: Tensor | None, cache: Cache | None
    ) -> Tensor:
        """(rows, seq) ids -> (rows, seq, hidden)."""
        return self.backbone.decode(input_ids, prompt.source, attention_mask=keep, position_ids=positions, cache=cache)

    def logits(self, hidden: Tensor) -> Tensor:
        """(rows, hidden) -> (rows, vocab) in float32, which the caller may change."""
        features = self.head.features(hidden)
        if self._product is None:
            rows = self.rows if self.steps >= _WORTHWHILE else 0
            self._product = product(self.head.weight, self.head.bias, rows=rows)
        return self._product(features).float()


class CachedSteps:
    """`Steps` that read only the new tokens.

    Raises:
        NoCacheError: in `start`, an attention cannot.
    """

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
            if rows is not None and len(rows) != len(self.keep):  # those of one text are alike
                self.keep, self.next_positions = self.keep[rows], self.next_positions[rows]
            self.keep = torch.cat([self.keep, self.keep.new_ones(len(self.keep), 1)], 1)
        hidden = self.writer.decode(tokens[:, None], self.prompt, self.keep, self.next_positions, self.cache)
        if self.next_positions is not None:
            self.next_positions = self.next_positions + 1
        return self.writer.logits(hidden[:, -1])


class UncachedSteps:
    """`Steps` that read the whole text for every new token, padded on the right: for any attention."""

    def __init__(self, writer: Writer, prompt: Prompt) -> None:
        self.writer, self.prompt = writer, prompt
        keep = torch.ones_like(prompt.input_ids, dtype=torch.bool) if prompt.keep is None else prompt.keep
        self.lengths = keep.sum(1)
        order = (~keep).int().argsort(dim=1, stable=True)  # real tokens first
        self.ids = prompt.input_ids.gather(1, order)

    def start(self) -> Tensor:
        places = torch.arange(self.ids.shape[1], device=self.ids.device)
        keep = places < self.lengths[:, None]
        real = None if bool(keep.all()) else keep
        hidden = self.writer.decode(self.ids, self.prompt, real, None, None)
        return self.writer.logits(hidden[torch.arange(len(hidden), device=hidden.device), self.lengths - 1])

    def advance(self, tokens: Tensor, rows: Tensor | None) -> Tensor:
        if rows is not None:
            self.ids, self.lengths = self.ids[rows], self.lengths[rows]
        ids = torch.cat([self.ids, tokens[:, None]], 1)  # the new column is padding of the rows that are shorter
        self.ids = ids.scatter(1, self.lengths[:, None], tokens[:, None])
        self.lengths = self.lengths + 1
        return self.start()


def start(writer: Writer, prompt: Prompt, *, use_cache: bool) -> tuple[Steps, Tensor]:
    """The steps, and the logits of what comes after the prompt.

    Where an attention cannot go on from a cache, this says so once, and all is read again for every token.
    """
    if use_cache:
        steps = CachedSteps(writer, prompt)
        try:
            return steps, steps.start()
        except NoCacheError as error:
            why = str(error).partition(":")[0]
            warnings.warn(f"{why}: the whole text is read again for each new token", stacklevel=2)
    uncached = UncachedSteps(writer, prompt)
    return uncached, uncached.start()
