"""The name of an activation, checked where it is written."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from homespun.errors import nearest
from homespun.nn.feedforward import ACTIVATIONS


def _known(name: str) -> str:
    if name not in ACTIVATIONS:
        raise ValueError(f"unknown activation {name!r}{nearest(name, ACTIVATIONS)}")
    return name


Activation = Annotated[str, AfterValidator(_known)]
