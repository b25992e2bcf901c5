"""Errors of users and their messages."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable


class UserError(ValueError):
    """A wrong input: what is wrong - value - allowed - fix, in one line.

    Commands print it and exit with code 2; any other exception is a bug and shows its traceback.
    """


class NotFinite(UserError):
    """A loss, gradient or model output is infinite or NaN."""


def nearest(name: str, allowed: Iterable[str]) -> str:
    """End of an error about a name: the nearest allowed name, or all allowed names."""
    names = sorted(allowed)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; there are: {', '.join(names)}" if names else "; there are none"


def shorten_warnings() -> None:
    """Print warnings of this process in one line each, without source code."""
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"


def first_line(error: BaseException) -> str:
    """First line of an error message, or the name of its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
