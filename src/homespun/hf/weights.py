"""Reader of Hugging Face weights: safetensors or torch files, single or sharded; no code is executed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from homespun.errors import UserError, first_line
from homespun.hf.engine import Weights
from homespun.io.json import read_object

SAFETENSORS, TORCH = "model.safetensors", "pytorch_model.bin"
_INDEX = ".index.json"
_MAX_NAME = 200  # characters of a file name; shards usually have at most 60
SAFETENSORS_FILES = ("model*.safetensors", SAFETENSORS + _INDEX)
TORCH_FILES = ("pytorch_model*.bin", TORCH + _INDEX)


def has_weights(folder: Path) -> bool:
    """True if the folder has files for `read_weights`."""
    return any((folder / name).is_file() for name in (SAFETENSORS, SAFETENSORS + _INDEX, TORCH, TORCH + _INDEX))


def read_weights(folder: Path) -> Weights:
    """Read tensors by name to the CPU, memory-mapped.

    Raises:
        UserError: there are no weights; a file is truncated or has more than plain tensors; the index has a file
            outside the folder, or does not fit the shards; two shards have the same tensor.
    """
    for name, read in ((SAFETENSORS, _read_safetensors), (TORCH, _read_torch)):
        if (folder / name).is_file():
            return read(folder / name)
        if (folder / (name + _INDEX)).is_file():
            return _read_shards(folder / (name + _INDEX), Path(name).suffix, read)
    raise UserError(f"{folder} has no weights: neither {SAFETENSORS} nor {TORCH}, nor an {_INDEX} with its shards")


def _read_safetensors(path: Path) -> Weights:
    try:
        return load_file(path)
    except Exception as error:  # several classes of errors of torch
        raise UserError(f"{path} cannot be read, it was cut short or altered: {first_line(error)}") from error


def _read_shards(index: Path, suffix: str, read: Callable[[Path], Weights]) -> Weights:
    weight_map = read_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise UserError(f"{index} has no weight_map from tensors to files")
    weights: Weights = {}
    for name in sorted(set(weight_map.values())):
        # the index is not trusted: a path must not leave the folder
        if Path(name).name != name or "\\" in name or not name.endswith(suffix) or len(name) > _MAX_NAME:
            raise UserError(f"{index} names the file {name[:80]!r}; shards must be {suffix} files in the same folder")
        if not (index.parent / name).is_file():
            raise UserError(f"{index} names {name!r}, which does not exist; download the missing shard")
        shard = read(index.parent / name)
        if duplicates := weights.keys() & shard.keys():
            raise UserError(f"{index}: {min(duplicates)!r} is in {name!r} and in an earlier shard; remove one")
        weights |= shard
    if weights.keys() != weight_map.keys():
        first = min(weights.keys() ^ weight_map.keys())
        raise UserError(f"{index} and its shards have different tensors, such as {first!r}")
    return weights


def _read_torch(path: Path) -> Weights:
    try:
        with path.open("rb") as stream:
            mapped = stream.read(4) == b"PK\x03\x04"  # files of torch < 1.6 cannot be mapped
        with warnings.catch_warnings(action="ignore"):  # the error below covers them
            content: object = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # several classes of errors of torch and pickle
        raise UserError(
            f"{path} is cut short or has code besides tensors, which is not run; use a model in safetensors"
        ) from error
    if not isinstance(content, dict) or not all(
        isinstance(k, str) and isinstance(v, Tensor) for k, v in content.items()
    ):
        raise UserError(f"{path} must be a mapping of names to tensors")
    for name, tensor in content.items():
        if not _is_plain(tensor):
            raise UserError(f"{path}: {name!r} must be a dense tensor with all of its values in the file")
    return dict(content)


def _is_plain(tensor: Tensor) -> bool:
    """True for a strided CPU tensor no larger than its storage; strides of zero would repeat values."""
    if tensor.layout != torch.strided or tensor.is_nested or tensor.device.type != "cpu":
        return False
    return tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()


def modernize_name(name: str) -> str:
    """Return the modern name of a tensor; the first BERT checkpoints have TensorFlow's names in norms."""
    for old, new in (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")):
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name
