"""Named sizes: values, not code. A config names one with ``preset`` and may change any of its fields."""

from __future__ import annotations

from homespun.config import Tree
from homespun.errors import UserError, nearest
from homespun.models.presets.encoder_decoders import ENCODER_DECODERS
from homespun.models.presets.encoders import DECODERS, ENCODERS
from homespun.models.presets.recurrent import ELMO, RECURRENT
from homespun.models.presets.spun import SPUN

PRESETS: dict[str, Tree] = {**ENCODERS, **DECODERS, **ENCODER_DECODERS, **RECURRENT, **ELMO, **SPUN}


def sizes_of(family: str) -> dict[str, str]:
    """Sizes of a family of presets, each with its preset: ``{"tiny": "spun-decoder-tiny", ...}``; empty: no family."""
    split = {name: name.rpartition("-") for name in PRESETS}
    return {size: name for name, (found, _, size) in split.items() if found == family}


def family_of(preset: str) -> str:
    """The family of a preset such as ``spun-decoder-mini``; a name that is no preset may be a family itself."""
    return preset.rpartition("-")[0] if preset in PRESETS else preset


def preset_name(preset: object, size: object = None) -> str:
    """The preset of a family and a size; a ``size`` wins over the one in the name of ``preset``.

    Args:
        preset: ``spun-decoder-mini``, or with a size ``spun-decoder``.
        size: such as ``mini``; None: that in the name.

    Raises:
        UserError: there is no such preset, family or size.
    """
    name = str(preset)
    sizes = sizes_of(family_of(name))
    if size is None and name in PRESETS:
        return name
    if not sizes:
        raise UserError(f"unknown preset {preset!r}{nearest(name, PRESETS)}")
    if size is None:
        raise UserError(f"preset={name} is a family; set size to one of {', '.join(sizes)}")
    if size not in sizes:
        raise UserError(f"size={size} must be one of {', '.join(sizes)} for preset={name}")
    return sizes[str(size)]
