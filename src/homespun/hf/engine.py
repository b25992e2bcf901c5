"""Tables of tensor names, read in both directions.

Each tensor on either side matches exactly one rule. Tensors without a rule are dropped with a reason, which the report
keeps, or they are an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from homespun.errors import UserError
from homespun.models.config import BackboneConfig

T = TypeVar("T")
Weights = dict[str, Tensor]
AnyBackbone = Any  # the config of the family's kind of backbone, which no annotation can name for all families
Change = Callable[[Tensor, AnyBackbone], Tensor]

# one spelling a number, so that no two names are of one layer
_PLACEHOLDERS = {"i": r"(?P<i>0|[1-9][0-9]{0,5})", "p": r"(?P<p>weight|bias)"}


def unchanged(tensor: Tensor, backbone: BackboneConfig) -> Tensor:
    """Return the tensor."""
    return tensor


@dataclass(frozen=True)
class Rule:
    """One name in their files and one name here, or several.

    Args:
        theirs: their name; ``{i}`` stands for a number and ``{p}`` for ``weight`` or ``bias``.
        ours: our name; several are equal parts of the tensor that ``to_ours`` returns, along its first dimension.
        to_ours, to_theirs: changes of the tensor, each the inverse of the other.
        stride: layers here for each of theirs, which share their weights: ``{i}`` here is ``stride`` times theirs.
        when: backbones that the rule applies to; for others the name may be dropped.
    """

    theirs: str
    ours: str | tuple[str, ...]
    to_ours: Change = unchanged
    to_theirs: Change = unchanged
    stride: Callable[[AnyBackbone], int] = lambda backbone: 1
    when: Callable[[AnyBackbone], bool] = lambda backbone: True

    @property
    def parts(self) -> tuple[str, ...]:
        """Our names."""
        return (self.ours,) if isinstance(self.ours, str) else self.ours

    def our_placeholders(self, match: re.Match[str], backbone: BackboneConfig) -> dict[str, str]:
        """Values of the placeholders in our names, from a match of their name."""
        values = match.groupdict()
        return values | {"i": str(int(values["i"]) * self.stride(backbone))} if "i" in values else values

    def their_name(self, match: re.Match[str], backbone: BackboneConfig) -> str:
        """Name in their files, from a match of one of ours."""
        values = match.groupdict()
        if "i" in values:
            values["i"] = str(int(values["i"]) // self.stride(backbone))
        return self.theirs.format(**values)


def in_stack(stack: str, *rules: Rule) -> tuple[Rule, ...]:
    """Rules of a single stack, for the ``stack`` of an encoder-decoder; their names stay."""

    def inside(function: Callable[..., T]) -> Callable[..., T]:
        return lambda *arguments: function(*arguments[:-1], getattr(arguments[-1], stack))

    return tuple(
        replace(
            rule,
            ours=tuple(part.replace("backbone.", f"backbone.{stack}.", 1) for part in rule.parts),
            to_ours=inside(rule.to_ours),
            to_theirs=inside(rule.to_theirs),
            stride=inside(rule.stride),
            when=inside(rule.when),
        )
        for rule in rules
    )


@dataclass(frozen=True)
class Copy:
    """A tied tensor: ``name`` has the values of ``of``; one of them is enough."""

    name: str
    of: str


@dataclass(frozen=True)
class Drop:
    """Tensors that are left out: a regular expression of their names, the reason, and ``only`` which of these."""

    pattern: str
    reason: str
    only: Callable[[Tensor, AnyBackbone], bool] = lambda tensor, backbone: True


@dataclass(frozen=True)
class DefaultTensor:
    """A tensor without effect that their files need, if no rule gives it; ``make`` may return None, for no tensor."""

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
    """A tensor of the files that was not used, and the reason."""

    name: str
    reason: str


def to_ours(
    table: Table, theirs: Mapping[str, Tensor], backbone: BackboneConfig, *, source: str
) -> tuple[Weights, tuple[UnusedTensor, ...]]:
    """Convert their tensors to ours.

    Returns:
        Our tensors by name, and the unused tensors.

    Raises:
        UserError: an unknown tensor, a copy that is not tied, an integer tensor, or two tensors with one name here;
            the message begins with ``source``.
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
            # a scalar has no parts; its shape is reported with all others
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
    """Convert our tensors to theirs, and add default tensors."""
    weights: Weights = {}
    for name in ours:
        rule, match = _their_rule(table, name, backbone)
        theirs = rule.their_name(match, backbone)
        if theirs not in weights:  # else made with its first part
            pieces = [ours[part.format(**match.groupdict())] for part in rule.parts]
            weights[theirs] = rule.to_theirs(torch.cat(pieces) if len(pieces) > 1 else pieces[0], backbone)
    for default in table.default_tensors:
        made = None if default.name in weights else default.make(backbone)
        if made is not None:
            weights[default.name] = made
    return weights


def their_name(table: Table, name: str, backbone: BackboneConfig) -> str:
    """Name in their files of our tensor ``name``."""
    rule, match = _their_rule(table, name, backbone)
    return rule.their_name(match, backbone)


def _their_rule(table: Table, name: str, backbone: BackboneConfig) -> tuple[Rule, re.Match[str]]:
    """The only rule for a name of ours, and its match."""
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
