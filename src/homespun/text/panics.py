"""Conversion of Rust panics in `tokenizers` to errors.

A regular expression panics after ten million steps, a damaged table immediately.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import BinaryIO

from homespun.errors import UserError

_MAY_PANIC = re.compile('"(Regex|Precompiled)"')


@contextmanager
def refuse_panics(tokenizer: str) -> Iterator[None]:
    """Convert a panic of ``tokenizer``, a tokenizer.json, to a `UserError`.

    Rust prints panics on standard error before Python gets the exception. If the tokenizer has regular expressions or a
    character table, standard error is therefore buffered until the block ends, and discarded after a panic.
    """
    with _withheld() if _MAY_PANIC.search(tokenizer) else nullcontext():
        try:
            yield
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # PanicException cannot be imported and is no Exception
                raise
            raise UserError(
                f"the tokenizer failed on a text: {str(error)[:200]!r}; its regular expressions or tables are damaged "
                f"or take exponential time, use another tokenizer"
            ) from None


_lock = threading.Lock()
_blocks = 0  # active blocks in all threads
_panicked = False  # whether one of the active blocks panicked
_copy = -1  # copy of the descriptor of standard error
_output: BinaryIO


@contextmanager
def _withheld() -> Iterator[None]:
    """Buffer what is written to the descriptor of standard error while a thread is in a block."""
    global _blocks, _panicked, _copy, _output
    with _lock:
        if _blocks == 0:
            sys.stderr.flush()
            _output, _copy = tempfile.TemporaryFile(), os.dup(2)  # noqa: SIM115 - closed below
            os.dup2(_output.fileno(), 2)
            _panicked = False
        _blocks += 1
    try:
        yield
    except UserError:
        _panicked = True
        raise
    finally:
        with _lock:
            _blocks -= 1
            if _blocks == 0:
                sys.stderr.flush()
                os.dup2(_copy, 2)
                os.close(_copy)
                if not _panicked:
                    _output.seek(0)
                    with open(2, "wb", closefd=False) as errors:
                        shutil.copyfileobj(_output, errors)
                _output.close()
