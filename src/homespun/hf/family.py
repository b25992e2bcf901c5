"""A family of Hugging Face models: tensors, settings, and the classes that we have heads for.

A family can express a model if its config.json, written and read again, gives the same config. The differences are
reported, so that no setting is lost silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue
from torch import Tensor

from homespun.config import Tree, validate
from homespun.data.labels import Labels
from homespun.errors import UserError
from homespun.hf.engine import AnyBackbone, Table
from homespun.hf.labels import default_labels, write_labels
from homespun.models.config import BackboneConfig, ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.models.encoder_decoder import NAMED_TOKENS
from homespun.models.heads import CausalLMHeadConfig

Defaults = dict[str, JsonValue]
Fixed = dict[str, tuple[JsonValue, ...]]
Infer = Callable[[Tree, Mapping[str, Tensor]], Tree]
Notes = Callable[[AnyBackbone], tuple[str, ...]]

STORED = "stored"  # the head that config.json names

# gelu_fast: the tanh formula with its constants written out
_ACTIVATIONS = {
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu_new",
    "gelu_fast": "gelu_new",
    "swish": "silu",
}
# settings that change the outputs, with the values that are supported
_FIXED: Fixed = {
    "position_embedding_type": (None, "absolute"),
    "is_decoder": (None, False),
    "add_cross_attention": (None, False),
    "pruned_heads": (None, {}),
    "quantization_config": (None,),
}
# settings of ours without effect on the outputs outside training
_FREE = frozenset(
    {
        *(
            f"backbone.{stack}{name}"
            for stack in ("", "encoder.", "decoder.")
            for name in (
                "pad_token_id",
                "positions.offset",  # rows before position 0 are never read
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
        kind: the ``kind`` of our head, None without a head.
        table: tensors of the head.
        head: settings of our head, from config.json with its defaults.
        pipeline: the hub's name of the task.
        unsupported_fields: paths of settings that config.json lacks, which ``notes`` report.
        notes: differences from transformers, for a backbone.
        dropout: our name of the setting for the head's dropout.
        write: further settings of config.json, from our head's.
        fits: if several classes have this name, whether config.json means this one.
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
        """True if it predicts classes that config.json names, of texts or of tokens."""
        return self.pipeline in ("text-classification", "token-classification")

    @property
    def bare(self) -> bool:
        """True if its files lack the family's prefix in names of the backbone's tensors."""
        return self.kind in (None, "pooler")


@dataclass(frozen=True)
class Family:
    """Models of one ``model_type``.

    Args:
        model_type: as in config.json.
        prefix: of the names of the backbone's tensors, except in files of the class without a head.
        table: tensors of the backbone.
        architectures: the classes, among them one without a head.
        defaults: the settings of config.json with the defaults of transformers. A field with a setting here is a plain
            value, the same on both sides.
        names: settings of our fields, if they have other names.
        decoder_names: the same for the decoder of an encoder-decoder, whose ``read`` returns
            ``{"encoder": ..., "decoder": ...}``; None for one stack. Special tokens are plain values too.
        read: fields that are not plain values, from the settings and the kind of our head.
        write: the inverse; settings that it cannot express keep their defaults.
        fixed: settings that change the outputs, with the supported values; messages name the last one.
        offset: rows of the position table before position 0, from the padding id.
        infer_from_tensors: settings for which the tensors are a better source than config.json.
        dropouts: dropout settings, of a config.json, that we lack.
    """

    model_type: str
    prefix: str
    table: Table
    architectures: tuple[Architecture, ...]
    defaults: Mapping[str, JsonValue]
    names: Mapping[str, str] = field(default_factory=dict)
    decoder_names: Mapping[str, str] | None = None
    read: Callable[[Tree, str | None], Tree] = lambda settings, kind: {}
    write: Callable[[AnyBackbone], Tree] = lambda backbone: {}
    fixed: Mapping[str, tuple[JsonValue, ...]] = field(default_factory=dict)
    offset: Callable[[int], int] = lambda pad_token_id: 0
    infer_from_tensors: Infer = lambda tree, weights: {}
    dropouts: Callable[[Tree], Sequence[str]] = lambda settings: ()

    @property
    def backbone(self) -> str:
        """The ``kind`` of our backbone."""
        return "encoder" if self.decoder_names is None else "encoder_decoder"

    @property
    def _stacks(self) -> dict[str, Mapping[str, str]]:
        """Names of settings by the name of the stack, which is empty for one stack."""
        return (
            {"": self.names} if self.decoder_names is None else {"encoder": self.names, "decoder": self.decoder_names}
        )

    @property
    def _tokens(self) -> tuple[str, ...]:
        """Fields for special tokens of an encoder-decoder that config.json has."""
        return () if self.decoder_names is None else tuple(name for name in NAMED_TOKENS if name in self.defaults)

    def key(self, name: str) -> str:
        """Setting of a field of ours."""
        return self.names.get(name, name)

    def read_config(self, tree: Tree, *, source: str, head: str | None = STORED) -> tuple[Architecture, ModelConfig]:
        """Class of a config.json, or the class with a ``head`` of this kind, and our config of the model.

        Raises:
            UserError: an unsupported class or setting, or a value of the wrong type.
        """
        architecture = self._named(tree, source) if head == STORED else self._with_head(tree, head, source)
        return architecture, self.read_as(architecture, tree, source=source)

    def read_as(self, architecture: Architecture, tree: Tree, *, source: str) -> ModelConfig:
        """Our config of a model, as ``architecture``, whichever class config.json names.

        Raises:
            UserError: an unsupported setting, or a value of the wrong type.
        """
        for key, allowed in {**_FIXED, **self.fixed}.items():
            if tree.get(key, allowed[0]) not in allowed:
                raise UserError(f"{source}: {key}={tree[key]!r} is not supported, only {allowed[-1]!r}")
        # null is the default
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
        # unlike other settings, null is no token
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
        """Settings of config.json, as far as the family has them; ``labels`` are the classes of the head."""
        backbone = config.backbone
        dumped = backbone.model_dump(mode="json")
        plain: Tree = {}
        for stack, names in self._stacks.items():
            own = dumped[stack] if stack else dumped
            own["max_position_embeddings"] += self.offset(backbone.pad_token_id)
            own["type_vocab_size"] = max(1, own["type_vocab_size"])  # required by transformers
            own["embedding_size"] = own["embedding_size"] or own["hidden_size"]
            own["num_key_value_heads"] = own["num_key_value_heads"] or own["num_attention_heads"]
            # a setting of both stacks has the value of the encoder; the decoder is then found to differ
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
        """Settings that config.json cannot express, in words; empty for the same model."""
        try:
            theirs = self.read_as(architecture, self.write_config(architecture, config), source=self.model_type)
        except UserError as error:  # such as a head of one class, a regression there
            return [str(error)]
        return [
            f"{path.removeprefix('backbone.')}={other} where this model has {own}"
            for path, own, other in _differences(_comparable(config), _comparable(theirs), "")
            if path not in _FREE | architecture.unsupported_fields
            # one segment of zeros is the same as none
            and not (path == "backbone.type_vocab_size" and (own, other) == (0, 1))
        ]

    def dropout_notes(self, architecture: Architecture, config: ModelConfig, tree: Tree) -> tuple[str, ...]:
        """Notes on settings of dropout in a config.json that we lack."""
        here = self.write_config(architecture, config)
        theirs = {key: self.defaults[key] if tree.get(key) is None else tree[key] for key in self.dropouts(here)}
        return tuple(
            f"{key} is {value} in config.json, and {here[key]} here and in what is written; it is for training alone"
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
    """Our name of an activation."""
    return _ACTIVATIONS.get(str(name), str(name))


def _comparable(config: ModelConfig) -> Tree:
    tree = config.model_dump()
    for stack in (tree["backbone"], tree["backbone"].get("encoder"), tree["backbone"].get("decoder")):
        if stack is not None and "embedding_size" in stack:
            stack["embedding_size"] = stack["embedding_size"] or stack["hidden_size"]
            stack["num_key_value_heads"] = stack["num_key_value_heads"] or stack["num_attention_heads"]
            stack["head_size"] = stack["head_size"] or stack["hidden_size"] // stack["num_attention_heads"]
            stack["num_hidden_groups"] = layers = stack["num_hidden_groups"] or stack["num_hidden_layers"]
            if cycle := stack["attention"].get("cycle"):  # one entry a layer
                stack["attention"]["cycle"] = [cycle[layer % len(cycle)] for layer in range(layers)]
            if isinstance(theta := stack["positions"].get("theta"), list):
                stack["positions"]["theta"] = theta[:layers] if len({*theta[:layers]}) > 1 else theta[0]
    head, stack = config.head, tree["backbone"]
    if isinstance(head, CausalLMHeadConfig) and "embedding_size" in stack:
        narrow = head.tie_word_embeddings and stack["embedding_size"] != stack["hidden_size"]
        tree["head"]["transform_bias"] = head.transform_bias or not narrow  # else there is no projection
    return tree


def _differences(own: object, other: object, path: str) -> Iterator[tuple[str, object, object]]:
    """Path and both values of each setting in which two configs differ."""
    if isinstance(own, dict) and isinstance(other, dict):
        if own.get("kind") != other.get("kind"):  # their other settings cannot be compared
            yield f"{path}.kind", own.get("kind"), other.get("kind")
            return
        for key in own:
            yield from _differences(own[key], other[key], f"{path}.{key}" if path else key)
    elif own != other:
        yield path, own, other
