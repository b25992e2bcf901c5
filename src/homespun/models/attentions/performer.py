"""Performer's attention: softmax through random features, causal or not."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from pydantic import Field
from torch import nn

from homespun.config import Config
from homespun.errors import UserError
from homespun.models.attentions.shape import AttentionShape
from homespun.nn.kernels.performer import FeatureMap, Performer


class PerformerAttentionConfig(Config):
    """Every token sees every token, through random features (Choromanski et al. 2021). Keeps no documents apart."""

    kind: Literal["performer"] = "performer"
    num_features: int | None = Field(
        default=None, ge=1, description="random features of a head; head_dim * log(head_dim) where not given"
    )
    feature_map: FeatureMap = Field(
        default="softmax", description="softmax: an estimate of exact attention; relu: generalised attention"
    )
    redraw_interval: int = Field(
        default=0, ge=0, description="steps of training between new draws of the features; 0: never"
    )
    separates_documents: ClassVar[bool] = False

    def build(self, shape: AttentionShape) -> nn.Module:
        shape.check_plain("performer")
        if shape.dropout:
            raise UserError(
                f"performer has no attention probabilities to drop (attention_probs_dropout_prob={shape.dropout}); "
                f"set attention_probs_dropout_prob: 0"
            )
        head_dim = shape.hidden_size // shape.num_attention_heads
        kernel = Performer(
            head_dim,
            self.num_features or max(1, int(head_dim * math.log(head_dim))),
            feature_map=self.feature_map,
            redraw_interval=self.redraw_interval,
            seed=shape.seed,
            layer=shape.layer,
        )
        return shape.multi_head(kernel)
