"""Trace a training step on fake tensors: operations, shapes and memory, without computing values.

The step runs under PyTorch's fake tensors; a tensor that the real step frees is freed here too. So no attention,
objective or residual wiring needs a description. Integer tensors (masks, positions, blocks) are small and decide what
is computed, so they keep their values.
"""

from __future__ import annotations

import math
import re
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from homespun.nn.torch_private import (
    FakeTensor,
    FakeTensorMode,
    OpOverload,
    TorchDispatchMode,
    storage_id,
    tree_leaves,
)
from homespun.nn.vocabulary_loss import repeat_context
from homespun.planning.allocator import AllocatorModel, lstm_workspace_bytes

Shape = tuple[int, ...]
Types = Sequence[type]
Arguments = tuple[object, ...]  # of an operator's call
Keywords = Mapping[str, object] | None

_LARGEST_REAL = 2**24  # elements; larger results of integer operations are fake too
_LARGEST_DRAWN = 2**16  # elements; what a model draws when it is built, such as random blocks, is smaller
# uninitialised or random, also of integers: these values decide nothing
_VALUELESS = ("empty", "new_empty", "empty_strided", "random", "random_", "bernoulli", "bernoulli_", "empty_like")
_INTEGER_BY_DEFAULT = ("arange", "randint", "randperm", "full", "scalar_tensor", "lift_fresh", "tril_indices")
_PART = re.compile(r".*?(?:embeddings|layers\.\d+\.\w+|head|final_norm)(?=\.|$)")


@dataclass(frozen=True)
class Operation:
    """One call of an operator, as far as its time depends on it."""

    name: str  # of the operator, such as `addmm`
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    moved: int  # bytes read and written; 0 for a view
    dtype: torch.dtype  # of the first floating result or input

    @classmethod
    def of(cls, func: OpOverload, inputs: Sequence[Tensor], outputs: Sequence[Tensor], allocated: int) -> Operation:
        """The operation of a call whose outputs allocated so many bytes."""
        name = func.overloadpacket.__name__
        in_place = name.endswith("_") or func._schema.is_mutable
        touched = [*inputs, *outputs] if allocated or in_place or any(t.dim() == 0 for t in outputs) else []
        floats = [tensor.dtype for tensor in (*outputs, *inputs) if tensor.is_floating_point()]
        return cls(
            name,
            tuple(tuple(tensor.shape) for tensor in inputs),
            tuple(tuple(tensor.shape) for tensor in outputs),
            sum(tensor.nbytes for tensor in touched),
            floats[0] if floats else torch.int64,
        )


class StepTracer(TorchDispatchMode):
    """``with StepTracer() as tracer:`` build and run; then read `allocator`, `spans` and `held`.

    Attributes:
        allocator: memory of the tensors.
        spans: operations with their number of calls, by the name given to `span`.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.allocator = AllocatorModel()
        self.spans: dict[str, Counter[Operation]] = {}
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._span: Counter[Operation] | None = None
        self._repeats = 1
        self._known: dict[int, tuple[int, str]] = {}  # storage -> bytes, part
        self._parts: list[str] = []

    def __enter__(self) -> StepTracer:
        self._token = repeat_context.set(self.repeat)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        repeat_context.reset(self._token)

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Count operations under ``name``."""
        before, self._span = self._span, self.spans.setdefault(name, Counter())
        try:
            yield
        finally:
            self._span = before

    def sum(self, name: str, value: Callable[[Operation], float]) -> float:
        """Sum ``value`` over all calls in the span ``name``."""
        return sum(value(operation) * count for operation, count in self.spans[name].items())

    @contextmanager
    def repeat(self, count: int) -> Iterator[None]:
        """Count operations ``count`` times. Memory is that of one time, as each frees what it allocates."""
        self._repeats *= count
        try:
            yield
        finally:
            self._repeats //= count

    def watch(self, module: nn.Module) -> None:
        """Attribute tensors to the parts of ``module`` that allocate them, from now on."""
        for name, child in module.named_modules():
            if _PART.fullmatch(name) is not None:
                child.register_forward_pre_hook(lambda *_, name=name: self._parts.append(name))
                child.register_forward_hook(self._leave, always_call=True)

    def _leave(self, *_: object) -> None:
        self._parts.pop()

    def held(self) -> Counter[str]:
        """Bytes that are allocated now, by the part that allocated them."""
        sums: Counter[str] = Counter()
        for size, part in self._known.values():
            sums[part] += size
        return sums

    def __torch_dispatch__(
        self, func: OpOverload, types: Types, args: Arguments = (), kwargs: Keywords = None
    ) -> object:
        kwargs = kwargs or {}
        inputs = tensors((args, kwargs))
        name = func.overloadpacket.__name__
        if name == "device":  # fake tensors alone are asked for it, twice for each operation
            return inputs[0].device
        fake = any(isinstance(tensor, FakeTensor) for tensor in inputs)
        if fake and name == "_local_scalar_dense" and inputs[0].dtype == torch.bool:
            return False  # `mask.all()` of a mask that is too large to have values: the mask is needed
        if fake or not _has_values(name, inputs, args, kwargs):
            with self._fake:
                result = func(*args, **kwargs)
                if name == "mkldnn_rnn_layer":  # fake tensors have no workspace
                    result = (*result[:-1], _lstm_workspace(inputs[0], inputs[2]))
        else:
            result = self._real(func, name, args, kwargs)
        outputs = tensors(result)
        allocated = sum([self._allocate(tensor) for tensor in outputs])
        if self._span is not None:
            self._span[Operation.of(func, inputs, outputs, allocated)] += self._repeats
        return result

    def _real(self, func: OpOverload, name: str, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        """Values, unless they are too many."""
        depends_on_values = torch.Tag.dynamic_output_shape in func.tags or torch.Tag.data_dependent_output in func.tags
        if not name.endswith("_") and func._schema.returns and not depends_on_values:
            with self._fake:
                shapes = func(*args, **kwargs)
            if any(tensor.numel() > _LARGEST_REAL for tensor in tensors(shapes)):
                return shapes
        return func(*args, **kwargs)

    def _allocate(self, tensor: Tensor) -> int:
        """Bytes of the tensor's storage where it is new, else 0."""
        storage = tensor.untyped_storage()
        key = storage_id(tensor)
        if key in self._known:
            return 0
        size = storage.nbytes()
        address = self.allocator.malloc(size)
        self._known[key] = size, self._parts[-1] if self._parts else "elsewhere"
        # not a method of the tracer: that would keep it alive as long as the tensor
        weakref.finalize(storage, _free, self.allocator, address, self._known, key).atexit = False
        return size


def _free(allocator: AllocatorModel, address: int, known: dict[int, tuple[int, str]], key: int) -> None:
    allocator.free(address)
    del known[key]


def tensors(tree: object) -> list[Tensor]:
    """The tensors among arguments or results of an operator."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _lstm_workspace(inputs: Tensor, recurrent_weight: Tensor) -> Tensor:
    """``inputs`` (seq, rows, input_size), ``recurrent_weight`` (4 * hidden_size, hidden_size)."""
    seq, rows, width = inputs.shape
    hidden_size, itemsize = recurrent_weight.shape[1], inputs.element_size()
    size = lstm_workspace_bytes(seq, rows, input_size=width, hidden_size=hidden_size, itemsize=itemsize)
    return torch.empty(size, dtype=torch.uint8)


def _has_values(name: str, inputs: Sequence[Tensor], args: tuple[object, ...], kwargs: Mapping[str, object]) -> bool:
    """True if a call without fake inputs gives values: results of integers do."""
    if name in _VALUELESS:
        return False
    if name in ("rand", "randn") and not inputs:
        return math.prod(torch.Size(args[0])) <= _LARGEST_DRAWN  # type: ignore[arg-type]
    dtype = kwargs.get("dtype")
    if inputs:
        return True
    return name in _INTEGER_BY_DEFAULT if not isinstance(dtype, torch.dtype) else not dtype.is_floating_point
