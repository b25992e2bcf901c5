"""The ``model/`` folder: config, weights, tokenizer, labels and task, validated before memory is allocated."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import init
from torch.overrides import TorchFunctionMode

from homespun.config import Tree, validate
from homespun.data.labels import Labels
from homespun.errors import UserError, quantity
from homespun.io.atomic import atomic_path, file_digest
from homespun.io.json import read_object
from homespun.migration import TASK_PATH, migrate
from homespun.models.config import ModelConfig
from homespun.models.copy_heads import fit_copy_heads
from homespun.models.model import Model
from homespun.models.neighbour_heads import fit_neighbour_heads
from homespun.text.tokenizer import Tokenizer

MOST_LAYERS = 4096
_MAX_BUFFERS = 2**28  # numbers in computed buffers: position tables of 262,144 positions and width 1,024


def build_on_meta(config: ModelConfig, weights: Mapping[str, Tensor], *, source: str) -> Model:
    """Build a model on the ``meta`` device.

    Args:
        config: config of an untrusted file.
        weights: tensors of the file.
        source: name of the file, for error messages.

    Raises:
        UserError: more layers than weights, or a size that does not fit into memory.
    """
    backbone = config.backbone
    if backbone.own_layers > len(weights):
        raise UserError(f"{source} has {backbone.own_layers} layers, but weights for at most {len(weights)}")
    if backbone.num_hidden_layers > MOST_LAYERS:
        raise UserError(f"{source} has {backbone.num_hidden_layers} layers; at most {MOST_LAYERS} are supported")
    try:
        with torch.device("meta"), SkipInit():  # torch would import its compiler to draw numbers on meta
            model = config.build()
    except (RuntimeError, TypeError, OverflowError) as error:  # a size that torch does not support
        raise UserError(f"{source} describes a tensor that is too large") from error
    saved = model.state_dict().keys()
    computed = sum(buffer.numel() for name, buffer in model.named_buffers() if name not in saved)
    if computed > _MAX_BUFFERS:
        raise UserError(
            f"{source} needs buffers of {computed:,} numbers for max_position_embeddings="
            f"{backbone.max_position_embeddings}; at most {_MAX_BUFFERS:,} are supported"
        )
    return model


FORMAT = 1
# keys of homespun.json and their types
_TYPES: dict[str, tuple[type, ...]] = {
    "model": (dict,),
    "labels": (dict, type(None)),
    "task": (dict,),
    "tokenizer": (str,),
    "weights": (dict,),
}
_INITIALISERS = frozenset(
    {
        *(init.normal_, init.uniform_, init.trunc_normal_, init.orthogonal_),
        *(init.kaiming_normal_, init.kaiming_uniform_, init.xavier_normal_, init.xavier_uniform_),
        *(torch.Tensor.normal_, torch.Tensor.uniform_, fit_neighbour_heads, fit_copy_heads),
    }
)


@dataclass(frozen=True)
class ModelBundle:
    """Content of a ``model/`` folder.

    Attributes:
        model: the network.
        config: settings of backbone and head.
        tokenizer: tokenizer of the network.
        labels: classes or tags of a fine-tuned model.
        task: kind and data settings of a fine-tuned model, such as columns and maximum length.
    """

    model: Model
    config: ModelConfig
    tokenizer: Tokenizer
    labels: Labels | None = None
    task: Tree = field(default_factory=dict)


def weights_of(model: torch.nn.Module) -> dict[str, Tensor]:
    """Return the state dict without duplicates: tied parameters occur once, under their first name."""
    state = model.state_dict(keep_vars=True)
    first = {id(tensor): name for name, tensor in reversed(state.items())}
    return {name: tensor.detach().contiguous() for name, tensor in state.items() if first[id(tensor)] == name}


def fingerprint(model: torch.nn.Module, *, extra: bytes = b"") -> str:
    """Compute a digest of the names and values of the weights and of ``extra``."""
    digest = hashlib.blake2b(extra, digest_size=16)
    for name, tensor in weights_of(model).items():
        digest.update(name.encode())
        digest.update(tensor.cpu().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


class SkipInit(TorchFunctionMode):
    """Mode that skips the random initialisation of parameters, but not of buffers."""

    def __torch_function__(
        self, function: Callable[..., object], types: object, args: tuple[object, ...] = (), kwargs: Tree | None = None
    ) -> object:
        kwargs = kwargs or {}
        tensor = kwargs["tensor"] if "tensor" in kwargs else args[0] if args else None
        if function in _INITIALISERS and isinstance(tensor, torch.nn.Parameter):
            return tensor
        return function(*args, **kwargs)


def build_uninitialized(config: ModelConfig) -> Model:
    """Build a model with uninitialised parameters, to be replaced by `assign_weights`."""
    with SkipInit():
        return config.build()


def load_weights(model: torch.nn.Module, weights: dict[str, Tensor], *, source: str) -> None:
    """Copy ``weights`` into ``model``.

    Raises:
        UserError: a tensor is missing, unexpected or of the wrong shape; no weight is changed.
    """
    parameters = weights_of(model)
    check_fit(parameters, weights, source=source)
    with torch.no_grad():
        for name, tensor in parameters.items():
            tensor.copy_(weights[name])


def assign_weights(model: torch.nn.Module, weights: dict[str, Tensor], *, source: str) -> None:
    """Replace the weights of a new ``model`` by ``weights``, without a copy if dtype and memory layout are equal.

    Memory-mapped tensors stay memory-mapped.

    Raises:
        UserError: as in `load_weights`.
    """
    parameters = weights_of(model)
    check_fit(parameters, weights, source=source)
    state = model.state_dict(keep_vars=True)
    assigned: set[int] = set()
    for name, tensor in parameters.items():
        new = weights[name].to(tensor.dtype).contiguous()
        # copy tensors that are tied in the file but not in the model
        state[name].data = new.clone() if new.data_ptr() in assigned else new
        assigned.add(new.data_ptr())


def check_fit(
    parameters: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    *,
    source: str,
    name_in_file: Callable[[str], str] = str,
) -> None:
    """Raise `UserError` if a tensor is missing, unexpected or of the wrong shape."""
    if missing := sorted(parameters.keys() - weights.keys()):
        raise UserError(f"{source} lacks {quantity(len(missing), 'tensor')}, such as {name_in_file(missing[0])!r}")
    if extra := sorted(weights.keys() - parameters.keys()):
        raise UserError(f"{source} has {quantity(len(extra), 'unknown tensor')}, such as {name_in_file(extra[0])!r}")
    for name, tensor in parameters.items():
        if tensor.shape != weights[name].shape:
            found, expected = tuple(weights[name].shape), tuple(tensor.shape)
            raise UserError(f"{source}: {name_in_file(name)} has shape {found}, but {expected} by the config")


def save_model(
    folder: str | Path,
    model: Model,
    config: ModelConfig,
    tokenizer: Tokenizer,
    *,
    labels: Labels | None = None,
    task: Tree | None = None,
) -> None:
    """Write the ``model/`` folder atomically, replacing an existing one."""
    folder = Path(folder)
    with atomic_path(folder) as temporary:
        temporary.mkdir()
        weights = temporary / "model.safetensors"
        save_file({n: t.cpu() for n, t in weights_of(model).items()}, weights, metadata={"format": "pt"})
        tokenizer.save(temporary)
        description = {
            "format": FORMAT,
            "model": config.model_dump(mode="json"),
            "labels": None if labels is None else labels.to_dict(),
            "task": task or {},
            "tokenizer": tokenizer.fingerprint,
            "weights": {"bytes": weights.stat().st_size, "blake2b": file_digest(weights)},
        }
        (temporary / "homespun.json").write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")


def load_model(folder: str | Path) -> ModelBundle:
    """Read a ``model/`` folder; the model is on the CPU and in evaluation mode.

    Raises:
        UserError: the folder is not a model, has another format version, or is truncated or changed.
    """
    folder = Path(folder)
    path = folder / "homespun.json"
    if not path.is_file():
        raise UserError(f"{folder} is not a homespun model: it has no homespun.json")
    description = _description(path)
    weights = folder / "model.safetensors"
    expected = description["weights"]
    if not weights.is_file():
        raise UserError(f"{folder} has no model.safetensors")
    if weights.stat().st_size != expected["bytes"]:
        raise UserError(f"{weights} was cut short: {weights.stat().st_size} bytes instead of {expected['bytes']} bytes")
    if file_digest(weights) != expected["blake2b"]:
        raise UserError(f"{weights} was altered since it was written: its digest differs")
    config = validate(ModelConfig, migrate(description["model"]), source=str(path))
    tokenizer = Tokenizer.load(folder)
    if tokenizer.fingerprint != description["tokenizer"]:
        raise UserError(f"{folder} has another tokenizer than the model was trained with")
    try:
        tensors = load_file(weights)
    except SafetensorError as error:
        raise UserError(f"{weights} cannot be read: {error}") from error
    check_fit(weights_of(build_on_meta(config, tensors, source=str(path))), tensors, source=str(weights))
    model = build_uninitialized(config)
    assign_weights(model, tensors, source=str(weights))
    labels = None if description["labels"] is None else Labels.from_dict(description["labels"])
    task = migrate(description["task"], TASK_PATH)
    return ModelBundle(model.eval(), config, tokenizer, labels, task)


def _description(path: Path) -> Tree:
    description = read_object(path)
    if description.get("format") != FORMAT:
        raise UserError(f"{path} has format {description.get('format')!r}; this version of homespun reads {FORMAT}")
    if wrong := [key for key, kinds in _TYPES.items() if not isinstance(description.get(key, ...), kinds)]:
        raise UserError(f"{path} was cut short or altered: {wrong[0]} is missing or has the wrong type")
    if not description["weights"].keys() >= {"bytes", "blake2b"}:
        raise UserError(f"{path} was cut short or altered: weights must have bytes and blake2b")
    return description
