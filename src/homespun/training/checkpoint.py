"""Checkpoints: a folder of safetensors files and a ``state.json`` with plain values and digests.

A sharded training writes the folders ``model`` and ``optimizer`` with one file per process.

Nothing is pickled, so reading a checkpoint executes no code. Random state is not stored: the data and dropout of a step
are functions of the seed and the step number.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping
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


class Background:
    """A thread that writes a checkpoint while training goes on."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, write: Callable[[], None]) -> None:
        """Call ``write`` in a thread; the one before must have ended, see `wait`."""
        self._thread = threading.Thread(target=self._call, args=(write,), daemon=True)  # may wait for a lost process
        self._thread.start()

    def wait(self) -> None:
        """Wait until the last call has ended, and raise its error."""
        if self._thread is not None:
            self._thread.join()
        self._thread, error, self._error = None, self._error, None
        if error is not None:
            raise error

    def _call(self, write: Callable[[], None]) -> None:
        try:
            write()
        except BaseException as error:
            self._error = error


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint."""

    path: Path
    state: State

    @property
    def step(self) -> int:
        """Number of optimizer steps."""
        return int(self.state["step"])

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Read the tensors of ``model`` or ``optimizer`` to the CPU; sharded tensors are gathered.

        Raises:
            UserError: the file cannot be read.
        """
        if (self.path / name).is_dir():
            from homespun.training.sharding import read_tensors  # imports torch.distributed.tensor for a second

            return read_tensors(self.path, name)
        try:
            return load_file(self.path / f"{name}.safetensors")
        except (SafetensorError, OSError) as error:
            raise UserError(f"cannot read {self.path / name}.safetensors: {error}") from error


def write_checkpoint(
    folder: Path, tensors: Mapping[str, Mapping[str, Tensor]], state: State, *, shards: Path | None = None
) -> None:
    """Write ``folder`` atomically.

    Args:
        folder: a new folder with an existing parent.
        tensors: written to one file per name.
        state: plain values, including ``step``.
        shards: a folder with files of all processes, which is renamed to the checkpoint.
    """
    with atomic_path(folder) as temporary:
        temporary.mkdir() if shards is None else shards.rename(temporary)
        for name, group in tensors.items():
            path = temporary / f"{name}.safetensors"
            save_file({key: value.detach().contiguous() for key, value in group.items()}, path)
        files = {
            path.relative_to(temporary).as_posix(): {"bytes": path.stat().st_size, "blake2b": file_digest(path)}
            for path in sorted(temporary.rglob("*.safetensors"))
        }
        content = {"state": state, "files": files}
        text = json.dumps(content | {"blake2b": _digest_of(content)}, indent=1)
        (temporary / _STATE).write_text(text, encoding="utf-8")


def read_state(folder: Path) -> tuple[State, State]:
    """Read state and file digests of a checkpoint from ``state.json``.

    Raises:
        UserError: ``state.json`` is missing, truncated or altered.
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
        path = folder.joinpath(*[part for part in Path(name).parts if part not in ("..", Path(name).anchor)])
        if not path.is_file():
            raise UserError(f"{path} is missing: the checkpoint is incomplete")
        size = path.stat().st_size
        if size != expected["bytes"]:
            raise UserError(f"{path} was cut short or altered: {size} bytes, not {expected['bytes']}")
        if file_digest(path) != expected["blake2b"]:
            raise UserError(f"{path} was altered: its digest does not match")
    return Checkpoint(folder, state)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the state of an optimizer over named parameters, with the keys ``<state>/<parameter>``.

    Raises:
        TypeError: a value of the state is not a tensor.
    """
    tensors = {}
    for group in optimizer.param_groups:
        for name, parameter in zip(group["param_names"], group["params"], strict=True):
            for key, value in optimizer.state.get(parameter, {}).items():
                if not isinstance(value, Tensor):
                    raise TypeError(f"{key} of {name} is {type(value).__name__}; checkpoints store only tensors")
                tensors[f"{key}/{name}"] = value
    return tensors


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Load the result of `optimizer_tensors`.

    Raises:
        UserError: the optimizer lacks a parameter of the state.
    """
    names = (name for group in optimizer.param_groups for name in group["param_names"])
    indices = {name: index for index, name in enumerate(names)}
    state: dict[int, dict[str, Tensor]] = {}
    for path, tensor in tensors.items():
        key, _, name = path.partition("/")
        if name not in indices:
            raise UserError(
                f"the checkpoint is of another optimizer: it has {key} of {name}, which is not trained here"
            )
        state.setdefault(indices[name], {})[key] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _digest_of(content: State) -> str:
    plain = json.dumps(content, sort_keys=True).encode()
    return hashlib.blake2b(plain, digest_size=16).hexdigest()
