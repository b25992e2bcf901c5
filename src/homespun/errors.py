"""Errors of users and their messages."""

from __future__ import annotations

import difflib
import errno
import logging
import os
import re
import warnings
from collections.abc import Iterable


class UserError(ValueError):
    """Error in the input, with a message of one line: what is wrong, the value, the allowed values, the fix.

    Commands print the message and exit with code 2. Other exceptions are bugs and show a traceback.
    """


class TooLong(UserError):
    """A text is longer than the model reads."""


class StepTooLong(UserError):
    """A training step takes longer than the time limit of the training."""


class VocabularyTooLarge(UserError):
    """A text has fewer tokens than the vocabulary; ``possible`` is their number."""

    def __init__(self, message: str, possible: int) -> None:
        super().__init__(message)
        self.possible = possible


class NotFinite(UserError):
    """A loss, gradient or model output is infinite or NaN."""


_FIXES = {
    errno.ENOSPC: "free disk space",
    errno.EDQUOT: "free disk space of your quota",
    errno.EROFS: "make it writable, or give another folder",
    errno.EACCES: "change its permissions, or give another folder",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "close other programs",
    errno.EIO: "check the disk",
}


def describe_system_error(error: Exception) -> str | None:
    """Describe an error of the disk, of memory, of other limits or of a killed process in one line; None for any other.

    Libraries in Rust and C++ raise exceptions that are no `OSError` and have text and number in their message.
    """
    if is_out_of_memory(error):
        why = f" ({first_line(error)})" if str(error) else ""
        return f"out of memory{why}; close other programs, or take smaller batches or a smaller model, and repeat it"
    # torch raises the first from a signal handler, anywhere in the program; the others are of the pipe of the process
    killed = "DataLoader worker (pid" in str(error) or "got end of file during message" in str(error)
    if killed or isinstance(error, ConnectionResetError) or (isinstance(error, EOFError) and not error.args):
        return "another process ended, perhaps out of memory; repeat the command, with --resume if it has this option"
    number, file = getattr(error, "errno", None), getattr(error, "filename", None)
    if number is None:
        number = next((known for known in _FIXES if _NUMBERED[known].search(str(error))), None)
    if number not in _FIXES:
        return None
    return f"{'' if file is None else f'{file}: '}{os.strerror(number)}; {_FIXES[number]}, then repeat the command"


_NUMBERED = {number: re.compile(rf"{re.escape(os.strerror(number))} \((os error )?{number}\)") for number in _FIXES}
_NO_MEMORY = re.compile(
    "DefaultCPUAllocator|out of memory|bad_alloc|can't start new thread|could not create a primitive"
)


def is_out_of_memory(error: BaseException) -> bool:
    """True for an error of Python, and for a plain `RuntimeError` of PyTorch, oneDNN or threads, that has no memory."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and bool(_NO_MEMORY.search(str(error))))


def nearest(name: str, allowed: Iterable[str], *, prefix: str = "") -> str:
    """End of an error about a name: the nearest allowed name after ``prefix``, or all allowed names."""
    names = sorted(allowed)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {prefix + close[0]!r}?"
    return f"; there are: {', '.join(names)}" if names else "; there are none"


def shorten_warnings() -> None:
    """Print warnings and log messages of this process in one line each, without source code."""
    warnings.formatwarning = lambda message, *_, **__: f"warning: {one_line(str(message))}\n"
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_OneLine())


class _OneLine(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:
        return one_line(record.message)


_SHOWN = 480  # characters of a message
_END = 160  # characters kept at the end, where messages say how to correct the input


def one_line(text: str) -> str:
    """Escape line ends and control characters, and leave out the middle of a text of 480 characters or more."""
    if len(text) > 2 * _SHOWN:
        text = f"{text[:_SHOWN]}{text[-_SHOWN:]}"
    escaped = escape(text)
    return escaped if len(escaped) <= _SHOWN else f"{escaped[: _SHOWN - _END]} ... {escaped[-_END:]}"


def escape(text: str) -> str:
    r"""Replace line ends, control characters and lone surrogates by escapes, such as ``\n`` and ``\x1b``."""
    return "".join(c if c.isprintable() or c == "\xa0" else ascii(c)[1:-1] for c in text)


_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def escape_controls(text: str) -> str:
    """Apply `escape` to all characters that could control a terminal; keep lines, tabs and joined letters."""
    return _CONTROLS.sub(lambda found: escape(found[0]), text)


def quantity(count: float, noun: str) -> str:
    """Return a count with its noun: ``1 row``, ``2,000 rows``, ``1 pass``, ``2 passes``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}{'es' if noun.endswith(('s', 'ch')) else 's'}"


def last_line(text: str) -> str:
    """Last line of a text that is not blank; empty without one."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def first_line(error: BaseException) -> str:
    """First line of an error message, or the name of its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
