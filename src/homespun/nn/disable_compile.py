"""Functions that ``torch.compile`` does not trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from torch._compile import _disable_dynamo

P = ParamSpec("P")
T = TypeVar("T")


def disable_compile(function: Callable[P, T]) -> Callable[P, T]:
    """``torch.compiler.disable``, but the compiler is imported when the function is first called: importing it takes
    as long as the rest of torch, and most commands never compile."""
    return _disable_dynamo(function)
