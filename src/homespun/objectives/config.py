"""The union of the pretraining objectives: its registry."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from homespun.objectives.bilm import BiLM
from homespun.objectives.causal import CausalLM
from homespun.objectives.denoising import Denoising
from homespun.objectives.electra import Electra
from homespun.objectives.gap_sentences import GapSentenceGeneration
from homespun.objectives.masked import MaskedLM
from homespun.objectives.prophet import FutureNgrams
from homespun.objectives.span_corruption import SpanCorruption
from homespun.objectives.streamed import StreamedCausalLM

PretrainingObjective = Annotated[
    MaskedLM
    | Electra
    | CausalLM
    | Denoising
    | SpanCorruption
    | GapSentenceGeneration
    | FutureNgrams
    | StreamedCausalLM
    | BiLM,
    Field(discriminator="kind"),
]
