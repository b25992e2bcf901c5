"""How the logits of a classifier are read: their temperature, and from which probability on a text has a label."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from homespun.config import Config


class DecisionRule(Config):
    """What was found on the validation texts; stored with the model."""

    temperature: float = Field(default=1.0, gt=0, description="logits are divided by it")
    thresholds: tuple[Annotated[float, Field(ge=0, le=1)], ...] | None = Field(
        default=None, description="of several labels a text: each label's least probability; one half where not given"
    )

    def predict_labels(self, probabilities: NDArray[np.float64]) -> NDArray[np.int64]:
        """(..., labels) zeros and ones: the labels of texts that may have several."""
        least = 0.5 if self.thresholds is None else np.array(self.thresholds)
        return (probabilities > least).astype(np.int64)


DEFAULT_RULE = DecisionRule()
