"""Private functions and classes of PyTorch, collected in one module; `tests/nn/test_torch_private.py` tests each.

Checked with PyTorch 2.11 and 2.13; `pyproject.toml` has the upper bound.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

__all__ = [
    "FakeTensor",
    "FakeTensorMode",
    "FunctionContext",
    "OpOverload",
    "TorchDispatchMode",
    "cpu_has_vnni",
    "disable_compile",
    "disable_dispatch_modes",
    "flash_attention_cpu",
    "flash_attention_cpu_backward",
    "is_compile_error",
    "mkldnn_has_bf16",
    "packed_linear_ops",
    "recompile_limit",
    "remove_sharding",
    "storage_id",
    "tree_leaves",
]

P = ParamSpec("P")
T = TypeVar("T")

disable_dispatch_modes = _disable_current_modes
"""Context manager without the current `TorchDispatchMode`s: tensors made inside have values in a traced step too."""

flash_attention_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
"""Attention on a CPU that also returns the logsumexp, which merges the results of several blocks of keys."""

flash_attention_cpu_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
"""Gradients of `flash_attention_cpu` for queries, keys and values."""


class FunctionContext(Protocol):
    """``ctx`` of a `torch.autograd.Function`, which takes attributes of any name."""

    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[Tensor, ...]

    def save_for_backward(self, *tensors: Tensor | None) -> None: ...

    def mark_non_differentiable(self, *tensors: Tensor) -> None: ...

    def __getattr__(self, name: str) -> Any: ...

    def __setattr__(self, name: str, value: object) -> None: ...


def disable_compile(function: Callable[P, T]) -> Callable[P, T]:
    """Exclude a function from ``torch.compile``, without importing the compiler.

    `torch.compiler.disable` imports it at once, which takes as long as the rest of torch; most commands never compile.
    """
    return _disable_dynamo(function)


def packed_linear_ops() -> tuple[Callable[..., Tensor], Callable[..., Tensor]] | None:
    """Return oneDNN's weight reordering and linear product, or None if this build has neither."""
    if not torch.backends.mkldnn.is_available():
        return None
    try:
        return torch.ops.mkldnn._reorder_linear_weight, torch.ops.mkldnn._linear_pointwise
    except AttributeError:
        return None


def cpu_has_vnni() -> bool:
    """True if this processor adds products of 8-bit integers in 32 bits (AVX512-VNNI)."""
    return bool(torch.cpu._is_vnni_supported())


def mkldnn_has_bf16() -> bool:
    """True if oneDNN computes in bfloat16 on this processor."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def storage_id(tensor: Tensor) -> int:
    """Return a number that identifies the storage of a tensor while it lives; views share it."""
    return int(tensor.untyped_storage()._cdata)


def recompile_limit(limit: int) -> AbstractContextManager[None]:
    """Allow ``torch.compile`` up to ``limit`` variants of one function inside the context; the default is 8."""
    return torch._dynamo.config.patch(recompile_limit=limit)


def is_compile_error(error: BaseException) -> bool:
    """True if ``torch.compile`` raised the error; never imports the compiler."""
    return "torch._dynamo" in sys.modules and isinstance(error, torch._dynamo.exc.TorchDynamoException)


def remove_sharding(module: torch.nn.Module) -> None:
    """Undo `torch.distributed.fsdp.fully_shard` in place, except for the parameters, which stay sharded."""
    from torch.distributed.fsdp import FSDPModule

    for part in module.modules():
        part._state_dict_pre_hooks.clear()
        part._load_state_dict_pre_hooks.clear()
        if isinstance(part, FSDPModule):
            part.reshard()
            part._forward_pre_hooks.clear()
            part._forward_hooks.clear()
            part.__class__ = type(part).__mro__[2]
