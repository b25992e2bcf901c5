"""Trace of a training step on fake tensors: operations, shapes and memory, without computing values.

The step runs under PyTorch's fake tensors, and a tensor that the real step frees is freed in the trace. Attention
modules, objectives and residual connections therefore need no cost models. Integer tensors (masks, positions, blocks)
are small and control the computation, so they keep their values.
"""

from __future__ import annotations

import math
import re
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from homespun.nn.torch_private import FakeTensor, FakeTensorMode, OpOverload, TorchDispatchMode, storage_id
from homespun.nn.vocabulary_loss import repeat_context
from homespun.planning.allocator import AllocatorModel, lstm_workspace_bytes

Shape = tuple[int, ...]
Types = Sequence[type]
Arguments = tuple[object, ...]  # arguments of an operator call
Keywords = Mapping[str, object] | None

_MAX_REAL = 2**24  # elements; larger results of integer operations are fake too
_MAX_RANDOM = 2**16  # elements; random numbers of a model's constructor, such as random blocks, are fewer
# uninitialised or random, also of integers: no computation depends on the values
_VALUELESS = ("empty", "new_empty", "empty_strided", "random", "random_", "bernoulli", "bernoulli_", "empty_like")
_INTEGER_BY_DEFAULT = ("arange", "randint", "randperm", "full", "scalar_tensor", "lift_fresh", "tril_indices")
_PART = re.compile(r".*?(?:embeddings|layers\.\d+\.\w+|head|final_norm)(?=\.|$)")


@dataclass(frozen=True)
class Operation:
    """Operator call with the properties that determine its time."""

    name: str  # name of the operator, such as `addmm`
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    moved: int  # bytes read and written; 0 for a view
    dtype: torch.dtype  # type of the first floating result or input

    @classmethod
    def of(cls, func: OpOverload, inputs: Sequence[Tensor], outputs: Sequence[Tensor], allocated: int) -> Operation:
        """Describe a call that allocated ``allocated`` bytes."""
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
    """Context that traces the model and the steps that are built and run inside.

    Attributes:
        allocator: memory of the tensors.
        spans: operations with their number of calls, by the name given to `span`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.allocator = AllocatorModel()
        self.spans: dict[str, Counter[Operation]] = {}
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._span: Counter[Operation] | None = None
        self._repeats = 1
        self._storages: dict[int, tuple[int, str]] = {}  # storage -> bytes, part
        self._parts: list[str] = []

    def __enter__(self) -> StepTracer:
        self._token = repeat_context.set(self.repeat)
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        repeat_context.reset(self._token)

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Count operations under ``name``."""
        self._span = self.spans.setdefault(name, Counter())
        try:
            yield
        finally:
            self._span = None

    def sum(self, name: str, value: Callable[[Operation], float]) -> float:
        """Sum ``value`` over all calls in the span ``name``."""
        return sum(value(operation) * count for operation, count in self.spans[name].items())

    @contextmanager
    def repeat(self, count: int) -> Iterator[None]:
        """Count operations ``count`` times. Memory counts once: each iteration frees what it allocates."""
        self._repeats *= count
        try:
            yield
        finally:
            self._repeats //= count

    def watch(self, module: nn.Module) -> None:
        """Attribute further tensors to the parts of ``module`` that allocate them."""
        for name, child in module.named_modules():
            if _PART.fullmatch(name) is not None:
                child.register_forward_pre_hook(lambda *_, name=name: self._parts.append(name))
                child.register_forward_hook(self._leave, always_call=True)

    def _leave(self, *_: object) -> None:
        self._parts.pop()

    def held(self) -> Counter[str]:
        """Allocated bytes by the part that allocated them."""
        sums: Counter[str] = Counter()
        for size, part in self._storages.values():
            sums[part] += size
        return sums

    def __torch_dispatch__(
        self, func: OpOverload, types: Types, args: Arguments = (), kwargs: Keywords = None
    ) -> object:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name == "device":  # called twice for each operation, on fake tensors only
            return cast(Tensor, args[0]).device
        inputs = tensors((args, kwargs))
        fake = any(isinstance(tensor, FakeTensor) for tensor in inputs)
        if fake and name == "_local_scalar_dense" and inputs[0].dtype == torch.bool:
            return False  # `mask.all()` of a mask that is too large to have values: the mask is needed
        if fake or not _has_values(name, inputs, args, kwargs):
            with self._fake:
                result = func(*args, **kwargs)
                if name == "mkldnn_rnn_layer":  # fake tensors have no workspace
                    size = lstm_workspace_bytes(inputs[0].shape, inputs[2].shape[1], inputs[0].element_size())
                    result = (*result[:-1], torch.empty(size, dtype=torch.uint8))
        else:
            result = self._compute(func, name, args, kwargs)
        outputs = tensors(result)
        allocated = sum([self._allocate(tensor) for tensor in outputs])
        if self._span is not None:
            self._span[Operation.of(func, inputs, outputs, allocated)] += self._repeats
        return result

    def _compute(self, func: OpOverload, name: str, args: Arguments, kwargs: Mapping[str, object]) -> object:
        """Compute values, except results with more than `_MAX_REAL` elements."""
        depends_on_values = torch.Tag.dynamic_output_shape in func.tags or torch.Tag.data_dependent_output in func.tags
        if not name.endswith("_") and func._schema.returns and not depends_on_values:
            with self._fake:
                shapes = func(*args, **kwargs)
            if any(tensor.numel() > _MAX_REAL for tensor in tensors(shapes)):
                return shapes
        return func(*args, **kwargs)

    def _allocate(self, tensor: Tensor) -> int:
        """Allocate the tensor's storage if it is new; returns its bytes, else 0."""
        storage, key = tensor.untyped_storage(), storage_id(tensor)
        if key in self._storages:
            return 0
        size = storage.nbytes()
        address = self.allocator.malloc(size)
        self._storages[key] = size, self._parts[-1] if self._parts else "elsewhere"
        # not a method of the tracer, which the finalizer would keep alive as long as the tensor
        weakref.finalize(storage, _free, self.allocator, address, self._storages, key).atexit = False
        return size


def _free(allocator: AllocatorModel, address: int, storages: dict[int, tuple[int, str]], key: int) -> None:
    allocator.free(address)
    del storages[key]


def tensors(tree: object) -> list[Tensor]:
    """Return the tensors in the arguments or results of an operator, also in tuples, lists and dictionaries."""
    if isinstance(tree, Tensor):
        return [tree]
    parts = tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, tuple | list) else ()
    return [leaf for part in parts for leaf in tensors(part)]


def _has_values(name: str, inputs: Sequence[Tensor], args: Arguments, kwargs: Mapping[str, object]) -> bool:
    """True if a call without fake inputs returns values: integer results do."""
    if name in _VALUELESS:
        return False
    if name in ("rand", "randn") and not inputs:
        return math.prod(torch.Size(args[0])) <= _MAX_RANDOM  # type: ignore[arg-type]
    if inputs:
        return True
    dtype = kwargs.get("dtype")
    return not dtype.is_floating_point if isinstance(dtype, torch.dtype) else name in _INTEGER_BY_DEFAULT
