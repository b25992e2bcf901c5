"""Shapes of a described model, compared with the given weights before memory is allocated."""

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
from homespun.errors import UserError
from homespun.io.atomic import atomic_path, file_digest
from homespun.migration import TASK_PATH, migrate
from homespun.models.config import ModelConfig
from homespun.models.model import Model
from homespun.models.neighbour_heads import fit_neighbour_heads
from homespun.text.tokenizer import Tokenizer

MOST_LAYERS = 4096
_MOST_COMPUTED = 2**28  # numbers in tables of positions and the like: 262,144 places of width 1,024


def build_on_meta(config: ModelConfig, weights: Mapping[str, Tensor], *, source: str) -> Model:
    """The model of a config, on the device ``meta``.

    Args:
        config: as a file describes it.
        weights: those that it is to be given; none of its layers is without.
        source: what describes it, for errors.

    Raises:
        UserError: it has more layers than there are weights, or asks for endless memory.
    """
    backbone = config.backbone
    if backbone.own_layers > len(weights):
        raise UserError(f"{source} describes {backbone.own_layers} layers; there are weights of at most {len(weights)}")
    if backbone.num_hidden_layers > MOST_LAYERS:
        raise UserError(f"{source} describes {backbone.num_hidden_layers} layers; a model has at most {MOST_LAYERS}")
    try:
        with torch.device("meta"):
            model = config.build()
    except (RuntimeError, TypeError, OverflowError) as error:  # what torch says of a size that no tensor can have
        raise UserError(f"{source} describes a tensor larger than any can be") from error
    kept = model.state_dict().keys()
    computed = sum(buffer.numel() for name, buffer in model.named_buffers() if name not in kept)
    if computed > _MOST_COMPUTED:
        raise UserError(
            f"{source} describes tables of {computed:,} numbers besides the weights, to be computed for "
            f"max_position_embeddings={backbone.max_position_embeddings}; there may be {_MOST_COMPUTED:,}"
        )
    return model


FORMAT = 1
# of homespun.json, and what each is
_DESCRIBED: dict[str, tuple[type, ...]] = {
    "model": (dict,),
    "labels": (dict, type(None)),
    "task": (dict,),
    "tokenizer": (str,),
    "weights": (dict,),
}
_DRAWS = frozenset(
    {
        *(init.normal_, init.uniform_, init.trunc_normal_, init.orthogonal_),
        *(init.kaiming_normal_, init.kaiming_uniform_, init.xavier_normal_, init.xavier_uniform_),
        *(torch.Tensor.normal_, torch.Tensor.uniform_, fit_neighbour_heads),
    }
)


@dataclass(frozen=True)
class ModelBundle:
    """A model as it lies on disk. ``task`` says how its data was read: text and label columns, length in tokens."""

    model: Model
    config: ModelConfig
    tokenizer: Tokenizer
    labels: Labels | None = None
    task: Tree = field(default_factory=dict)


def weights_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers by name; a tied parameter once, under its first name."""
    state = model.state_dict(keep_vars=True)
    seen: set[int] = set()
    weights = {}
    for name, tensor in state.items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            weights[name] = tensor.detach().contiguous()
    return weights


def fingerprint(model: torch.nn.Module, *, extra: bytes = b"") -> str:
    """A digest of the weights by name, and of ``extra``: the same whatever files they came from."""
    digest = hashlib.blake2b(extra, digest_size=16)
    for name, tensor in weights_of(model).items():
        digest.update(name.encode())
        digest.update(tensor.cpu().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


class SkipInit(TorchFunctionMode):
    """Parameters keep what the memory held instead of random numbers; buffers are drawn as always."""

    def __torch_function__(
        self, function: Callable[..., object], types: object, args: tuple[object, ...] = (), kwargs: Tree | None = None
    ) -> object:
        kwargs = kwargs or {}
        tensor = kwargs["tensor"] if "tensor" in kwargs else args[0] if args else None
        if function in _DRAWS and isinstance(tensor, torch.nn.Parameter):
            return tensor
        return function(*args, **kwargs)


def build_uninitialized(config: ModelConfig) -> Model:
    """The model, to be given its weights by `assign_weights` at once: they are not drawn, and take no memory."""
    with SkipInit():
        return config.build()


def load_weights(model: torch.nn.Module, weights: dict[str, torch.Tensor], *, source: str) -> None:
    """Copy ``weights`` into ``model``.

    Raises:
        UserError: a tensor is missing, left over, or of another shape; the first is named, and nothing was changed.
    """
    parameters = weights_of(model)
    _check_fit(parameters, weights, source)
    with torch.no_grad():
        for name, tensor in parameters.items():
            tensor.copy_(weights[name])


def assign_weights(model: torch.nn.Module, weights: dict[str, torch.Tensor], *, source: str) -> None:
    """Make ``weights`` those of ``model``, which must not be in use yet: what has its type and order is not copied.

    Tensors that are mapped from a file stay so, and take memory when they are read.

    Raises:
        UserError: as in `load_weights`.
    """
    parameters = weights_of(model)
    _check_fit(parameters, weights, source)
    own = model.state_dict(keep_vars=True)
    taken: set[int] = set()
    for name, tensor in parameters.items():
        given = weights[name].to(tensor.dtype).contiguous()
        # two that were one there would change together here
        own[name].data = given.clone() if given.data_ptr() in taken else given
        taken.add(given.data_ptr())


def _check_fit(parameters: dict[str, torch.Tensor], weights: dict[str, torch.Tensor], source: str) -> None:
    if missing := sorted(parameters.keys() - weights.keys()):
        raise UserError(f"{source}: {len(missing)} tensors are missing, the first {missing[0]!r}")
    if extra := sorted(weights.keys() - parameters.keys()):
        raise UserError(f"{source}: {len(extra)} tensors have no place in the model, the first {extra[0]!r}")
    for name, tensor in parameters.items():
        if tensor.shape != weights[name].shape:
            given, own = tuple(weights[name].shape), tuple(tensor.shape)
            raise UserError(f"{source}: {name} has shape {given}, the model wants {own}")


def save_model(
    folder: str | Path,
    model: Model,
    config: ModelConfig,
    tokenizer: Tokenizer,
    *,
    labels: Labels | None = None,
    task: Tree | None = None,
) -> None:
    """Write the ``model/`` folder, whole or not at all; an older one there is replaced."""
    folder = Path(folder)
    with atomic_path(folder) as made:
        made.mkdir()
        weights = made / "model.safetensors"
        save_file({n: t.cpu() for n, t in weights_of(model).items()}, weights, metadata={"format": "pt"})
        tokenizer.save(made)
        description = {
            "format": FORMAT,
            "model": config.model_dump(mode="json"),
            "labels": None if labels is None else labels.to_dict(),
            "task": task or {},
            "tokenizer": tokenizer.fingerprint,
            "weights": {"bytes": weights.stat().st_size, "blake2b": file_digest(weights)},
        }
        (made / "homespun.json").write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")


def load_model(folder: str | Path, *, device: str | torch.device = "cpu") -> ModelBundle:
    """The model in a ``model/`` folder, in evaluation mode.

    Raises:
        UserError: the folder is not a model's, is of another version, or was cut short or altered.
    """
    folder = Path(folder)
    path = folder / "homespun.json"
    if not path.is_file():
        raise UserError(f"{folder} is not a homespun model: there is no homespun.json in it")
    description = _description(path)
    weights = folder / "model.safetensors"
    expected = description["weights"]
    if not weights.is_file():
        raise UserError(f"{folder} has no model.safetensors")
    if weights.stat().st_size != expected["bytes"]:
        raise UserError(
            f"{weights} was cut short: {weights.stat().st_size} bytes where {expected['bytes']} were written"
        )
    if file_digest(weights) != expected["blake2b"]:
        raise UserError(f"{weights} was altered since it was written: its digest differs")
    config = validate(ModelConfig, migrate(description["model"]), source=str(path))
    tokenizer = Tokenizer.load(folder)
    if tokenizer.fingerprint != description["tokenizer"]:
        raise UserError(f"{folder} holds another tokenizer than its model was made with")
    try:
        tensors = load_file(weights)
    except SafetensorError as error:
        raise UserError(f"{weights} cannot be read: {error}") from error
    _check_fit(weights_of(build_on_meta(config, tensors, source=str(path))), tensors, str(weights))
    model = build_uninitialized(config)
    assign_weights(model, tensors, source=str(weights))
    labels = None if description["labels"] is None else Labels.from_dict(description["labels"])
    task = migrate(description["task"], TASK_PATH)
    return ModelBundle(model.to(device).eval(), config, tokenizer, labels, task)


def _description(path: Path) -> Tree:
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} was cut short or altered: {error}") from error
    if not isinstance(description, dict):
        raise UserError(f"{path} was cut short or altered: it must hold an object, not {type(description).__name__}")
    if description.get("format") != FORMAT:
        raise UserError(f"{path} is of format {description.get('format')!r}; this version of homespun reads {FORMAT}")
    if wrong := [key for key, kinds in _DESCRIBED.items() if not isinstance(description.get(key, ...), kinds)]:
        raise UserError(f"{path} was cut short or altered: it does not say {wrong[0]} as it was written")
    if not description["weights"].keys() >= {"bytes", "blake2b"}:
        raise UserError(f"{path} was cut short or altered: it does not say weights as it was written")
    return description
