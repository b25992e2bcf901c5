"""Data config of a fine-tuned model, rebuilt from its stored metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack, get_args

from homespun.config import Config, validate
from homespun.errors import UserError
from homespun.tasks.protocol import ReadOptions, TaskData


class StoredData(Config):
    """Config of the data of a fine-tuned model. Subclasses have a union as ``data``."""

    data: TaskData


_NOT_DATA = ("kind", "data", "learned", "decision")  # keys of `Task.to_metadata` without the settings of the data


def stored_data(
    stored: type[StoredData], metadata: Mapping[str, object], *, source: str, **options: Unpack[ReadOptions]
) -> TaskData:
    """Rebuild the data config of a fine-tuned model from `Task.to_metadata`, as a member of the union of ``stored``.

    Raises:
        UserError: several data sets and no ``data_set``; or ``generation`` for a model that does not generate text.
    """
    settings = {name: value for name, value in metadata.items() if name not in _NOT_DATA and value is not None}
    kind = metadata.get("data", "texts")
    if generation := options.get("generation"):
        members = get_args(stored.model_fields["data"].annotation)
        if not any(kind == one.model_fields["kind"].default and "generation" in one.model_fields for one in members):
            raise UserError(f"{source} does not generate text; leave --generation out")
        earlier = settings.get("generation", {})
        settings["generation"] = {**(earlier if isinstance(earlier, Mapping) else {}), **generation}
    data = validate(stored, {"data": settings | {"kind": kind}}, source=source).data
    return data.select_set(options.get("data_set"), source=source).with_columns(options)
