"""Conversion of weights between Hugging Face and homespun by tables of tensor names, in both directions.

Each tensor of either side matches exactly one rule. Tensors of Hugging Face without a rule are dropped with a reason,
or raise an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from homespun.errors import UserError
from homespun.models.config import BackboneConfig

T = TypeVar("T")
Weights = dict[str, Tensor]
AnyBackbone = Any  # config of the kind of backbone that a family has
Change = Callable[[Tensor, AnyBackbone], Tensor]

# no leading zeros, so that no two names are of one layer
_PLACEHOLDERS = {"i": r"(?P<i>0|[1-9][0-9]{0,5})", "p": r"(?P<p>weight|bias)"}


def unchanged(tensor: Tensor, backbone: BackboneConfig) -> Tensor:
    """Return the tensor unchanged."""
    return tensor


@dataclass(frozen=True)
class Rule:
    """Correspondence of one tensor of Hugging Face with one or several tensors of homespun."""

    hf_pattern: str  # Hugging Face name; ``{i}`` stands for a number and ``{p}`` for ``weight`` or ``bias``
    # name in homespun; several names are equal parts of the tensor along its first dimension
    pattern: str | tuple[str, ...]
    # changes of the tensor, inverse to each other
    from_hf: Change = unchanged
    to_hf: Change = unchanged
    # layers of homespun for each layer of Hugging Face, with shared weights; multiplies ``{i}``
    stride: Callable[[AnyBackbone], int] = lambda backbone: 1
    # condition on the backbone; otherwise the tensor may be dropped
    when: Callable[[AnyBackbone], bool] = lambda backbone: True

    @property
    def parts(self) -> tuple[str, ...]:
        """Names in homespun."""
        return (self.pattern,) if isinstance(self.pattern, str) else self.pattern

    def placeholders(self, match: re.Match[str], backbone: BackboneConfig) -> dict[str, str]:
        """Values of the placeholders in names of homespun, from a match of ``hf_pattern``."""
        values = match.groupdict()
        return values | {"i": str(int(values["i"]) * self.stride(backbone))} if "i" in values else values

    def hf_name(self, match: re.Match[str], backbone: BackboneConfig) -> str:
        """Hugging Face name, from a match of a name of homespun."""
        values = match.groupdict()
        if "i" in values:
            values["i"] = str(int(values["i"]) // self.stride(backbone))
        return self.hf_pattern.format(**values)


def in_stack(stack: str, *rules: Rule) -> tuple[Rule, ...]:
    """Apply rules of a single stack to one ``stack`` of an encoder-decoder."""

    def inside(function: Callable[..., T]) -> Callable[..., T]:
        return lambda *arguments: function(*arguments[:-1], getattr(arguments[-1], stack))

    return tuple(
        replace(
            rule,
            pattern=tuple(part.replace("backbone.", f"backbone.{stack}.", 1) for part in rule.parts),
            from_hf=inside(rule.from_hf),
            to_hf=inside(rule.to_hf),
            stride=inside(rule.stride),
            when=inside(rule.when),
        )
        for rule in rules
    )


@dataclass(frozen=True)
class Copy:
    """Tied tensor: ``name`` equals ``of``, and files may have either or both."""

    name: str
    of: str


@dataclass(frozen=True)
class Drop:
    """Unused tensors: a regular expression of names, the reason, and a further condition ``only``."""

    pattern: str
    reason: str
    only: Callable[[Tensor, AnyBackbone], bool] = lambda tensor, backbone: True


@dataclass(frozen=True)
class DefaultTensor:
    """Tensor without effect required by Hugging Face; ``make`` returns None if it is not needed."""

    name: str
    make: Callable[[AnyBackbone], Tensor | None]


@dataclass(frozen=True)
class Table:
    """Rules, copies, drops and default tensors of a backbone or a head."""

    rules: tuple[Rule, ...] = ()
    copies: tuple[Copy, ...] = ()
    drops: tuple[Drop, ...] = ()
    default_tensors: tuple[DefaultTensor, ...] = ()

    def __add__(self, other: Table) -> Table:
        return Table(
            self.rules + other.rules,
            self.copies + other.copies,
            self.drops + other.drops,
            self.default_tensors + other.default_tensors,
        )


@dataclass(frozen=True)
class UnusedTensor:
    """Unused tensor of the files, and the reason."""

    name: str
    reason: str


def from_hf(
    table: Table, hf_weights: Mapping[str, Tensor], backbone: BackboneConfig, *, source: str
) -> tuple[Weights, tuple[UnusedTensor, ...]]:
    """Convert weights of Hugging Face.

    Returns:
        Weights of homespun by name, and the unused tensors.

    Raises:
        UserError: an unknown tensor, an integer tensor, a copy with other values, or two tensors for one of homespun;
            the message begins with ``source``.
    """
    tensors, unused = _without_copies(table, hf_weights, source)
    weights: Weights = {}
    origins: dict[str, str] = {}
    unknown = []
    for name, tensor in tensors.items():
        matches = [
            (rule, match)
            for rule in table.rules
            if rule.when(backbone) and (match := _compile(rule.hf_pattern).fullmatch(name))
        ]
        if len(matches) > 1:
            raise RuntimeError(f"{name} matches {len(matches)} rules: {[rule.hf_pattern for rule, _ in matches]}")
        if matches:
            if not tensor.is_floating_point():
                raise UserError(
                    f"{source}: {name} has dtype {tensor.dtype}; quantised weights are not supported, only floats"
                )
            for target, piece in _convert(*matches[0], tensor, backbone):
                if target in weights:
                    raise UserError(f"{source}: {origins[target]!r} and {name!r} are the same tensor; remove one")
                weights[target], origins[target] = piece, name
        elif reasons := [
            drop.reason for drop in table.drops if re.fullmatch(drop.pattern, name) and drop.only(tensor, backbone)
        ]:
            unused.append(UnusedTensor(name, reasons[0]))
        else:
            unknown.append(name)
    if unknown:
        first, *others = sorted(unknown)
        names = f"{first!r} and {len(others)} more" if others else repr(first)
        raise UserError(f"{source}: tensors that the model of config.json does not have: {names}")
    return weights, tuple(unused)


def _without_copies(table: Table, hf_weights: Mapping[str, Tensor], source: str) -> tuple[Weights, list[UnusedTensor]]:
    """Remove tied copies, or rename a copy whose original is missing; returns tensors and removed copies."""
    tensors, unused = dict(hf_weights), []
    for copy in table.copies:
        if copy.name not in tensors:
            continue
        tensor = tensors.pop(copy.name)
        if (original := tensors.get(copy.of)) is None:
            tensors[copy.of] = tensor
            continue
        if original.shape != tensor.shape or not torch.equal(original, tensor.to(original.dtype)):
            raise UserError(
                f"{source}: {copy.name} differs from {copy.of}; output embeddings that are not tied to the input "
                f"embeddings are not supported"
            )
        unused.append(UnusedTensor(copy.name, f"tied to {copy.of}"))
    return tensors, unused


def _convert(
    rule: Rule, match: re.Match[str], tensor: Tensor, backbone: BackboneConfig
) -> Iterator[tuple[str, Tensor]]:
    """Yield name and value of each tensor of homespun that ``tensor`` corresponds to."""
    values = rule.placeholders(match, backbone)
    changed, count = rule.from_hf(tensor, backbone), len(rule.parts)
    # a scalar cannot be split; its shape is reported with all others
    pieces = changed.tensor_split(count) if changed.dim() else (changed,) * count
    for part, piece in zip(rule.parts, pieces, strict=True):
        yield part.format(**values), piece


def to_hf(table: Table, weights: Mapping[str, Tensor], backbone: BackboneConfig) -> Weights:
    """Convert weights to Hugging Face, and add default tensors."""
    hf_weights: Weights = {}
    for name in weights:
        rule, match = _find_rule(table, name, backbone)
        target = rule.hf_name(match, backbone)
        if target not in hf_weights:  # otherwise the first part has added it
            pieces = [weights[part.format(**match.groupdict())] for part in rule.parts]
            hf_weights[target] = rule.to_hf(torch.cat(pieces) if len(pieces) > 1 else pieces[0], backbone)
    for default in table.default_tensors:
        tensor = None if default.name in hf_weights else default.make(backbone)
        if tensor is not None:
            hf_weights[default.name] = tensor
    return hf_weights


def hf_name(table: Table, name: str, backbone: BackboneConfig) -> str:
    """Hugging Face name of the tensor ``name``."""
    rule, match = _find_rule(table, name, backbone)
    return rule.hf_name(match, backbone)


def _find_rule(table: Table, name: str, backbone: BackboneConfig) -> tuple[Rule, re.Match[str]]:
    matches = [
        (rule, match)
        for rule in table.rules
        for part in rule.parts
        if (match := _compile(part).fullmatch(name)) and rule.when(backbone)
    ]
    if len(matches) != 1:
        raise RuntimeError(f"{name} matches {len(matches)} rules: {[rule.pattern for rule, _ in matches]}")
    return matches[0]


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    pieces = re.split(r"\{(\w+)\}", pattern)  # text, placeholder, text, ...
    return re.compile("".join(_PLACEHOLDERS[p] if n % 2 else re.escape(p) for n, p in enumerate(pieces)))
