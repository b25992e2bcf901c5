"""Linear layers for inference on a CPU: float32 with packed weights, bfloat16, or 8-bit integers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from homespun.errors import UserError
from homespun.models.bundle import ModelBundle
from homespun.nn.packed import MIN_NUMBERS, pack_linear
from homespun.nn.torch_private import cpu_has_vnni

Precision = Literal["bf16", "int8"]


def quantize(networks: Collection[ModelBundle], precision: Precision, *, source: str) -> None:
    """Compute the linear layers of ``networks`` in bfloat16 or 8-bit integers; other layers stay float32.

    ``int8`` is dynamic quantization: weights have a scale for each output, activations one for each batch, so that a
    result depends slightly on the other texts of its batch. The float32 weights are kept for the parts of a model that
    read them. The networks are moved to the CPU.

    Raises:
        UserError: there is no linear layer, or this build of torch has no 8-bit products.
    """
    if precision == "int8" and torch.backends.quantized.engine == "none":
        raise UserError("quantize=int8 needs a build of torch with 8-bit products; use bf16, or leave it out")
    product = _int8_product if precision == "int8" else _bf16_product
    layers = [part for network in networks for part in network.model.modules() if type(part) is nn.Linear]
    if not layers:
        raise UserError(f"{source} has no linear layers to quantize; leave quantize={precision} out")
    for network in networks:
        network.model.to("cpu")
    for layer in layers:
        vars(layer)["forward"] = product(layer)


def pack_networks(networks: Collection[ModelBundle]) -> None:
    """Compute the linear layers of ``networks`` with packed weights where that is faster, without gradients.

    Layers that are packed or quantized already do not change.
    """
    for network in networks:
        for part in network.model.modules():
            if type(part) is nn.Linear and "forward" not in vars(part):
                pack_linear(part, min_numbers=MIN_NUMBERS)


def _bf16_product(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    weight = layer.weight.detach().bfloat16()
    bias = None if layer.bias is None else layer.bias.detach().bfloat16()
    return lambda values: F.linear(values.bfloat16(), weight, bias).to(values.dtype)


def _int8_product(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    weight = layer.weight.detach()
    scales = weight.abs().amax(1).clamp_min(torch.finfo(weight.dtype).tiny) / 127
    zeros = torch.zeros(len(weight), dtype=torch.int64)
    with warnings.catch_warnings():  # torch deprecates it in favour of torchao, which has no faster kernel for CPUs
        warnings.filterwarnings("ignore", message=".*quantize_per_channel")
        quantized = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
    packed = torch.ops.quantized.linear_prepack(quantized, None if layer.bias is None else layer.bias.detach())
    narrow = not cpu_has_vnni()  # activations of 7 bits, whose sums of products fit 16 bits
    return lambda values: torch.ops.quantized.linear_dynamic(values, packed, reduce_range=narrow)
