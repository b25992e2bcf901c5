"""Checks of this machine and installation: `homespun doctor`.

Checks write a file to the temporary folder and remove it. A check that raises is reported as failed, so that a broken
installation gives a description instead of a traceback.
"""

from __future__ import annotations

import importlib.util
import math
import os
import platform
import re
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from homespun.errors import quantity
from homespun.io.cores import available_cores

GIB = 1024**3
COMFORTABLE_MEMORY = 4 * GIB
COMFORTABLE_DISK = 5 * GIB
# module and purpose of each extra; extras for development of homespun are left out
EXTRAS = {
    "track": ("tensorboard", "TensorBoard curves"),
    "export": ("onnxruntime", "ONNX files, by `homespun export`"),
    "gguf": ("gguf", "files of llama.cpp, by `homespun export`"),
    "metrics": ("rouge_score", "ROUGE of summaries, F1 of tags"),
    "vectors": ("gensim", "word2vec, by `homespun vectors train`"),
    "sentencepiece": ("sentencepiece", "released models with spm.model or spiece.model"),
    "tune": ("optuna", "the search of `homespun compare`"),
    "serve": ("fastapi", "the HTTP server of `homespun serve`"),
    "ray": ("ray", "`--ray` of `compare`, `corpus build` and `tokenizer train`"),
}


@dataclass(frozen=True)
class Check:
    """Result of one check: ``warn`` costs speed or a feature, ``fail`` means that homespun does not work."""

    name: str
    status: Literal["ok", "warn", "fail"]
    detail: str
    advice: str = ""


def _judge(name: str, good: bool, detail: str, advice: str, otherwise: Literal["warn", "fail"] = "warn") -> Check:
    return Check(name, "ok", detail) if good else Check(name, otherwise, detail, advice)


def examine() -> list[Check]:
    """Check the machine and the installation, the most important checks first, in about five seconds."""
    checks: list[Check] = []
    for name, check in _CHECKS.items():
        try:
            checks.extend(check())
        except Exception as error:  # any error is a finding
            checks.append(Check(name, "fail", f"{type(error).__name__}: {' '.join(str(error).split())}"))
    return checks


def _python() -> Iterator[Check]:
    detail = f"{platform.python_version()} ({platform.system()} {platform.machine()})"
    yield _judge("python", (3, 11) <= sys.version_info < (3, 14), detail, "use Python 3.11, 3.12 or 3.13", "fail")


def _torch() -> Iterator[Check]:
    import torch

    numbers = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    detail = f"{torch.__version__}, threads {torch.get_num_threads()}"
    yield _judge("torch", numbers >= (2, 11), detail, "pip install 'torch>=2.11'", "fail")


def _arithmetic() -> Iterator[Check]:
    import torch

    built = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    blas = built[1] if built else "none"
    onednn = torch.backends.mkldnn.is_available()
    detail = f"BLAS {blas}, oneDNN {'yes' if onednn else 'no'}, {torch.backends.cpu.get_cpu_capability()}"
    advice = "this build of torch is slow on a CPU; install an official wheel"
    yield _judge("arithmetic", blas not in ("none", "generic"), detail, advice)


def _cores() -> Iterator[Check]:
    import torch

    usable = available_cores()
    detail = f"{usable} usable, {psutil.cpu_count(logical=False) or '?'} physical"
    threads = torch.get_num_threads()
    advice = f"torch runs {threads} threads on {quantity(usable, 'core')}: set OMP_NUM_THREADS={usable}"
    yield _judge("cores", threads <= usable, detail, advice)


def _memory() -> Iterator[Check]:
    memory = psutil.virtual_memory()
    detail = f"{memory.available / GIB:.1f} GiB free of {memory.total / GIB:.1f}"
    advice = "close other programs, or lower train.micro_batch_size"
    yield _judge("memory", memory.available >= COMFORTABLE_MEMORY, detail, advice)


def _disk() -> Iterator[Check]:
    here = Path.cwd()
    usage = shutil.disk_usage(here)
    detail = f"{usage.free / GIB:.1f} GiB free in {here}"
    if not os.access(here, os.W_OK):
        yield Check("disk", "warn", f"cannot write to {here}", "run homespun in a folder of your own")
    else:
        advice = "corpora and checkpoints are written here: free space, or use another folder"
        yield _judge("disk", usage.free >= COMFORTABLE_DISK, detail, advice)


def _gpus() -> Iterator[Check]:
    import torch

    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(index)
            with torch.cuda.device(index):
                bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
            precision = "bfloat16" if bf16 else "no bfloat16, mixed precision uses float16"
            name = torch.cuda.get_device_name(index)
            yield Check(f"gpu {index}", "ok", f"{name}, {free / GIB:.1f} GiB free of {total / GIB:.1f}, {precision}")
    elif torch.backends.mps.is_available():
        yield Check("gpu", "ok", "Apple GPU (mps), memory shared with the CPU")
    elif shutil.which("nvidia-smi"):
        detail = f"an NVIDIA driver is installed, but torch {torch.__version__} finds no GPU"
        yield Check("gpu", "warn", detail, "install a CUDA build of torch that the driver supports")
    else:
        yield Check("gpu", "ok", "none: everything runs on the CPU")


def _compiler() -> Iterator[Check]:
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    # torch.compile links its CPU kernels to Python; Debian and Fedora ship the headers in another package
    headers = Path(sysconfig.get_path("include"), "Python.h").is_file()
    if compiler is None:
        yield Check("compiler", "warn", "no C++ compiler: no torch.compile", "install g++ or clang to train faster")
    elif not headers:
        yield Check("compiler", "warn", f"{compiler}, but no Python.h: no torch.compile", "install python3-dev")
    else:
        yield Check("compiler", "ok", f"{compiler}: torch.compile can be used")


def _extras() -> Iterator[Check]:
    for extra, (module, purpose) in EXTRAS.items():
        found = importlib.util.find_spec(module) is not None
        detail = f"{'installed' if found else 'not installed'}: {purpose}"
        yield _judge(f"extra {extra}", found, detail, f"pip install 'homespun[{extra}]'")


def _matmul() -> Iterator[Check]:
    import torch

    from homespun.training.devices import has_bf16
    from homespun.training.precision import MIN_SPEEDUP, product_rates

    size = 1024
    left, right = torch.rand(size, size), torch.rand(size, size)
    expected = left[7].double() @ right[:, 11].double()
    if not math.isclose((left @ right)[7, 11].item(), expected.item(), rel_tol=1e-4):
        yield Check("matmul", "fail", "a float32 product on the CPU is wrong", "reinstall torch")
        return
    emulated = has_bf16() is False  # a product takes seconds
    dtypes = [torch.float32] if emulated else [torch.float32, torch.bfloat16]
    rate, *half = product_rates(dtypes, size=size, seconds=1.0)
    detail = f"{rate / 1e9:.0f} GFLOP/s in float32 on the CPU ({size} x {size}), "
    detail += "no bfloat16 instructions" if emulated else f"{half[0] / rate:.2f} times that in bfloat16"
    faster = "; train.precision=auto trains in bf16 here" if half and half[0] >= MIN_SPEEDUP * rate else ""
    yield Check("matmul", "ok", detail + faster)


def _rates() -> Iterator[Check]:
    from homespun.planning.rates import machine_rates
    from homespun.training.devices import DistributedContext

    rates = machine_rates(DistributedContext.join().device, remeasure=True)
    products, moved, call = rates.products / 1e9, rates.moved / 1e9, 1e6 * rates.call
    measured = f"{products:.0f} GFLOP/s of products, {moved:.0f} GB/s of memory, {call:.1f} µs a call"
    yield Check("plans", "ok", f"use rates measured now: {measured}")


def _attention() -> Iterator[Check]:
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 2, 5, 17, 8, generator=generator)  # each (batch, heads, seq, head_dim)
    keep = torch.rand(2, 1, 1, 17, generator=generator) < 0.7
    keep[..., 0] = True
    scores = (query @ key.transpose(-1, -2) / math.sqrt(8)).masked_fill(~keep, -math.inf)
    error = (scaled_dot_product_attention(query, key, value, attn_mask=keep) - scores.softmax(-1) @ value).abs().max()
    detail = f"fused attention differs from the formula by {error.item():.0e}"
    yield _judge("attention", bool(error < 1e-5), detail, "reinstall torch", "fail")


def _files() -> Iterator[Check]:
    import torch
    from safetensors.torch import load_file, save_file

    weights = {"weight": torch.rand(257, 129)}
    with tempfile.TemporaryDirectory(prefix="homespun-doctor-") as folder:
        path = Path(folder, "weights.safetensors")
        save_file(weights, path)
        same = torch.equal(load_file(path)["weight"], weights["weight"])
    detail = f"weights written to {tempfile.gettempdir()} and read back{'' if same else ' differently'}"
    yield _judge("files", same, detail, "check the disk of the temporary folder", "fail")


_CHECKS: dict[str, Callable[[], Iterator[Check]]] = {
    "python": _python,
    "torch": _torch,
    "arithmetic": _arithmetic,
    "cores": _cores,
    "memory": _memory,
    "disk": _disk,
    "gpu": _gpus,
    "compiler": _compiler,
    "extras": _extras,
    "matmul": _matmul,
    "plans": _rates,
    "attention": _attention,
    "files": _files,
}
