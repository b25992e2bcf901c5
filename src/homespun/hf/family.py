"""Families of Hugging Face models: tensors, settings, classes, and labels in config.json.

A family can express a model if writing its config.json and reading it again gives the same config. Differences are
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
from homespun.models.config import BackboneConfig, ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.models.encoder_decoder import NAMED_TOKENS
from homespun.models.heads import CausalLMHeadConfig

Defaults = dict[str, JsonValue]
Fixed = dict[str, tuple[JsonValue, ...]]
Infer = Callable[[Tree, Mapping[str, Tensor]], Tree]
Notes = Callable[[AnyBackbone], tuple[str, ...]]

STORED = "stored"  # the head of config.json

# gelu_fast is the tanh approximation
_ACTIVATIONS = {"gelu_python": "gelu", "gelu_pytorch_tanh": "gelu_new", "gelu_fast": "gelu_new", "swish": "silu"}
# settings that change the outputs, with their supported values
_FIXED: Fixed = {
    "position_embedding_type": (None, "absolute"),
    "is_decoder": (None, False),
    "add_cross_attention": (None, False),
    "pruned_heads": (None, {}),
    "quantization_config": (None,),
}
# fields without effect on the outputs in evaluation
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
        "backbone.copy_heads",
        "head.dropout",
        "head.input_dropout",
    }
)


def no_notes(backbone: BackboneConfig) -> tuple[str, ...]:
    """Return no notes."""
    return ()


@dataclass(frozen=True)
class Architecture:
    """A model class of transformers."""

    name: str
    kind: str | None  # ``kind`` of the head in homespun; None without a head
    table: Table  # tensors of the head
    head: Callable[[Tree], Tree | None]  # maps config.json with defaults to settings of the head
    pipeline: str | None = None  # name of the task on the hub
    unsupported_fields: frozenset[str] = frozenset()  # paths of fields that config.json lacks, which ``notes`` report
    notes: Notes = no_notes  # maps a backbone to notes on differences from transformers
    dropout: str = "classifier_dropout"  # setting of the dropout of the head
    # True for a config.json of this class, if several classes have the name
    fits: Callable[[Tree], bool] = lambda tree: True
    write: Callable[[Tree], Tree] = lambda head: {}  # maps the settings of the head to further settings of config.json

    @property
    def classifies(self) -> bool:
        """True for classification of texts or tokens, with labels in config.json."""
        return self.pipeline in ("text-classification", "token-classification")

    @property
    def bare(self) -> bool:
        """True if names of tensors lack the prefix of the family."""
        return self.kind in (None, "pooler")


@dataclass(frozen=True)
class Family:
    """Models of one ``model_type``."""

    model_type: str  # as in config.json
    prefix: str  # prefix of tensors of the backbone, except in files of the class without a head
    table: Table  # tensors of the backbone
    architectures: tuple[Architecture, ...]  # classes, including one without a head
    # settings of config.json with their defaults in transformers; a field that has a setting here is copied unchanged
    defaults: Mapping[str, JsonValue]
    names: Mapping[str, str] = field(default_factory=dict)  # settings of fields that have another name in config.json
    # `names` of the decoder, for which `read` returns {"encoder": ..., "decoder": ...}; None for one stack
    decoder_names: Mapping[str, str] | None = None
    # maps settings and the kind of the head to fields that are not copied
    read: Callable[[Tree, str | None], Tree] = lambda settings, kind: {}
    # maps a backbone to settings that are not copied; settings that it cannot express keep their defaults
    write: Callable[[AnyBackbone], Tree] = lambda backbone: {}
    # settings that change the outputs, with their supported values
    fixed: Mapping[str, tuple[JsonValue, ...]] = field(default_factory=dict)
    # maps the padding id to the rows of the position table before position 0
    offset: Callable[[int], int] = lambda pad_token_id: 0
    # settings that are inferred from tensors, where config.json is unreliable
    infer_from_tensors: Infer = lambda tree, weights: {}
    # maps settings to the names of dropout settings that homespun lacks
    dropouts: Callable[[Tree], Sequence[str]] = lambda settings: ()

    @property
    def backbone(self) -> str:
        """``kind`` of the backbone."""
        return "encoder" if self.decoder_names is None else "encoder_decoder"

    @property
    def _stacks(self) -> dict[str, Mapping[str, str]]:
        """``names`` of each stack; the name of a single stack is empty."""
        if self.decoder_names is None:
            return {"": self.names}
        return {"encoder": self.names, "decoder": self.decoder_names}

    @property
    def _tokens(self) -> tuple[str, ...]:
        """Special tokens of an encoder-decoder in config.json."""
        return () if self.decoder_names is None else tuple(name for name in NAMED_TOKENS if name in self.defaults)

    def key(self, name: str) -> str:
        """Setting of a field in config.json."""
        return self.names.get(name, name)

    def read_config(self, tree: Tree, *, source: str, head: str | None = STORED) -> tuple[Architecture, ModelConfig]:
        """Read the class of config.json, or the class with a ``head`` of this kind, and the config of the model.

        Raises:
            UserError: an unsupported class or setting, or a value of the wrong type.
        """
        architecture = self._named(tree, source) if head == STORED else self._with_head(tree, head, source)
        return architecture, self.read_as(architecture, tree, source=source)

    def read_as(self, architecture: Architecture, tree: Tree, *, source: str) -> ModelConfig:
        """Read the config of a model as ``architecture``, instead of the class of config.json.

        Raises:
            UserError: an unsupported setting, or a value of the wrong type.
        """
        for key, allowed in {**_FIXED, **self.fixed}.items():
            if tree.get(key, allowed[0]) not in allowed:
                raise UserError(f"{source}: {key}={tree[key]!r} is not supported, only {allowed[-1]!r}")
        # null means the default
        settings = tree | {key: default for key, default in self.defaults.items() if tree.get(key) is None}
        try:
            fields = self.read(settings, architecture.kind)
            head = architecture.head(settings)
        except UserError as error:
            raise UserError(f"{source}: {error}") from error
        stacks = {
            name: self._read_stack(settings, names, fields.get(name, {}) if name else fields, source)
            for name, names in self._stacks.items()
        }
        # unlike for other settings, null means no token
        tokens = {name: tree.get(name, self.defaults[name]) for name in self._tokens}
        backbone = stacks[""] if "" in stacks else tokens | fields | stacks
        return validate(ModelConfig, {"backbone": {"kind": self.backbone} | backbone, "head": head}, source=source)

    def _read_stack(self, settings: Tree, names: Mapping[str, str], fields: Tree, source: str) -> Tree:
        copied = {
            name: settings[names.get(name, name)]
            for name in EncoderConfig.model_fields
            if names.get(name, name) in self.defaults
        }
        stack = copied | fields
        for name in ("pad_token_id", "max_position_embeddings"):
            if not isinstance(stack[name], int) or isinstance(stack[name], bool):
                raise UserError(f"{source}: {names.get(name, name)} must be an integer, not {stack[name]!r}")
        offset = self.offset(stack["pad_token_id"])
        stack["max_position_embeddings"] -= offset
        stack["hidden_act"] = activation(stack["hidden_act"])
        return {"positions": {"kind": "learned", "offset": offset}} | stack

    def write_config(self, architecture: Architecture, config: ModelConfig, *, labels: Labels | None = None) -> Tree:
        """Settings of config.json that the family can express; ``labels`` are the classes of the head."""
        backbone = config.backbone
        dumped = backbone.model_dump(mode="json")
        copied: Tree = {}
        for stack, names in self._stacks.items():
            fields = dumped[stack] if stack else dumped
            fields["max_position_embeddings"] += self.offset(backbone.pad_token_id)
            fields["type_vocab_size"] = max(1, fields["type_vocab_size"])  # required by transformers
            fields["embedding_size"] = fields["embedding_size"] or fields["hidden_size"]
            fields["num_key_value_heads"] = fields["num_key_value_heads"] or fields["num_attention_heads"]
            # a setting of both stacks has the value of the encoder; `differences` reports the decoder
            copied = {
                key: value for name, value in fields.items() if (key := names.get(name, name)) in self.defaults
            } | copied
        copied |= {name: dumped[name] for name in self._tokens}
        settings = {**self.defaults, **copied, **self.write(backbone)}
        head = {} if config.head is None or architecture.kind is None else config.head.model_dump(mode="json")
        if "dropout" in head:
            settings[self.key(architecture.dropout)] = head["dropout"]
        settings |= architecture.write(head)
        if architecture.classifies:
            settings |= write_labels(labels or default_labels(head["num_labels"]))
        return {"architectures": [architecture.name], "model_type": self.model_type} | settings

    def differences(self, architecture: Architecture, config: ModelConfig) -> list[str]:
        """Describe the fields that config.json cannot express; empty if it can express the model."""
        try:
            expressed = self.read_as(architecture, self.write_config(architecture, config), source=self.model_type)
        except UserError as error:  # for example a head with one class, which means a regression
            return [str(error)]
        return [
            f"{path.removeprefix('backbone.')}={other} where this model has {value}"
            for path, value, other in _differences(_comparable(config), _comparable(expressed), "")
            if path not in _FREE | architecture.unsupported_fields
            # one segment of zeros is the same as none
            and not (path == "backbone.type_vocab_size" and (value, other) == (0, 1))
        ]

    def dropout_notes(self, architecture: Architecture, config: ModelConfig, tree: Tree) -> tuple[str, ...]:
        """Notes on dropout settings of a config.json that homespun lacks."""
        written = self.write_config(architecture, config)
        original = {key: self.defaults[key] if tree.get(key) is None else tree[key] for key in self.dropouts(written)}
        return tuple(
            f"{key}={value} of config.json becomes {written[key]}, also on export; it applies in training only"
            for key, value in original.items()
            if value != written[key]
        )

    def _with_head(self, tree: Tree, head: str | None, source: str) -> Architecture:
        classes = [a for a in self.architectures if a.kind == head]
        if not classes:
            kinds = sorted({a.kind for a in self.architectures if a.kind is not None})
            raise UserError(f"{source}: {self.model_type} has no head {head!r}, only {', '.join(kinds)} and none")
        names = tree.get("architectures") or []
        if not isinstance(names, list):
            raise UserError(f"{source}: architectures must be a list of classes, not {names!r}")
        return next((a for a in classes if a.name in names and a.fits(tree)), classes[0])

    def _named(self, tree: Tree, source: str) -> Architecture:
        names = tree.get("architectures") or [a.name for a in self.architectures if a.kind is None]
        classes = [a for a in self.architectures if isinstance(names, list) and a.name in names and a.fits(tree)]
        if not classes:
            supported = ", ".join(dict.fromkeys(a.name for a in self.architectures))
            name = next(a.name for a in self.architectures if a.kind is None)
            raise UserError(
                f"{source}: architectures={names!r} is not supported, only {supported}; open it without its head by "
                f'`homespun convert --head none`, or set "architectures": ["{name}"] there'
            )
        return classes[0]


def activation(name: object) -> str:
    """Name of an activation in homespun."""
    return _ACTIVATIONS.get(str(name), str(name))


def _comparable(config: ModelConfig) -> Tree:
    """Fields with their implicit values written out."""
    tree = config.model_dump()
    for stack in (tree["backbone"], tree["backbone"].get("encoder"), tree["backbone"].get("decoder")):
        if stack is not None and "embedding_size" in stack:
            stack["embedding_size"] = stack["embedding_size"] or stack["hidden_size"]
            stack["num_key_value_heads"] = stack["num_key_value_heads"] or stack["num_attention_heads"]
            stack["head_size"] = stack["head_size"] or stack["hidden_size"] // stack["num_attention_heads"]
            stack["num_hidden_groups"] = layers = stack["num_hidden_groups"] or stack["num_hidden_layers"]
            if cycle := stack["attention"].get("cycle"):  # one entry per layer
                stack["attention"]["cycle"] = [cycle[layer % len(cycle)] for layer in range(layers)]
            if isinstance(theta := stack["positions"].get("theta"), list):
                stack["positions"]["theta"] = theta[:layers] if len({*theta[:layers]}) > 1 else theta[0]
    head, stack = config.head, tree["backbone"]
    if isinstance(head, CausalLMHeadConfig) and "embedding_size" in stack:
        narrow = head.tie_word_embeddings and stack["embedding_size"] != stack["hidden_size"]
        tree["head"]["transform_bias"] = head.transform_bias or not narrow  # only narrow embeddings have a projection
    return tree


def _differences(first: object, second: object, path: str) -> Iterator[tuple[str, object, object]]:
    """Path and both values of each field in which two configs differ."""
    if isinstance(first, dict) and isinstance(second, dict):
        if first.get("kind") != second.get("kind"):  # other fields cannot be compared
            yield f"{path}.kind", first.get("kind"), second.get("kind")
            return
        for key in first:
            yield from _differences(first[key], second[key], f"{path}.{key}" if path else key)
    elif first != second:
        yield path, first, second


def classification(kind: str, *, dropout: str = "classifier_dropout", **fields: object) -> Callable[[Tree], Tree]:
    """Function from config.json to the settings of a head of this kind, with further ``fields``.

    ``dropout`` is the setting of its dropout; without it the head has the dropout of the hidden states.
    """

    def head(tree: Tree) -> Tree:
        rate = tree.get(dropout)
        rate = tree.get("hidden_dropout_prob", 0.1) if rate is None else rate
        return {"kind": kind, "num_labels": _num_labels(tree), "dropout": rate} | fields

    return head


def _num_labels(tree: Tree) -> int:
    """Number of classes; makes no names, because the number is not yet checked against the weights."""
    table, problem = tree.get("id2label"), tree.get("problem_type")
    count = tree.get("num_labels", 2) if table is None else len(_label_names(table))
    if not isinstance(count, int) or count < 1:
        raise UserError(f"config.json has {count!r} classes, by id2label or num_labels; one is the minimum")
    if problem == "regression" and count > 1:
        raise UserError("config.json has a regression of several numbers; only one is supported")
    if problem == "single_label_classification" and count < 2:
        raise UserError("config.json has a classification with one class; set problem_type to regression")
    return count


def _label_names(table: object) -> list[str]:
    items = table.items() if isinstance(table, dict) else [("", "")]
    try:
        pairs = sorted((int(number), str(name)) for number, name in items)
    except (TypeError, ValueError) as error:
        raise UserError(f"id2label of config.json must map numbers to names, not {table!r}") from error
    names = [name for _, name in pairs]
    if [number for number, _ in pairs] != list(range(len(pairs))) or len(set(names)) != len(names):
        raise UserError(f"id2label of config.json must name each of the classes 0, 1, 2, ... once, not {table!r}")
    return names


def read_labels(tree: Tree) -> Labels:
    """Read the classes of a classifier, in the order of the logits.

    Raises:
        UserError: ``id2label`` is not a numbered list of different names, or has several names for a regression.
    """
    count, table = _num_labels(tree), tree.get("id2label")
    names = default_labels(count).names if table is None else tuple(_label_names(table))
    return Labels(names, multi_label=tree.get("problem_type") == "multi_label_classification")


def write_labels(labels: Labels) -> Tree:
    """Settings of config.json for the classes; a regression is a classifier of one class."""
    problem = "multi_label" if labels.multi_label else "single_label"
    return {
        "id2label": {str(index): name for index, name in enumerate(labels.names)},
        "label2id": {name: index for index, name in enumerate(labels.names)},
        "problem_type": f"{problem}_classification" if labels.multi_label or len(labels) > 1 else "regression",
    }


def default_labels(num_labels: int) -> Labels:
    """Default labels of transformers."""
    return Labels(tuple(f"LABEL_{index}" for index in range(num_labels)))
