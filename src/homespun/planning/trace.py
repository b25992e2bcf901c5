"""A step of training on tensors that have a shape and no values: what it would take and compute, from the code itself.

Nothing here knows an attention, an objective or a wiring. The step runs as it stands, under a mode of PyTorch that
works out the shape of every result in place of the result; whoever frees a tensor in the real step frees it here. Whole
numbers that say where tokens stand (masks, positions, blocks) are small and decide what is computed, so they are real.
"""

from __future__ import annotations

import math
import re
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from homespun.planning.heap import Heap
from homespun.planning.onednn import workspace_bytes

_REAL = 2**24  # elements; above this, what follows from whole numbers has no values either
_DRAWN = 2**16  # elements; what a model draws of itself, such as its random blocks, is no more
# they draw, or give what is not yet written: of whole numbers too, no value of theirs says where a token stands
_VALUELESS = ("empty", "new_empty", "empty_strided", "random", "random_", "bernoulli", "bernoulli_", "empty_like")
_WHOLE_BY_DEFAULT = ("arange", "randint", "randperm", "full", "scalar_tensor", "lift_fresh", "tril_indices")
_PART = re.compile(r".*?(?:embeddings|layers\.\d+\.\w+|head|final_norm)(?=\.|$)")
OTHER = "elsewhere"


@dataclass(frozen=True)
class Operation:
    """One call of an operator, as far as time goes by it."""

    name: str  # of the operator, such as `addmm`
    inputs: tuple[tuple[int, ...], ...]  # shapes
    outputs: tuple[tuple[int, ...], ...]
    moved: int  # bytes read and written; 0: nothing is touched, as in a view
    dtype: torch.dtype  # of the first floating result or input


@dataclass
class Span:
    """The operations of a stretch of the step, each with how often it came."""

    operations: dict[Operation, int] = field(default_factory=lambda: defaultdict(int))


class Shadow(TorchDispatchMode):
    """``with Shadow() as shadow:`` build and run; then read `heap`, `spans` and what is `held` by each part.

    Attributes:
        heap: what the process's tensors would take.
        spans: by name, what `span` enclosed.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.heap = Heap()
        self.spans: dict[str, Span] = {}
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._span: Span | None = None
        self._times = 1
        self._known: dict[int, tuple[int, str]] = {}  # storage -> bytes, part
        self._parts: list[str] = []

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Operations in here are those of ``name``."""
        before, self._span = self._span, self.spans.setdefault(name, Span())
        try:
            yield
        finally:
            self._span = before

    @contextmanager
    def times(self, count: int) -> Iterator[None]:
        """Operations in here count so many times; memory is that of one time, after which the next begins."""
        self._times *= count
        try:
            yield
        finally:
            self._times //= count

    def watch(self, module: nn.Module) -> None:
        """From now on tell apart which part of ``module`` a tensor comes from."""
        for name, child in module.named_modules():
            match = _PART.fullmatch(name)
            if match is not None:
                child.register_forward_pre_hook(self._entering(name))
                child.register_forward_hook(self._leave, always_call=True)

    def held(self) -> dict[str, int]:
        """Bytes that are taken now, by the part that took them."""
        sums: dict[str, int] = defaultdict(int)
        for size, part in self._known.values():
            sums[part] += size
        return dict(sums)

    def _entering(self, name: str) -> Callable[[nn.Module, Any], None]:
        def enter(module: nn.Module, arguments: Any) -> None:
            self._parts.append(name)

        return enter

    def _leave(self, module: nn.Module, arguments: Any, result: Any) -> None:
        self._parts.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        name = func.overloadpacket.__name__
        fake = any(isinstance(tensor, FakeTensor) for tensor in given)
        if fake and name == "_local_scalar_dense" and given[0].dtype == torch.bool:
            return False  # "is all of it allowed?" of a mask that is too large to look at: no, it is needed
        if fake or not _has_values(name, given, args, kwargs):
            with self._fake:
                result = func(*args, **kwargs)
                if name == "mkldnn_rnn_layer":
                    result = (*result[:-1], _workspace(given[0], given[2]))
        else:
            result = self._real(func, name, args, kwargs)
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        fresh = sum([self._take(tensor) for tensor in made])
        if self._span is not None and name != "device":  # a question that shadows alone are asked
            self._span.operations[operation(func, name, given, made, fresh)] += self._times
        return result

    def _real(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """The values, where they are few."""
        inside = name.endswith("_")
        if not inside and func._schema.returns:
            with self._fake:
                shapes = func(*args, **kwargs) if _has_shape(func, name) else None
            if any(leaf.numel() > _REAL for leaf in tree_leaves(shapes) if isinstance(leaf, Tensor)):
                return shapes
        return func(*args, **kwargs)

    def _take(self, tensor: Tensor) -> int:
        """Bytes that came with this tensor: 0 for one that stands in memory which was there."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return 0
        size = storage.nbytes()
        address = self.heap.take(size)
        self._known[key] = size, self._parts[-1] if self._parts else OTHER

        def give(heap: Heap, known: dict[int, tuple[int, str]]) -> None:
            heap.give(address)
            del known[key]

        weakref.finalize(storage, give, self.heap, self._known).atexit = False
        return size


def _workspace(entering: Tensor, recurrence: Tensor) -> Tensor:
    """What an LSTM keeps; ``entering`` (seq, rows, width), ``recurrence`` (4 * size, size), its second matrix."""
    seq, rows, width = entering.shape
    item = entering.element_size()
    size = workspace_bytes(seq, rows, entering=width, size=recurrence.shape[1], item=item)
    return torch.empty(size, dtype=torch.uint8)


def _has_values(name: str, given: Sequence[Tensor], args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a call on real tensors alone, or on none, gives values: all that comes of whole numbers does."""
    if name in _VALUELESS:
        return False
    if name in ("rand", "randn") and not given:
        return int(math.prod(args[0])) <= _DRAWN
    dtype: torch.dtype | None = kwargs.get("dtype")
    return bool(given) or (name in _WHOLE_BY_DEFAULT if dtype is None else not dtype.is_floating_point)


def _has_shape(func: Any, name: str) -> bool:
    """Whether the shape of the result follows from the shapes given."""
    return torch.Tag.dynamic_output_shape not in func.tags and torch.Tag.data_dependent_output not in func.tags


def operation(func: Any, name: str, given: Sequence[Tensor], made: Sequence[Tensor], fresh: int) -> Operation:
    """What a call was, ``fresh`` the bytes that came with its results."""
    in_place = name.endswith("_") or func._schema.is_mutable
    touched = [*given, *made] if fresh or in_place or any(t.dim() == 0 for t in made) else []
    floats = [tensor.dtype for tensor in (*made, *given) if tensor.is_floating_point()]
    return Operation(
        name,
        tuple(tuple(tensor.shape) for tensor in given),
        tuple(tuple(tensor.shape) for tensor in made),
        sum(tensor.numel() * tensor.element_size() for tensor in touched),
        floats[0] if floats else torch.int64,
    )
