"""Checkpoints: a folder of safetensors files and a ``state.json`` with plain values and digests.

Nothing is pickled, so reading one runs no code. There is no random state: data and dropout of a step are functions of
the seed and the step number.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from homespun.errors import UserError
from homespun.io.atomic import atomic_path, file_digest

State = dict[str, Any]

_STATE = "state.json"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files were verified."""

    path: Path
    state: State

    @property
    def step(self) -> int:
        """Number of steps of the run."""
        return int(self.state["step"])

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Tensors of ``model`` or ``optimizer``, by name, on the CPU."""
        try:
            return load_file(self.path / f"{name}.safetensors")
        except (SafetensorError, OSError) as error:
            raise UserError(f"cannot read {self.path / name}.safetensors: {error}") from error


def write_checkpoint(folder: Path, tensors: Mapping[str, Mapping[str, Tensor]], state: State) -> None:
    """Write ``folder`` atomically.

    Args:
        folder: must not exist; its parent must.
        tensors: one file a name.
        state: plain values, ``step`` among them.
    """
    with atomic_path(folder) as temporary:
        temporary.mkdir()
        files = {}
        for name, named in tensors.items():
            path = temporary / f"{name}.safetensors"
            save_file({key: value.detach().contiguous() for key, value in named.items()}, path)
            files[path.name] = {"bytes": path.stat().st_size, "blake2b": file_digest(path)}
        content = {"state": state, "files": files}
        text = json.dumps(content | {"blake2b": _digest_of(content)}, indent=1)
        (temporary / _STATE).write_text(text, encoding="utf-8")


def read_state(folder: Path) -> tuple[State, State]:
    """State and file digests of a checkpoint, from ``state.json`` alone.

    Raises:
        UserError: it is missing, truncated or altered.
    """
    path = folder / _STATE
    try:
        content = json.loads(path.read_bytes())
        digest = content.pop("blake2b")
        state, files = content["state"], content["files"]
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise UserError(f"{path} is missing or cut short: the checkpoint is incomplete") from error
    if digest != _digest_of(content):
        raise UserError(f"{path} was altered: its digest does not match")
    return state, files


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read and verify the checkpoint in ``folder``.

    Raises:
        UserError: a file is missing, truncated or altered.
    """
    state, files = read_state(folder)
    for name, expected in files.items():
        path = folder / Path(name).name
        if not path.is_file():
            raise UserError(f"{path} is missing: the checkpoint is incomplete")
        size = path.stat().st_size
        if size != expected["bytes"]:
            raise UserError(f"{path} was cut short or altered: {size} bytes, not {expected['bytes']}")
        if file_digest(path) != expected["blake2b"]:
            raise UserError(f"{path} was altered: its digest does not match")
    return Checkpoint(folder, state)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state of an optimizer over named parameters, each tensor as ``<what>/<parameter>``."""
    tensors = {}
    for group in optimizer.param_groups:
        for name, parameter in zip(group["param_names"], group["params"], strict=True):
            for what, value in optimizer.state.get(parameter, {}).items():
                if not isinstance(value, Tensor):
                    raise TypeError(f"{what} of {name} is {type(value).__name__}; checkpoints keep tensors alone")
                tensors[f"{what}/{name}"] = value
    return tensors


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Set the state of ``optimizer`` from `optimizer_tensors`.

    Raises:
        UserError: state of a parameter that the optimizer does not have.
    """
    names = [name for group in optimizer.param_groups for name in group["param_names"]]
    numbers = {name: number for number, name in enumerate(names)}
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        what, _, name = key.partition("/")
        if name not in numbers:
            raise UserError(
                f"the checkpoint is of another optimizer: it has {what} of {name}, which is not trained here"
            )
        state.setdefault(numbers[name], {})[what] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _digest_of(content: State) -> str:
    plain = json.dumps(content, sort_keys=True).encode()
    return hashlib.blake2b(plain, digest_size=16).hexdigest()
