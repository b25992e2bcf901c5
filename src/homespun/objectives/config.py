"""Union of the pretraining objectives: their registry."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from homespun.objectives.clm import CausalLM
from homespun.objectives.denoising import Denoising
from homespun.objectives.electra import Electra
from homespun.objectives.elmo import BiLM
from homespun.objectives.future_ngrams import FutureNgrams
from homespun.objectives.gap_sentences import GapSentenceGeneration
from homespun.objectives.mlm import MaskedLM
from homespun.objectives.span_corruption import SpanCorruption
from homespun.objectives.tbptt import StatefulCausalLM

PretrainingObjective = Annotated[
    MaskedLM
    | Electra
    | CausalLM
    | Denoising
    | SpanCorruption
    | GapSentenceGeneration
    | FutureNgrams
    | StatefulCausalLM
    | BiLM,
    Field(discriminator="kind"),
]
