"""Choice of the batch size."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

from homespun.nn.devices import best_device

_CPU_ROWS, _GPU_ROWS = 16, 64


def _choose_rows(value: object) -> object:
    """Replace ``auto`` by the batch size for this device.

    On a GPU, a step of a small model takes as long with 64 rows as with 8, because the CPU limits the kernel launches.
    """
    if value != "auto":
        return value
    return _CPU_ROWS if best_device().type == "cpu" else _GPU_ROWS


BatchSize = Annotated[
    int,
    Field(ge=1),
    BeforeValidator(_choose_rows),
    WithJsonSchema({"anyOf": [{"minimum": 1, "type": "integer"}, {"const": "auto", "type": "string"}]}),
]
