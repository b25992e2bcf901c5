"""Sentences of reports: macros of Jinja templates that are given plain values."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

from homespun.report import formats

if TYPE_CHECKING:
    from jinja2 import Environment

_FILTERS = (
    *("count", "duration", "integer", "interval", "listed", "loss", "loss_spread", "percent", "points", "share"),
    *("share_spread", "spread", "text"),
)


@cache
def environment() -> Environment:
    """Templates of this package, which escape HTML in ``.html.j2`` files."""
    import jinja2

    found = jinja2.Environment(
        loader=jinja2.PackageLoader("homespun.report"),
        autoescape=lambda name: name is not None and name.endswith(".html.j2"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {name: getattr(formats, name) for name in _FILTERS}
    found.filters["named"] = named
    return found


def named(pairs: Iterable[tuple[str, object]], write: str) -> str:
    """Names with values: ``a (1.200), b (1.300) and c (1.400)``; ``write`` is a function of `formats`."""
    return formats.listed([f"{name} ({getattr(formats, write)(value)})" for name, value in pairs])


def paragraph(template: str, macro: str, **values: object) -> str:
    """The output of a macro of a template as one line."""
    module = environment().get_template(f"{template}.j2").module
    return re.sub(r"[ \n]+", " ", str(getattr(module, macro)(**values))).strip()
