"""Temperature and thresholds of a classifier's logits."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from homespun.config import Config


class DecisionRule(Config):
    """Temperature and thresholds, chosen on validation examples and stored with the model."""

    temperature: float = Field(default=1.0, gt=0, description="logits are divided by it")
    thresholds: tuple[Annotated[float, Field(ge=0, le=1)], ...] | None = Field(
        default=None, description="multi-label: threshold of each label's probability; 0.5 by default"
    )

    def predict_labels(self, probabilities: NDArray[np.float64]) -> NDArray[np.int64]:
        """Multi-label predictions, (..., labels) of 0 and 1."""
        least = 0.5 if self.thresholds is None else np.array(self.thresholds)
        return (probabilities > least).astype(np.int64)


DEFAULT_RULE = DecisionRule()
