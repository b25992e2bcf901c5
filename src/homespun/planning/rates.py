"""How fast this machine is: a few short measurements, made once and kept, from which the time of a step is added up."""

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

from homespun.io.atomic import write_text
from homespun.planning.trace import Operation
from homespun.training.environment import describe_environment
from homespun.training.malloc import give_back_freed_memory, keep_freed_memory

Clock = Callable[[], float]

# names of operators, without the underscore of those that work in place
_FAMILIES = {
    "unary": r"(gelu|silu|tanh|sigmoid)(_backward)?|exp|erf|log|sin|cos|pow|softplus|logsumexp|_(log_)?softmax(_.*)?",
    "drawn": r"random|uniform|normal|bernoulli|rand|randn|native_dropout",
    "gathered": r"embedding(_dense_backward)?|gather|scatter(_add)?|_?index(_select|_add|_put|_copy|_put_impl)?",
    "sorted": r"sort|argsort|topk",
}
_BY_ELEMENT = ("unary", "drawn", "sorted")
_PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "addmm_": 1, "baddbmm": 1, "baddbmm_": 1}  # where their factors begin
# whole layers at once, on a CPU, a GPU and a Mac; where there is none, PyTorch puts them together of products
_RECURRENT = ("mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn", "_lstm_mps", "lstm_mps")
_ATTENTION = "_scaled_dot_product"
_LARGE = 2**24  # numbers, more than caches hold
_FORM = 4  # of the measurements: those of another form are made anew


@dataclass(frozen=True)
class Rates:
    """Of one device with one number of threads."""

    products: float  # FLOPs a second, of large matrices
    small_products: float  # of many matrices of 64 x 64
    half_products: float  # of large matrices in bf16
    attention: float  # FLOPs a second, of fused attention
    recurrent: float  # the same, of whole recurrent layers
    moved: float  # bytes a second, read and written
    unary: float  # elements a second, of exponentials and their like
    drawn: float  # random numbers a second
    gathered: float  # bytes a second
    sorted: float  # elements a second
    call: float  # seconds that calling an operator takes
    base: float = 0.0  # bytes that the process has beside its tensors; on a GPU 0

    def seconds(self, operation: Operation) -> float:
        """What one call takes."""
        if not operation.moved:
            return self.call
        elements = sum(math.prod(shape) for shape in operation.outputs)
        name = operation.name
        moved = operation.moved / self.moved
        if name.startswith(_ATTENTION):
            work = attention_flops(operation) / self.attention
        elif name.removesuffix("_backward") in _RECURRENT:
            work = matrix_flops(operation) / self.recurrent
        elif flops := matrix_flops(operation):
            work = flops / self._products(operation)
        else:
            work = elements / float(getattr(self, family)) if (family := _family(name)) in _BY_ELEMENT else 0.0
            moved = operation.moved / self.gathered if family == "gathered" else moved
        return self.call + max(work, moved)

    def _products(self, operation: Operation) -> float:
        if operation.dtype in (torch.bfloat16, torch.float16):
            return self.half_products
        if operation.name not in _PRODUCTS:
            return self.products
        narrow = min(size for shape in _operands(operation) for size in shape[-2:])
        share = min(1.0, max(0.0, math.log2(max(narrow, 1) / 64) / 2))  # 64: the small rate, 256: the large one
        return float(self.small_products ** (1 - share) * self.products**share)


@functools.cache
def _family(name: str) -> str:
    return next((family for family, names in _FAMILIES.items() if re.fullmatch(names, name.rstrip("_"))), "")


def flops(operation: Operation) -> float:
    """Multiplications and additions of one call, by PyTorch's own count; of products of matrices alone."""
    return attention_flops(operation) if operation.name.startswith(_ATTENTION) else matrix_flops(operation)


def matrix_flops(operation: Operation) -> float:
    """FLOPs of a product of matrices, of a convolution or of whole recurrent layers, else 0."""
    name, shapes = operation.name, operation.inputs
    if name in _PRODUCTS:
        left, right = _operands(operation)
        return 2.0 * math.prod(left) * right[-1]
    if name == "convolution":
        return _convolved(operation.outputs[0], shapes[1])
    if name == "convolution_backward":
        asked = sum(len(shape) == len(shapes[0]) for shape in operation.outputs)  # of the input, of the filters
        return asked * _convolved(shapes[0], shapes[2])
    if name.removesuffix("_backward") in _RECURRENT:
        return (2.0 if name.endswith("_backward") else 1.0) * _recurrent_flops(operation)
    return 0.0


def _convolved(made: tuple[int, ...], filters: tuple[int, ...]) -> float:
    return 2.0 * math.prod(made) * math.prod(filters[1:])


def _recurrent_flops(operation: Operation) -> float:
    """Of the forward pass: every token goes through every matrix, of a packed text as of a padded one."""
    tokens, *others = operation.inputs
    if operation.name.startswith("mkldnn"):
        weights: Iterable[tuple[int, ...]] = others[:2]
    else:  # the weights stand between states, which have three dimensions
        later = itertools.dropwhile(lambda shape: len(shape) > 2, others)
        weights = itertools.takewhile(lambda shape: len(shape) < 3, later)
    return 2.0 * math.prod(tokens[:-1]) * sum(math.prod(shape) for shape in weights if len(shape) == 2)


def _operands(operation: Operation) -> Sequence[tuple[int, ...]]:
    """The shapes of the two factors; what is added comes before them, and where the result goes after."""
    first = _PRODUCTS[operation.name]
    return operation.inputs[first : first + 2]


def attention_flops(operation: Operation) -> float:
    """FLOPs of fused attention, masked pairs among them."""
    backward = operation.name.endswith("_backward")
    query, key, value = operation.inputs[1:4] if backward else operation.inputs[:3]
    pairs = 2.0 * math.prod(query[:-1]) * key[-2]
    return pairs * (3 * query[-1] + 2 * value[-1] if backward else query[-1] + value[-1])


def machine_rates(device: torch.device, *, clock: Clock = time.perf_counter, fresh: bool = False) -> Rates:
    """Measured in about two seconds, or read from the user's cache folder where they were measured before.

    Args:
        device: where training would run.
        clock: seconds.
        fresh: measure again; ``base`` stays.
    """
    file = _file(device)
    kept = _read(file)
    if kept is not None and not fresh:
        return kept
    rates = replace(_measure(device, clock), base=0.0 if kept is None else kept.base)
    if device.type == "cpu":
        give_back_freed_memory()
    with contextlib.suppress(OSError):  # they are measured again
        write_text(file, json.dumps(asdict(rates), indent=2))
    return rates


def keep_base(device: torch.device, base: float, rates: Rates) -> Rates:
    """The rates with what a process takes beside its tensors, kept for the next time."""
    whole = replace(rates, base=base)
    with contextlib.suppress(OSError):
        write_text(_file(device), json.dumps(asdict(whole), indent=2))
    return whole


def _measure(device: torch.device, clock: Clock) -> Rates:
    if device.type == "cpu":
        keep_freed_memory()  # as trainings do

    def seconds(call: Callable[[], object], *, repeats: int = 5) -> float:
        call()
        found = []
        for _ in range(repeats):
            _wait(device)
            began = clock()
            call()
            _wait(device)
            found.append(clock() - began)
        return max(statistics.median(found), 1e-7)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device)

    def small_steps() -> None:
        value = one.requires_grad_()
        for _ in range(100):
            value = value * other
        torch.autograd.backward(value, other)

    wide, tall, small = normal(1024, 1024), normal(2048, 1024), normal(512, 64, 64)
    half_wide, half_tall = wide.bfloat16(), tall.bfloat16()
    product = 2.0 * math.prod(tall.shape) * wide.shape[1]
    query = normal(8, 4, 256, 64)
    pairs = 4.0 * math.prod(query.shape) * query.shape[-2]
    network = nn.LSTM(256, 256, device=device)
    steps = normal(32, 32, 256)
    recurrent = 16.0 * steps[..., 0].numel() * 256 * 256
    # a step comes back to a tensor when it is no longer in any cache, and to memory that is there
    left, right, made = (normal(_LARGE) for _ in range(3))
    drawn, rows = made[: _LARGE // 4], made.view(-1, 256)
    table, index = normal(4096, 256), torch.randint(4096, (len(rows),), device=device)
    one, other, flat = normal(8), normal(8), normal(2**20)
    return Rates(
        products=product / seconds(lambda: tall @ wide),
        small_products=2.0 * math.prod(small.shape) * 64 / seconds(lambda: small @ small),
        half_products=product / seconds(lambda: half_tall @ half_wide, repeats=3),
        attention=pairs / seconds(lambda: F.scaled_dot_product_attention(query, query, query)),
        recurrent=recurrent / seconds(lambda: network(steps)),
        moved=12.0 * _LARGE / seconds(lambda: torch.add(left, right, out=made)),
        unary=_LARGE / seconds(lambda: torch.ops.aten.gelu(left, out=made)),
        drawn=drawn.numel() / seconds(lambda: drawn.uniform_()),
        gathered=8.0 * _LARGE / seconds(lambda: torch.index_select(table, 0, index, out=rows)),
        sorted=flat.numel() / seconds(lambda: flat.argsort(), repeats=2),
        call=seconds(small_steps) / 200,  # forward and backward
    )


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize()


def _file(device: torch.device) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "homespun" / f"rates-{_FORM}-{_machine(device)}.json"


def _machine(device: torch.device) -> str:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device.type}-{_processor()}"
    words = f"{name}-{torch.get_num_threads()}-{torch.__version__}"
    return "".join(letter if letter.isalnum() or letter in ".-" else "_" for letter in words)


@functools.cache
def _processor() -> str:
    name: str = describe_environment()["cpu"]
    return name


def _read(file: Path) -> Rates | None:
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        return Rates(**{field.name: float(kept[field.name]) for field in fields(Rates)})
    except (OSError, ValueError, KeyError, TypeError):
        return None
