"""What a family of Hugging Face models is: its table of tensors, its settings, the classes we have heads for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from homespun.config import Tree, validate
from homespun.errors import UserError
from homespun.hf.convert import Table
from homespun.models.config import EncoderConfig, ModelConfig

# Their other names for our activations. `gelu_fast` is the same tanh formula with its constants written out.
_ACTIVATIONS = {
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu_new",
    "gelu_fast": "gelu_new",
    "swish": "silu",
}
# Settings that change what a model computes, with the one value of each that ours has.
_FIXED: dict[str, tuple[Any, ...]] = {
    "position_embedding_type": (None, "absolute"),
    "is_decoder": (None, False),
    "add_cross_attention": (None, False),
    "pruned_heads": (None, {}),
    "quantization_config": (None,),
}


@dataclass(frozen=True)
class Architecture:
    """One class of transformers.

    Args:
        name: the class.
        kind: the ``kind`` of our head that is the same, None for the model without a head.
        table: the head's tensors.
        head: our head's settings from config.json.
        limit: why a backbone cannot carry this head there, or None.
        pipeline: the hub's word for what it does.
        note: what its user should know.
    """

    name: str
    kind: str | None
    table: Table
    head: Callable[[Tree], Tree | None]
    limit: Callable[[EncoderConfig], str | None] = lambda backbone: None
    pipeline: str | None = None
    note: str | None = None

    @property
    def classifies(self) -> bool:
        """Whether its logits are those of classes, named in config.json."""
        return self.pipeline == "text-classification"


@dataclass(frozen=True)
class Family:
    """Models of one ``model_type``.

    Args:
        model_type: as in config.json.
        table: the tensors of the backbone.
        architectures: its classes; the one without a head is among them.
        defaults: the settings that config.json has, under the same names as ours, each with what transformers assumes
            where config.json does not say.
        offset: how many rows of the position table come before position 0, from the padding id.
    """

    model_type: str
    table: Table
    architectures: tuple[Architecture, ...]
    defaults: Mapping[str, Any]
    offset: Callable[[int], int] = field(default=lambda pad_token_id: 0)

    @property
    def prefix(self) -> str:
        """What the names of the backbone's tensors begin with, except in files of the class without a head."""
        return f"{self.model_type}."

    def architecture(self, kind: str | None) -> Architecture | None:
        """The class whose head is our ``kind``, if there is one."""
        return next((a for a in self.architectures if a.kind == kind), None)

    def read_config(self, tree: Tree, *, source: str) -> tuple[Architecture, ModelConfig]:
        """The class that a config.json names, and our config of the same model.

        Raises:
            UserError: a class or a setting that ours does not have, or a value of the wrong kind.
        """
        architecture = self._named(tree, source)
        for key, allowed in _FIXED.items():
            if tree.get(key) not in allowed:
                raise UserError(f"{source}: {key}={tree[key]!r} is not supported, only {allowed[-1]!r}")
        values = {
            key: default if tree.get(key) is None else tree[key]
            for key, default in self.defaults.items()  # a null is what the class assumes
        }
        for key in ("pad_token_id", "max_position_embeddings"):
            if not isinstance(values[key], int) or isinstance(values[key], bool):
                raise UserError(f"{source}: {key} must be a whole number, not {values[key]!r}")
        offset = self.offset(values["pad_token_id"])
        backbone = values | {
            "hidden_act": _ACTIVATIONS.get(str(values["hidden_act"]), str(values["hidden_act"])),
            "max_position_embeddings": values["max_position_embeddings"] - offset,
            "positions": {"kind": "learned", "offset": offset},
        }
        config = validate(ModelConfig, {"backbone": backbone, "head": architecture.head(tree)}, source=source)
        reason = architecture.limit(config.backbone)
        if reason is not None:
            raise UserError(f"{source}: {reason}; {self._headless()}")
        return architecture, config

    def write_config(self, architecture: Architecture, config: ModelConfig) -> Tree:
        """The config.json of our model; `homespun.hf.labels` adds the names of its classes."""
        backbone = config.backbone
        own = backbone.model_dump(mode="json")
        settings = {key: own[key] for key in self.defaults}
        settings["max_position_embeddings"] += self.offset(backbone.pad_token_id)
        settings["type_vocab_size"] = max(1, backbone.type_vocab_size)  # theirs cannot be without
        if "embedding_size" in settings:
            settings["embedding_size"] = backbone.embedding_size or backbone.hidden_size
        head = {} if config.head is None or architecture.kind is None else config.head.model_dump(mode="json")
        if "dropout" in head:
            settings["classifier_dropout"] = head["dropout"]
        return {"architectures": [architecture.name], "model_type": self.model_type} | settings

    def limit(self, backbone: EncoderConfig) -> str | None:
        """Why this backbone cannot be said in this family, or None."""
        narrow = backbone.embedding_size not in (0, backbone.hidden_size)
        if narrow and "embedding_size" not in self.defaults:
            return f"embedding_size={backbone.embedding_size} differs from hidden_size={backbone.hidden_size}"
        return None

    def _named(self, tree: Tree, source: str) -> Architecture:
        names = tree.get("architectures") or [a.name for a in self.architectures if a.kind is None]
        found = [a for a in self.architectures if isinstance(names, list) and a.name in names]
        if not found:
            ours = ", ".join(a.name for a in self.architectures)
            raise UserError(f"{source}: unknown architectures {names!r}; ours are {ours}; {self._headless()}")
        return found[0]

    def _headless(self) -> str:
        name = next(a.name for a in self.architectures if a.kind is None)
        return f'write "architectures": ["{name}"] there to open the model without its head'


def headless(tree: Tree) -> Tree | None:
    """The model without a head."""
    return None


def plain_gelu(backbone: EncoderConfig) -> str | None:
    """For classes whose head takes the backbone's activation, where ours is always the exact GELU."""
    if backbone.hidden_act == "gelu":
        return None
    return f"the head there has the activation {backbone.hidden_act!r}, and ours is 'gelu'"
