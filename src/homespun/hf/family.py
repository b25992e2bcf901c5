"""What a family of Hugging Face models is: its table of tensors, its settings, the classes we have heads for.

Whether a family can say a model is not a list of conditions. Its config.json is written and read again, and what then
differs is what it cannot say: a setting that some family knows nothing of is never lost in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue
from torch import Tensor

from homespun.config import Tree, validate
from homespun.data.labels import Labels
from homespun.errors import UserError
from homespun.hf.engine import Table
from homespun.hf.labels import default_labels, write_labels
from homespun.models.config import BackboneConfig, CausalLMHeadConfig, ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.models.encoder_decoder import NAMED_TOKENS

Defaults = dict[str, JsonValue]
Fixed = Mapping[str, tuple[JsonValue, ...]]
Infer = Callable[[Tree, Mapping[str, Tensor]], Tree]
Notes = Callable[[Any], tuple[str, ...]]  # of the config of the family's backbone

STORED = "stored"  # the head that the files are said to have, whatever it is

# Their other names for our activations. `gelu_fast` is the same tanh formula with its constants written out.
_ACTIVATIONS = {
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu_new",
    "gelu_fast": "gelu_new",
    "swish": "silu",
}
# Settings that change what a model computes, with the one value of each that ours has.
_FIXED: Fixed = {
    "position_embedding_type": (None, "absolute"),
    "is_decoder": (None, False),
    "add_cross_attention": (None, False),
    "pruned_heads": (None, {}),
    "quantization_config": (None,),
}
# Settings of ours that do not change what a model computes from its weights outside training.
_FREE = frozenset(
    {
        *(
            f"backbone.{stack}{name}"
            for stack in ("", "encoder.", "decoder.")
            for name in (
                "pad_token_id",
                "positions.offset",  # any family can hold any: the rows before position 0 are read by nothing
                "feed_forward_chunk",
                "residual.scaled_initialisation",
                "initialization",
                "neighbour_heads",
                "seed",
            )
        ),
        "head.dropout",
        "head.input_dropout",
    }
)


def no_notes(backbone: BackboneConfig) -> tuple[str, ...]:
    """No notes."""
    return ()


@dataclass(frozen=True)
class Architecture:
    """One class of transformers.

    Args:
        name: the class.
        kind: the ``kind`` of our head that is the same, None for the model without a head.
        table: the head's tensors.
        head: our head's settings from config.json, completed by what transformers assumes.
        pipeline: the hub's word for what it does.
        unsupported_fields: settings of ours, by path, that config.json has no place for and ``notes`` speaks of.
        notes: what its user should know, of a backbone.
        dropout: what config.json calls the dropout of its head.
        write: what else of our head's settings config.json has a place for.
        fits: which config.json it speaks of, where several have its name.
    """

    name: str
    kind: str | None
    table: Table
    head: Callable[[Tree], Tree | None]
    pipeline: str | None = None
    unsupported_fields: frozenset[str] = frozenset()
    notes: Notes = no_notes
    dropout: str = "classifier_dropout"
    fits: Callable[[Tree], bool] = lambda tree: True
    write: Callable[[Tree], Tree] = lambda head: {}

    @property
    def classifies(self) -> bool:
        """Whether its logits are those of classes, named in config.json: of texts or of tokens."""
        return self.pipeline in ("text-classification", "token-classification")

    @property
    def bare(self) -> bool:
        """Whether its files name the backbone's tensors without the family's prefix."""
        return self.kind in (None, "pooler")


@dataclass(frozen=True)
class Family:
    """Models of one ``model_type``.

    Args:
        model_type: as in config.json.
        prefix: what the names of the backbone's tensors begin with, except in files of the class without a head.
        table: the tensors of the backbone.
        architectures: its classes; the one without a head is among them.
        defaults: the settings that config.json has, each with what transformers assumes where it does not say.
        names: of our fields, those that are called otherwise there. Every field whose key is in ``defaults`` is a plain
            value, the same on both sides.
        decoder_names: the same of the decoder, of a family of encoders with one, whose backbone is then told by
            ``read`` as ``{"encoder": ..., "decoder": ...}``; None: one stack. Tokens that its config names
            (``decoder_start_token_id``, ...) are plain values too.
        read: what of our backbone is not a plain value, from the settings and our kind of head.
        write: the same, the other way; what it cannot say it leaves as assumed.
        fixed: settings that change what a model computes, with the values that ours has, the last one to be named.
        offset: how many rows of the position table come before position 0, from the padding id.
        infer_from_tensors: settings that the tensors of the files tell better than their config.json.
        dropouts: settings, from those of a config.json, that are numbers of their own there and not here.
    """

    model_type: str
    prefix: str
    table: Table
    architectures: tuple[Architecture, ...]
    defaults: Mapping[str, JsonValue]
    names: Mapping[str, str] = field(default_factory=dict)
    decoder_names: Mapping[str, str] | None = None
    read: Callable[[Tree, str | None], Tree] = lambda settings, kind: {}
    write: Callable[[Any], Tree] = lambda backbone: {}
    fixed: Fixed = field(default_factory=dict)
    offset: Callable[[int], int] = lambda pad_token_id: 0
    infer_from_tensors: Infer = lambda tree, weights: {}
    dropouts: Callable[[Tree], Sequence[str]] = lambda settings: ()

    @property
    def backbone(self) -> str:
        """The ``kind`` of our backbones that it has."""
        return "encoder" if self.decoder_names is None else "encoder_decoder"

    @property
    def _stacks(self) -> dict[str, Mapping[str, str]]:
        """The stacks of a backbone, by their names in it, and what their fields are called in config.json."""
        return (
            {"": self.names} if self.decoder_names is None else {"encoder": self.names, "decoder": self.decoder_names}
        )

    @property
    def _tokens(self) -> tuple[str, ...]:
        """The fields of a backbone of two stacks that name a token and that config.json has too."""
        return () if self.decoder_names is None else tuple(name for name in NAMED_TOKENS if name in self.defaults)

    def key(self, name: str) -> str:
        """What a field of ours is called in config.json."""
        return self.names.get(name, name)

    def read_config(self, tree: Tree, *, source: str, head: str | None = STORED) -> tuple[Architecture, ModelConfig]:
        """The class that a config.json names, or the one with a ``head`` of this kind, and our config of the model.

        Raises:
            UserError: a class or a setting that ours does not have, or a value of the wrong kind.
        """
        architecture = self._named(tree, source) if head == STORED else self._with_head(tree, head, source)
        return architecture, self.read_as(architecture, tree, source=source)

    def read_as(self, architecture: Architecture, tree: Tree, *, source: str) -> ModelConfig:
        """Our config of a model as one of the classes here, whichever config.json names.

        Raises:
            UserError: a setting that ours does not have, or a value of the wrong kind.
        """
        for key, allowed in {**_FIXED, **self.fixed}.items():
            if tree.get(key, allowed[0]) not in allowed:
                raise UserError(f"{source}: {key}={tree[key]!r} is not supported, only {allowed[-1]!r}")
        # a null is what the class assumes
        assumed = {key: default for key, default in self.defaults.items() if tree.get(key) is None}
        settings = tree | assumed
        try:
            read = self.read(settings, architecture.kind)
            head = architecture.head(settings)
        except UserError as error:
            raise UserError(f"{source}: {error}") from error
        stacks = {
            name: self._read_stack(settings, names, read.get(name, {}) if name else read, source)
            for name, names in self._stacks.items()
        }
        # unlike other settings, a null is no token here
        tokens = {name: tree.get(name, self.defaults[name]) for name in self._tokens}
        backbone = stacks[""] if "" in stacks else tokens | read | stacks
        return validate(ModelConfig, {"backbone": {"kind": self.backbone} | backbone, "head": head}, source=source)

    def _read_stack(self, settings: Tree, names: Mapping[str, str], read: Tree, source: str) -> Tree:
        plain = {
            name: settings[names.get(name, name)]
            for name in EncoderConfig.model_fields
            if names.get(name, name) in self.defaults
        }
        stack = plain | read
        for name in ("pad_token_id", "max_position_embeddings"):
            if not isinstance(stack[name], int) or isinstance(stack[name], bool):
                raise UserError(f"{source}: {names.get(name, name)} must be a whole number, not {stack[name]!r}")
        offset = self.offset(stack["pad_token_id"])
        stack["max_position_embeddings"] -= offset
        stack["hidden_act"] = activation(stack["hidden_act"])
        return {"positions": {"kind": "learned", "offset": offset}} | stack

    def write_config(self, architecture: Architecture, config: ModelConfig, *, labels: Labels | None = None) -> Tree:
        """The config.json of our model, as far as the family can say it; ``labels`` name the classes of its head."""
        backbone = config.backbone
        dumped = backbone.model_dump(mode="json")
        plain: Tree = {}
        for stack, names in self._stacks.items():
            own = dumped[stack] if stack else dumped
            own["max_position_embeddings"] += self.offset(backbone.pad_token_id)
            own["type_vocab_size"] = max(1, own["type_vocab_size"])  # theirs cannot be without
            own["embedding_size"] = own["embedding_size"] or own["hidden_size"]
            own["num_key_value_heads"] = own["num_key_value_heads"] or own["num_attention_heads"]
            # what both stacks call the same, the decoder cannot have otherwise; it is then found to differ
            plain = {
                names.get(name, name): value for name, value in own.items() if names.get(name, name) in self.defaults
            } | plain
        plain |= {name: dumped[name] for name in self._tokens}
        settings = {**self.defaults, **plain, **self.write(backbone)}
        head = {} if config.head is None or architecture.kind is None else config.head.model_dump(mode="json")
        if "dropout" in head:
            settings[self.key(architecture.dropout)] = head["dropout"]
        settings |= architecture.write(head)
        if architecture.classifies:
            settings |= write_labels(labels or default_labels(head["num_labels"]))
        return {"architectures": [architecture.name], "model_type": self.model_type} | settings

    def differences(self, architecture: Architecture, config: ModelConfig) -> list[str]:
        """What of our model its config.json would not say, in words; empty where it is the same model."""
        try:
            theirs = self.read_as(architecture, self.write_config(architecture, config), source=self.model_type)
        except UserError as error:  # such as a head of one class, which there is a regression
            return [str(error)]
        return [
            f"{path.removeprefix('backbone.')}={other} where this model has {own}"
            for path, own, other in _differences(_comparable(config), _comparable(theirs), "")
            if path not in _FREE | architecture.unsupported_fields
            # a table of one segment, of zeros, is the same model as none
            and not (path == "backbone.type_vocab_size" and (own, other) == (0, 1))
        ]

    def dropout_notes(self, architecture: Architecture, config: ModelConfig, tree: Tree) -> tuple[str, ...]:
        """Notes on what a model, read from a config.json, drops out otherwise in training: ours has fewer numbers."""
        here = self.write_config(architecture, config)
        theirs = {key: self.defaults[key] if tree.get(key) is None else tree[key] for key in self.dropouts(here)}
        return tuple(
            f"{key} is {value} in config.json, and {here[key]} here and in what is written; it is of training alone"
            for key, value in theirs.items()
            if value != here[key]
        )

    def _with_head(self, tree: Tree, head: str | None, source: str) -> Architecture:
        found = [a for a in self.architectures if a.kind == head]
        if not found:
            kinds = sorted({a.kind for a in self.architectures if a.kind is not None})
            raise UserError(f"{source}: {self.model_type} has no head {head!r}; there are {', '.join(kinds)}, and none")
        names = tree.get("architectures") or []
        if not isinstance(names, list):
            raise UserError(f"{source}: architectures must be a list of classes, not {names!r}")
        named = [a for a in found if a.name in names and a.fits(tree)]
        return (named or found)[0]

    def _named(self, tree: Tree, source: str) -> Architecture:
        names = tree.get("architectures") or [a.name for a in self.architectures if a.kind is None]
        found = [a for a in self.architectures if isinstance(names, list) and a.name in names and a.fits(tree)]
        if not found:
            ours = ", ".join(dict.fromkeys(a.name for a in self.architectures))
            name = next(a.name for a in self.architectures if a.kind is None)
            raise UserError(
                f"{source}: unknown architectures {names!r}; ours are {ours}; open it without its head by "
                f'`homespun convert --head none`, or write "architectures": ["{name}"] there'
            )
        return found[0]


def activation(name: object) -> str:
    """Our name of an activation of theirs."""
    return _ACTIVATIONS.get(str(name), str(name))


def _comparable(config: ModelConfig) -> Tree:
    tree = config.model_dump()
    for stack in (tree["backbone"], tree["backbone"].get("encoder"), tree["backbone"].get("decoder")):
        if stack is not None and "embedding_size" in stack:
            stack["embedding_size"] = stack["embedding_size"] or stack["hidden_size"]
            stack["num_key_value_heads"] = stack["num_key_value_heads"] or stack["num_attention_heads"]
            stack["head_size"] = stack["head_size"] or stack["hidden_size"] // stack["num_attention_heads"]
            stack["num_hidden_groups"] = layers = stack["num_hidden_groups"] or stack["num_hidden_layers"]
            if cycle := stack["attention"].get("cycle"):  # of each layer, however often it is repeated
                stack["attention"]["cycle"] = [cycle[layer % len(cycle)] for layer in range(layers)]
            if isinstance(theta := stack["positions"].get("theta"), list):
                stack["positions"]["theta"] = theta[:layers] if len({*theta[:layers]}) > 1 else theta[0]
    head, stack = config.head, tree["backbone"]
    if isinstance(head, CausalLMHeadConfig) and "embedding_size" in stack:
        narrow = head.tie_word_embeddings and stack["embedding_size"] != stack["hidden_size"]
        tree["head"]["transform_bias"] = head.transform_bias or not narrow  # else there is no projection
    return tree


def _differences(own: Any, other: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """The settings in which two configs differ, by their path."""
    if isinstance(own, dict) and isinstance(other, dict):
        if own.get("kind") != other.get("kind"):  # then what else they hold cannot be compared
            yield f"{path}.kind", own.get("kind"), other.get("kind")
            return
        for key in own:
            yield from _differences(own[key], other[key], f"{path}.{key}" if path else key)
    elif own != other:
        yield path, own, other
