"""Named sizes: values, not code. A config names one with ``preset`` and may change any of its fields."""

from __future__ import annotations

from typing import Any

from homespun.models.presets.decoders import DECODERS
from homespun.models.presets.elmo import ELMO
from homespun.models.presets.encoder_decoders import ENCODER_DECODERS
from homespun.models.presets.encoders import ENCODERS
from homespun.models.presets.recurrent import RECURRENT
from homespun.models.presets.spun import SPUN

PRESETS: dict[str, dict[str, Any]] = {**ENCODERS, **DECODERS, **ENCODER_DECODERS, **RECURRENT, **ELMO, **SPUN}
