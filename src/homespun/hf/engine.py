"""The rule engine: a table of names, read in both directions, that says where every tensor goes.

Every tensor on either side matches exactly one rule. What has no place is dropped with a reason that the report keeps,
and what nothing in the table speaks of is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from homespun.errors import UserError
from homespun.models.config import BackboneConfig

Weights = dict[str, Tensor]
Change = Callable[[Tensor, Any], Tensor]  # and the config of the backbone, of the kind that the family has

# a number is spelled in one way only, so that no two names are of one layer
_PLACEHOLDERS = {"i": r"(?P<i>0|[1-9][0-9]{0,5})", "p": r"(?P<p>weight|bias)"}


def unchanged(tensor: Tensor, backbone: BackboneConfig) -> Tensor:
    """The tensor is the same on both sides."""
    return tensor


def same_number(backbone: BackboneConfig) -> int:
    """Layers have the same numbers on both sides."""
    return 1


def always(backbone: BackboneConfig) -> bool:
    """Whatever the backbone."""
    return True


@dataclass(frozen=True)
class Rule:
    """One name there, one name here. ``{i}`` stands for a number and ``{p}`` for ``weight`` or ``bias``.

    ``to_ours`` and ``to_theirs`` change the tensor on its way; each undoes the other. Several names here are equal
    parts of the tensor that ``to_ours`` gives, along its first dimension. ``{i}`` here is ``stride`` times the one
    there: layers that share their weights are one there, and here named by the first of them. A rule with a ``when``
    is there only for backbones of which that is true; the name is then free for a drop.
    """

    theirs: str
    ours: str | tuple[str, ...]
    to_ours: Change = unchanged
    to_theirs: Change = unchanged
    stride: Callable[[Any], int] = same_number
    when: Callable[[Any], bool] = always

    @property
    def parts(self) -> tuple[str, ...]:
        """The names here."""
        return (self.ours,) if isinstance(self.ours, str) else self.ours

    def our_placeholders(self, match: re.Match[str], backbone: BackboneConfig) -> dict[str, str]:
        """What the placeholders of a name there stand for here."""
        values = match.groupdict()
        return values | {"i": str(int(values["i"]) * self.stride(backbone))} if "i" in values else values

    def their_placeholders(self, match: re.Match[str], backbone: BackboneConfig) -> dict[str, str]:
        """What the placeholders of a name here stand for there."""
        values = match.groupdict()
        return values | {"i": str(int(values["i"]) // self.stride(backbone))} if "i" in values else values


def in_stack(stack: str, *rules: Rule) -> tuple[Rule, ...]:
    """Rules of one stack, for that of a backbone of two which is called so: their names there as they are given."""

    def qualified(name: str) -> str:
        return name.replace("backbone.", f"backbone.{stack}.", 1)

    def inside(change: Change) -> Change:
        return lambda tensor, backbone: change(tensor, getattr(backbone, stack))

    def counted(stride: Callable[[Any], int]) -> Callable[[Any], int]:
        return lambda backbone: stride(getattr(backbone, stack))

    def asked(when: Callable[[Any], bool]) -> Callable[[Any], bool]:
        return lambda backbone: when(getattr(backbone, stack))

    return tuple(
        Rule(
            rule.theirs,
            qualified(rule.ours) if isinstance(rule.ours, str) else tuple(qualified(part) for part in rule.ours),
            inside(rule.to_ours),
            inside(rule.to_theirs),
            counted(rule.stride),
            asked(rule.when),
        )
        for rule in rules
    )


@dataclass(frozen=True)
class Copy:
    """A tied tensor: ``name`` holds the same values as ``of``, of which one is enough."""

    name: str
    of: str


@dataclass(frozen=True)
class Drop:
    """Tensors of theirs, by regular expression, that have no place here, and why; of these, ``only`` such."""

    pattern: str
    reason: str
    only: Callable[[Tensor, Any], bool] = lambda tensor, backbone: True


@dataclass(frozen=True)
class DefaultTensor:
    """A tensor that theirs must have and ours may lack: one that changes nothing, made where no rule gives it.

    ``None`` is no tensor.
    """

    name: str
    make: Callable[[Any], Tensor | None]


@dataclass(frozen=True)
class Table:
    """All that is said about the tensors of one kind of model."""

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
    """A tensor that was not taken along, and why."""

    name: str
    reason: str


def to_ours(
    table: Table, theirs: Mapping[str, Tensor], backbone: BackboneConfig, *, source: str
) -> tuple[Weights, tuple[UnusedTensor, ...]]:
    """Their tensors under our names, and those that were left out.

    Raises:
        UserError: a tensor that the table does not know, a copy that is not tied, a tensor of whole numbers, or two
            that are one here; ``source`` begins the error.
    """
    given = dict(theirs)
    left = []
    for copy in table.copies:
        if copy.name not in given:
            continue
        tensor = given.pop(copy.name)
        if copy.of not in given:
            given[copy.of] = tensor
            continue
        if given[copy.of].shape != tensor.shape or not torch.equal(given[copy.of], tensor.to(given[copy.of].dtype)):
            raise UserError(
                f"{source}: {copy.name} differs from {copy.of}; models whose output embeddings are not tied to the "
                f"input embeddings cannot be opened"
            )
        left.append(UnusedTensor(copy.name, f"tied to {copy.of}"))
    weights: Weights = {}
    origins: dict[str, str] = {}
    unknown = []
    for name, tensor in given.items():
        rules = [
            (rule, match)
            for rule in table.rules
            if rule.when(backbone) and (match := _pattern(rule.theirs).fullmatch(name))
        ]
        if len(rules) > 1:
            raise RuntimeError(f"{name} matches {len(rules)} rules: {[rule.theirs for rule, _ in rules]}")
        if rules:
            rule, match = rules[0]
            if not tensor.is_floating_point():
                raise UserError(f"{source}: {name} is {tensor.dtype}; quantised weights cannot be opened")
            values = rule.our_placeholders(match, backbone)
            changed, count = rule.to_ours(tensor, backbone), len(rule.parts)
            # a number has no parts; that its shape is wrong is said where all shapes are looked at
            parts = changed.tensor_split(count) if changed.dim() else (changed,) * count
            for part, piece in zip(rule.parts, parts, strict=True):
                ours = part.format(**values)
                if ours in weights:
                    raise UserError(f"{source}: {origins[ours]!r} and {name!r} are the same tensor here; leave one out")
                weights[ours], origins[ours] = piece, name
        elif reasons := [
            drop.reason for drop in table.drops if re.fullmatch(drop.pattern, name) and drop.only(tensor, backbone)
        ]:
            left.append(UnusedTensor(name, reasons[0]))
        else:
            unknown.append(name)
    if unknown:
        raise UserError(f"{source}: {_listed(unknown)} no place in the model that config.json describes")
    return weights, tuple(left)


def to_theirs(table: Table, ours: Mapping[str, Tensor], backbone: BackboneConfig) -> Weights:
    """Our tensors under their names, with the fills that they lack."""
    weights: Weights = {}
    for name in ours:
        rule, match = _their_rule(table, name, backbone)
        theirs = rule.theirs.format(**rule.their_placeholders(match, backbone))
        if theirs not in weights:  # else it was made with the first of its parts
            pieces = [ours[part.format(**match.groupdict())] for part in rule.parts]
            weights[theirs] = rule.to_theirs(torch.cat(pieces) if len(pieces) > 1 else pieces[0], backbone)
    for default in table.default_tensors:
        made = None if default.name in weights else default.make(backbone)
        if made is not None:
            weights[default.name] = made
    return weights


def their_name(table: Table, name: str, backbone: BackboneConfig) -> str:
    """What our tensor ``name`` is called on their side."""
    rule, match = _their_rule(table, name, backbone)
    return rule.theirs.format(**rule.their_placeholders(match, backbone))


def _their_rule(table: Table, name: str, backbone: BackboneConfig) -> tuple[Rule, re.Match[str]]:
    """The one rule that has this name of ours, and where its placeholders stand in it."""
    found = [
        (rule, match)
        for rule in table.rules
        for part in rule.parts
        if (match := _pattern(part).fullmatch(name)) and rule.when(backbone)
    ]
    if len(found) != 1:
        raise RuntimeError(f"{name} matches {len(found)} rules: {[rule.ours for rule, _ in found]}")
    return found[0]


@cache
def _pattern(name: str) -> re.Pattern[str]:
    pieces = re.split(r"\{(\w+)\}", name)  # text, placeholder, text, ...
    return re.compile("".join(_PLACEHOLDERS[p] if n % 2 else re.escape(p) for n, p in enumerate(pieces)))


def _listed(names: Iterable[str]) -> str:
    first, *others = sorted(names)
    return f"{first!r} and {len(others)} more tensors have" if others else f"tensor {first!r} has"
