"""Configs: reading, overriding and validation. A union of frozen models, tagged by `kind`, is a registry of variants.

YAML is read by safe load only. Errors have the key, the value and the allowed values in one line.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, ClassVar, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import ErrorDetails

from homespun.errors import UserError, first_line, nearest
from homespun.migration import RENAMED_KINDS, find_new_key

T = TypeVar("T", bound=BaseModel)
N = TypeVar("N", int, float)
Tree = dict[str, Any]


class Config(BaseModel):
    """Base class of configs: frozen, with finite numbers, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)


_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_COUNTS = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9}


def parse_duration(value: object) -> float:
    """Seconds of ``90``, ``"90s"``, ``"20m"``, ``"2h"``, ``"1h30m"``, ``"1.5d"``."""
    text = "" if isinstance(value, bool) else str(value).replace(" ", "")
    try:
        seconds = float(text)
    except ValueError:
        parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", text)
        if not parts or "".join(a + b for a, b in parts) != text:
            raise ValueError(f"{value!r} is not a duration; write seconds or 90s, 20m, 2h, 1h30m, 1d") from None
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not 0 < seconds < math.inf:
        raise ValueError(f"{value!r} must be a finite duration above zero")
    return seconds


def parse_count(value: object) -> int:
    """An integer from ``1000``, ``"1000"``, ``"250k"``, ``"10M"``, ``"1.5B"``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKMGB]?)", str(value).replace("_", "").strip())
    number = None if isinstance(value, bool) or match is None else Decimal(match[1]) * _COUNTS[match[2]]
    if number is None or number != int(number):
        raise ValueError(f"{value!r} is not a count; write 5000, 250k, 10M or 1.5B")
    return int(number)


def parse_bytes(value: object) -> int:
    """Bytes of ``8e9``, ``"12GB"`` (of 10^9), ``"512MB"``, ``"8GiB"`` (of 2^30)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?(?:e\d+)?)\s*(?:([kMGT])(i?)B)?", str(value).replace("_", "").strip())
    number = 0.0
    if match is not None and not isinstance(value, bool):
        number = float(match[1]) * float((1024 if match[3] else 1000) ** " kMGT".index(match[2] or " "))
    if not 1 <= number < math.inf:
        raise ValueError(f"{value!r} is not a size of memory; write 12GB, 800MB, 8GiB, or bytes")
    return round(number)


def parse_option(parse: Callable[[object], N], value: object, option: str) -> N | None:
    """Parse the value of a command-line option; ``None`` stays.

    Raises:
        UserError: the value is invalid.
    """
    if value is None:
        return None
    try:
        return parse(value)
    except ValueError as error:
        raise UserError(f"{option}: {error}") from error


# the schemas accept more types than the fields
Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(lambda s: s, return_type=float),
    WithJsonSchema({"type": ["number", "string"], "format": "duration", "examples": [90, "20m", "2h"]}),
]
Count = Annotated[
    int,
    BeforeValidator(parse_count),
    WithJsonSchema({"type": ["integer", "string"], "format": "count", "examples": [5000, "250k"]}),
]

Bytes = Annotated[
    int,
    BeforeValidator(parse_bytes),
    WithJsonSchema({"type": ["integer", "string"], "format": "bytes", "examples": ["12GB", "8GiB"]}),
]


def read_yaml(path: str | Path) -> Tree:
    """Read a mapping from a YAML file.

    Raises:
        UserError: the file is missing, not YAML, or not a mapping.
    """
    path = Path(path)
    try:
        with path.open("rb") as stream:
            content = stream.read(_YAML_BYTES + 1)
        if len(content) > _YAML_BYTES:
            raise UserError(f"{path} has more than {_YAML_BYTES:,} bytes; a recipe is smaller")
        tree = parse_yaml(content.decode("utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(tree, dict):
        raise UserError(f"{path} must hold a mapping of keys to values, not {type(tree).__name__}")
    return tree


_YAML_BYTES, _YAML_NODES, _YAML_DEPTH = 1_000_000, 20_000, 50


def parse_yaml(text: str) -> object:
    """Parse YAML of mappings, lists, strings, numbers, booleans and nulls; dates are strings.

    Raises:
        yaml.YAMLError: other tags, a value that contains itself, more than 50 levels or 20,000 values, of which each
            alias repeats those of its anchor, or a value that does not fit its tag.
    """
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    except (ValueError, KeyError, OverflowError) as error:  # a conversion failed
        raise yaml.YAMLError(f"a value does not fit its tag or is too large: {first_line(error)}") from error
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    """Safe loader without the tags that JSON lacks, and with bounds of depth and size."""

    yaml_constructors: ClassVar = {
        tag: construct
        for tag, construct in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.rpartition(":")[2] in ("null", "bool", "int", "float", "str", "seq", "map")
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._nodes = 0
        self._sizes: dict[str, int] = {}  # nodes below each anchor

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: yaml.NodeEvent = self.peek_event()
        before = self._nodes
        anchor = event.anchor
        if isinstance(event, yaml.AliasEvent) and anchor in self.anchors:
            if anchor not in self._sizes:
                raise yaml.YAMLError(f"the value of &{anchor} contains itself")
            self._nodes += self._sizes[anchor]
        self._depth += 1
        self._nodes += 1
        if self._depth > _YAML_DEPTH or self._nodes > _YAML_NODES:
            raise yaml.YAMLError(f"it has more than {_YAML_DEPTH} levels or {_YAML_NODES:,} values")
        node = super().compose_node(parent, index)
        self._depth -= 1
        if anchor is not None:
            self._sizes.setdefault(anchor, self._nodes - before)
        return node


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def override(tree: Mapping[str, object], assignments: Sequence[str]) -> Tree:
    """Copy ``tree`` with assignments such as ``"train.budget.time=2h"``, whose values are read as YAML.

    Raises:
        UserError: an assignment has no ``=``, or its path leads through a plain value.
    """
    result = copy.deepcopy(dict(tree))
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals or not path:
            raise UserError(f"{assignment!r} is not an assignment; write KEY=VALUE, such as train.seed=1")
        node = result
        *parents, last = path.split(".")
        for parent in parents:
            child = node.get(parent)
            if child is None:
                child = node[parent] = {}
            if not isinstance(child, dict):
                raise UserError(f"cannot set {path!r}: {parent!r} holds a plain value, {child!r}")
            node = child
        node[last] = _value(text)
    return result


def _value(text: str) -> object:
    """Value of YAML; the text itself if it is not YAML, or empty, such as ``|``."""
    try:
        value = parse_yaml(text)
    except yaml.YAMLError:
        return text
    return text if value in (None, "", [None], {None: None}) and text not in _EMPTY else value


_EMPTY = ("~", "null", "Null", "NULL", "''", '""')


def validate(kind: type[T], tree: Mapping[str, object], *, source: str) -> T:
    """Validate ``tree`` as a config of ``kind``.

    Raises:
        UserError: unknown keys with the nearest allowed ones, and invalid values; begins with ``source``.
    """
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        raise UserError(f"{source}: " + "; ".join(_problem(e, kind) for e in error.errors())) from error


def _problem(error: ErrorDetails, kind: type[BaseModel]) -> str:
    location = [str(part) for part in error["loc"]]
    if error["type"] == "extra_forbidden":
        # the location of pydantic includes the tags of unions
        keys, path = _keys_at(kind, location[:-1])
        if new := find_new_key([*path, location[-1]], keys):
            return f"{'.'.join([*path, location[-1]])} was renamed to {'.'.join([*path, new])}"
        return f"unknown key {'.'.join([*path, location[-1]])!r}{_nearest_key(kind, path, location[-1], keys)}"
    _, path = _keys_at(kind, location)
    if error["type"] == "union_tag_not_found":
        return f"{'.'.join(path)}: 'kind' is missing, which determines the other keys"
    if error["type"] == "union_tag_invalid":
        allowed = re.findall(r"'([^']*)'", error["ctx"]["expected_tags"])
        key, tag = ".".join([*path, "kind"]), error["ctx"]["tag"]
        if RENAMED_KINDS.get(tag) in allowed:
            return f"{key}={tag} was renamed to {key}={RENAMED_KINDS[tag]}"
        return f"{key}: unknown kind {tag!r}{nearest(tag, allowed)}"
    message = error["msg"].removeprefix("Value error, ")
    value = error.get("input")
    shown = "" if isinstance(value, (dict, BaseModel)) or error["type"] == "missing" else f" (given {value!r})"
    return f"{'.'.join(path) or 'config'}: {message}{shown}"


def _nearest_key(kind: type[BaseModel], path: list[str], name: str, keys: list[str]) -> str:
    """End of an error: the only key of this name elsewhere, or the nearest one here, or all keys here."""
    elsewhere = set(_paths_to(name, kind)) - {(*path, name)}  # not the key of another kind at this path
    if len(elsewhere) == 1:
        return f"; did you mean {'.'.join(elsewhere.pop())!r}?"
    return nearest(name, keys, prefix=".".join([*path, ""]))


def _paths_to(
    name: str, kind: type[BaseModel], path: tuple[str, ...] = (), seen: tuple[type, ...] = ()
) -> Iterator[tuple[str, ...]]:
    """Paths of all keys ``name`` in a config of ``kind``, in which a config does not contain itself."""
    for key, field in kind.model_fields.items():
        if key == name:
            yield (*path, key)
        for model in _models_in(field.annotation):
            if model not in seen:
                yield from _paths_to(name, model, (*path, key), (*seen, model))


def _keys_at(kind: type[BaseModel], location: Sequence[str]) -> tuple[list[str], list[str]]:
    """Allowed keys at ``location``, and the location without tags and labels of unions."""
    models: list[type[BaseModel]] = [kind]
    path: list[str] = []
    label_follows = False
    for part in location:
        if label_follows:  # pydantic's label of a member of a union of plain types, such as constrained-int
            label_follows = False
            continue
        # in a union the tag comes first, and may equal the name of a field of another member
        tagged = [m for m in models if _tag(m) == part] if len(models) > 1 else []
        if tagged:
            models = tagged
            continue
        path.append(part)
        fields = [m.model_fields[part] for m in models if part in m.model_fields]
        if fields:
            models = [m for f in fields for m in _models_in(f.annotation)]
            label_follows = not models and any(_is_union(f.annotation) for f in fields)
    return sorted({name for m in models for name in m.model_fields}), path


def _is_union(annotation: object) -> bool:
    """True for a union of several types, without None."""
    is_union = get_origin(annotation) in (Union, UnionType)
    return is_union and len(set(get_args(annotation)) - {type(None)}) > 1


def _models_in(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for part in getattr(annotation, "__args__", ()) for m in _models_in(part)]


def _tag(model: type[BaseModel]) -> str | None:
    field = model.model_fields.get("kind")
    return None if field is None else str(field.default)


def flatten(tree: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Flatten a nested mapping to dotted keys, ``{"train.budget.time": 60.0, ...}``; lists stay values."""
    flat: dict[str, object] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        flat |= flatten(value, f"{name}.") if isinstance(value, Mapping) and value else {name: value}
    return flat


def dump(config: BaseModel) -> str:
    """Convert to YAML with all defaults, in the order of the fields."""
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=100)
    return str(text)


def json_schema(kind: Any) -> Tree:
    """JSON schema of a config or a union of configs."""
    return TypeAdapter(kind).json_schema()
