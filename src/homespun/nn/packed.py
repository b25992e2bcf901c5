"""Float32 linear layers with weights packed by oneDNN, for inference on a CPU.

On a core of an AMD EPYC with AVX-512, PyTorch's product computes 100 GFLOP/s, and reads weights at a third of the speed
of memory when there are few rows. Packed weights give 240 GFLOP/s, and half the time for one row and 50,257 words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from homespun.nn.torch_private import packed_linear_ops

Product = Callable[[Tensor], Tensor]
"""(..., in) -> (..., out)."""
MIN_NUMBERS = 2**14
"""Numbers of a matrix from which packing pays with the 64 tokens of a text."""
_ROWS = 8  # weights packed for 8 rows are as fast with 1 to 2,048 rows as weights packed for that number
_STEPS = ((8, 1), (16, 2), (32, 4), (128, 8))  # up to so many rows, multiples of; beyond, of `_STEP`
_STEP = 32


def packed_product(weight: Tensor, bias: Tensor | None, *, min_numbers: int) -> Product | None:
    """Build a function ``values weight^T + bias`` with a packed copy of the weights.

    Args:
        weight: (out, in).
        bias: (out,).
        min_numbers: minimum number of weights for which packing saves time.

    Returns:
        The function, which uses `F.linear` with gradients, for changed weights and for values that are not float32 on
        a CPU, as under autocast; ``None`` if packing is not supported for the weights or saves no time.
    """
    operations = packed_linear_ops()
    suitable = weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.numel() >= min_numbers
    if operations is None or not suitable:
        return None
    pack, multiply = operations
    packed = pack(weight.detach(), _ROWS)
    offset, size, version = None if bias is None else bias.detach(), len(weight), weight._version

    def product(values: Tensor) -> Tensor:
        same = weight._version == version and values.dtype == torch.float32 and values.device.type == "cpu"
        if torch.is_grad_enabled() or not same:
            return F.linear(values, weight, bias)
        rows = values.reshape(-1, values.shape[-1])
        missing = rounded(len(rows)) - len(rows)
        padded = F.pad(rows, (0, 0, 0, missing)) if missing else rows
        result = multiply(padded, packed, offset, "none", [], "")[: len(rows)]
        return result.view(*values.shape[:-1], size)

    return product


def rounded(rows: int) -> int:
    """Round up a number of rows to one of few, since oneDNN compiles a product for each one and keeps 0.6 MB of it."""
    step = next((step for most, step in _STEPS if rows <= most), _STEP)
    return -(-rows // step) * step


def pack_linear(layer: nn.Linear, *, min_numbers: int) -> None:
    """Compute a layer by `packed_product`, if that saves time."""
    product = packed_product(layer.weight, layer.bias, min_numbers=min_numbers)
    if product is not None:
        vars(layer)["forward"] = product


@contextmanager
def packed_linears(module: nn.Module, *, min_numbers: int) -> Iterator[None]:
    """Pack the linear layers of ``module`` inside the context, without gradients; see `packed_product`."""
    linears = [part for part in module.modules() if type(part) is nn.Linear and "forward" not in vars(part)]
    try:
        for linear in linears:
            pack_linear(linear, min_numbers=min_numbers)
        yield
    finally:
        for linear in linears:
            vars(linear).pop("forward", None)  # another thread may have removed it
