"""The one exception that means: the caller gave something wrong, and here is what to do about it."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake in what was given: says what was given, what is allowed, and the way out, in one line.

    A command prints it as one line and exits with code 2; every other exception is a bug of ours and shows its
    traceback.
    """


class NotFinite(UserError):
    """A loss, a gradient or what a model says is infinite or not a number."""


def nearest(name: str, allowed: Iterable[str]) -> str:
    """``"; did you mean 'x'?"``, or the whole list where nothing is near: the tail of an error about a name."""
    names = sorted(allowed)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; there are: {', '.join(names)}" if names else "; there are none"


def shorten_warnings() -> None:
    """Let this process print warnings in one line each, without the line of code that warns."""
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"


def first_line(error: BaseException) -> str:
    """What an error says, of which some say several lines and some nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
