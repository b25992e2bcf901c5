"""FLOPs and time of operations.

`flops` counts matrix products, convolutions, attention and recurrent layers. `Rates` are short cached measurements of
this machine, from which `Rates.seconds` estimates the time of an operation.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import os
import re
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from homespun.batch import Batch
from homespun.io.atomic import write_text
from homespun.nn.torch_private import OpOverload, TorchDispatchMode
from homespun.planning.tracer import Arguments, Keywords, Operation, Shape, Types, tensors
from homespun.training.devices import disable_malloc_trim, has_bf16, trim_malloc
from homespun.training.run import processor_name

# names of operators, without the underscore of those that work in place
_FAMILIES = {
    "unary": r"(gelu|silu|tanh|sigmoid)(_backward)?|exp|erf|log|sin|cos|pow|softplus|logsumexp|_(log_)?softmax(_.*)?",
    "drawn": r"random|uniform|normal|bernoulli|rand|randn|native_dropout",
    "gathered": r"embedding(_dense_backward)?|gather|scatter(_add)?|_?index(_select|_add|_put|_copy|_put_impl)?",
    "sorted": r"sort|argsort|topk",
}
_PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "addmm_": 1, "baddbmm": 1, "baddbmm_": 1}  # -> index of the first factor
_RECURRENT = ("mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn", "_lstm_mps", "lstm_mps")  # fused layers: CPU, GPU, Mac
_ATTENTION = "_scaled_dot_product"
_LARGE = 2**24  # elements, more than caches hold
_VERSION = 4  # version of the cached measurements


def flops(operation: Operation) -> float:
    """Count the FLOPs of a product, convolution or fused layer, else 0; a multiplication and an addition are two.

    Attention counts masked pairs too; a recurrent layer multiplies every token by every matrix.
    """
    name, shapes = operation.name, operation.inputs
    backward = name.endswith("_backward")
    if name.startswith(_ATTENTION):
        query, key, value = shapes[1:4] if backward else shapes[:3]
        pairs = 2.0 * math.prod(query[:-1]) * key[-2]
        return pairs * (3 * query[-1] + 2 * value[-1] if backward else query[-1] + value[-1])
    if name in _PRODUCTS:
        left, right = _factors(operation)
        return 2.0 * math.prod(left) * right[-1]
    if name == "convolution":
        return 2.0 * math.prod(operation.outputs[0]) * math.prod(shapes[1][1:])
    if name == "convolution_backward":
        gradients = sum(len(shape) == len(shapes[0]) for shape in operation.outputs)  # gradients of input and filters
        return 2.0 * gradients * math.prod(shapes[0]) * math.prod(shapes[2][1:])
    if name.removesuffix("_backward") in _RECURRENT:
        tokens, *others = shapes
        if name.startswith("mkldnn"):
            weights: Iterable[Shape] = others[:2]
        else:  # the weights are between the states, which have three dimensions
            later = itertools.dropwhile(lambda shape: len(shape) > 2, others)
            weights = itertools.takewhile(lambda shape: len(shape) < 3, later)
        matrices = sum(math.prod(shape) for shape in weights if len(shape) == 2)
        return (4.0 if backward else 2.0) * math.prod(tokens[:-1]) * matrices
    return 0.0


def _factors(operation: Operation) -> Sequence[Shape]:
    """Return the shapes of the two factors; ``addmm`` has the summand before them."""
    first = _PRODUCTS[operation.name]
    return operation.inputs[first : first + 2]


class FlopCounter(TorchDispatchMode):
    """Context that sums the `flops` of executed operations in ``total``."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0.0

    def __torch_dispatch__(
        self, func: OpOverload, types: Types, args: Arguments = (), kwargs: Keywords = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        self.total += flops(Operation.of(func, tensors((args, kwargs)), tensors(result), 0))
        return result


def flops_per_token(objective: nn.Module, batch: Batch) -> float:
    """Measure FLOPs of the forward and backward pass per token of ``batch``, padding excluded.

    Clears the gradients of ``objective``; restores the random state.
    """
    device = next(objective.parameters()).device
    with torch.random.fork_rng(devices=[]), FlopCounter() as counter:
        torch.autograd.backward(objective(batch.to(device)).total(batch.targets))
    objective.zero_grad(set_to_none=True)
    return float(counter.total / max(batch.real_tokens, 1))


@dataclass(frozen=True)
class Rates:
    """Rates of a device with a number of threads: FLOPs, elements or bytes a second."""

    products: float  # FLOPs of large matrices
    small_products: float  # FLOPs of many matrices of 64 x 64
    half_products: float  # FLOPs of large matrices in bf16
    attention: float  # FLOPs of fused attention
    recurrent: float  # FLOPs of fused recurrent layers
    moved: float  # bytes read and written
    unary: float  # elements of functions such as exp
    drawn: float  # random numbers
    gathered: float  # bytes
    sorted: float  # elements
    call: float  # seconds to call an operator
    base: float = 0.0  # bytes of the process without tensors; 0 on a GPU

    def seconds(self, operation: Operation) -> float:
        """Estimate the time of an operation: the larger of arithmetic and memory traffic."""
        if not operation.moved:
            return self.call
        family, count, work = _family(operation.name), flops(operation), 0.0
        moved = operation.moved / (self.gathered if family == "gathered" else self.moved)
        if count:
            work = count / self._flops_rate(operation)
        elif family in ("unary", "drawn", "sorted"):
            work = sum(math.prod(shape) for shape in operation.outputs) / float(getattr(self, family))
        return self.call + max(work, moved)

    def _flops_rate(self, operation: Operation) -> float:
        name = operation.name
        if name.startswith(_ATTENTION):
            return self.attention
        if name.removesuffix("_backward") in _RECURRENT:
            return self.recurrent
        if operation.dtype in (torch.bfloat16, torch.float16):
            return self.half_products
        if name not in _PRODUCTS:
            return self.products
        narrow = min(size for shape in _factors(operation) for size in shape[-2:])
        share = min(1.0, max(0.0, math.log2(max(narrow, 1) / 64) / 2))  # 64: the small rate, 256: the large one
        return float(self.small_products ** (1 - share) * self.products**share)


@functools.cache
def _family(name: str) -> str:
    return next((family for family, names in _FAMILIES.items() if re.fullmatch(names, name.rstrip("_"))), "")


def machine_rates(device: torch.device, *, remeasure: bool = False) -> Rates:
    """Read the rates from the user's cache folder, or measure them in about two seconds and cache them.

    ``remeasure`` measures again, but keeps ``base``.
    """
    cached = None
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        values = json.loads(_file(device).read_text(encoding="utf-8"))
        cached = Rates(**{field.name: float(values[field.name]) for field in fields(Rates)})
    if cached is not None and not remeasure:
        return cached
    rates = replace(_measure(device), base=0.0 if cached is None else cached.base)
    if device.type == "cpu":
        trim_malloc()
    return save_rates(device, rates)


def save_rates(device: torch.device, rates: Rates) -> Rates:
    """Write ``rates`` to the user's cache folder if it is writable, and return them."""
    with contextlib.suppress(OSError):
        write_text(_file(device), json.dumps(asdict(rates), indent=2))
    return rates


def _measure(device: torch.device) -> Rates:
    clock = clock_of(device)
    if device.type == "cpu":
        disable_malloc_trim()  # trainings do the same

    def seconds(call: Callable[[], object], *, repeats: int = 5) -> float:
        call()
        times = []
        for _ in range(repeats):
            synchronize(device)
            start = clock()
            call()
            synchronize(device)
            times.append(clock() - start)
        return max(statistics.median(times), 1e-7)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device)

    def small_steps() -> None:
        value = one.requires_grad_()
        for _ in range(100):
            value = value * other
        torch.autograd.backward(value, other)

    wide, tall, small = normal(1024, 1024), normal(2048, 1024), normal(512, 64, 64)
    emulated = device.type == "cpu" and has_bf16() is False  # 50 times slower than float32
    half_wide, half_tall = wide.bfloat16(), tall[: 32 if emulated else None].bfloat16()
    product, half_product = (2.0 * math.prod(rows.shape) * wide.shape[1] for rows in (tall, half_tall))
    query = normal(8, 4, 256, 64)
    pairs = 4.0 * math.prod(query.shape) * query.shape[-2]
    network, steps = nn.LSTM(256, 256, device=device), normal(32, 32, 256)
    recurrent = 16.0 * steps[..., 0].numel() * 256 * 256
    # larger than the caches, as the tensors of a step are, and already allocated
    left, right, out = (normal(_LARGE) for _ in range(3))
    drawn, rows = out[: _LARGE // 4], out.view(-1, 256)
    table, index = normal(4096, 256), torch.randint(4096, (len(rows),), device=device)
    one, other, flat = normal(8), normal(8), normal(2**20)
    return Rates(
        products=product / seconds(lambda: tall @ wide),
        small_products=2.0 * math.prod(small.shape) * 64 / seconds(lambda: small @ small),
        half_products=half_product / seconds(lambda: half_tall @ half_wide, repeats=3),
        attention=pairs / seconds(lambda: F.scaled_dot_product_attention(query, query, query)),
        recurrent=recurrent / seconds(lambda: network(steps)),
        moved=12.0 * _LARGE / seconds(lambda: torch.add(left, right, out=out)),
        unary=_LARGE / seconds(lambda: torch.ops.aten.gelu(left, out=out)),
        drawn=drawn.numel() / seconds(lambda: drawn.uniform_()),
        gathered=8.0 * _LARGE / seconds(lambda: torch.index_select(table, 0, index, out=rows)),
        sorted=flat.numel() / seconds(lambda: flat.argsort(), repeats=2),
        call=seconds(small_steps) / 200,  # forward and backward
    )


def clock_of(device: torch.device) -> Callable[[], float]:
    """Return the clock that times work on ``device``, in seconds.

    On a CPU it is the processor time of the calling thread, which takes part in every parallel operation: on an idle
    machine that is the time on the wall clock, and time in which other programs have the core does not count.
    """
    return time.thread_time if device.type == "cpu" else time.perf_counter


def synchronize(device: torch.device) -> None:
    """Wait for an accelerator."""
    if device.type != "cpu":
        torch.accelerator.synchronize()


def _file(device: torch.device) -> Path:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device.type}-{processor_name()}"
    machine = re.sub(r"[^\w.-]", "_", f"{name}-{torch.get_num_threads()}-{torch.__version__}")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "homespun" / f"rates-{_VERSION}-{machine}.json"
