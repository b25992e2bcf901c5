"""A small batch to compare two implementations of a model."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from homespun.models.config import ModelConfig
from homespun.models.model import Model


def make_small_batch(model: Model, config: ModelConfig, lengths: tuple[int, int] = (23, 17)) -> dict[str, Tensor]:
    """Random tokens: two texts of at most these lengths, padded to the longer; for an encoder-decoder, targets too."""
    backbone = config.backbone
    generator = torch.Generator().manual_seed(0)

    def texts(prefix: str, longest: int, shortest: int) -> dict[str, Tensor]:
        keep = torch.arange(longest)[None] < torch.tensor([longest, shortest])[:, None]
        ids = torch.randint(backbone.vocab_size, keep.shape, generator=generator)
        return {
            f"{prefix}input_ids": ids.masked_fill(~keep, backbone.pad_token_id),
            f"{prefix}attention_mask": keep.long(),
        }

    longest, shortest = (min(length, backbone.max_position_embeddings) for length in lengths)
    given = texts("", longest, shortest)
    if model.backbone.has_decoder:  # it wants something to decode as well
        given |= texts("decoder_", min(7, longest), min(5, longest))
    return given


def select_real_tokens(result: Tensor, given: Mapping[str, Tensor]) -> Tensor:
    """Outputs of real tokens: ``result`` of the inputs ``given`` without padding."""
    keep = given.get("decoder_attention_mask", given["attention_mask"]).bool()
    return result[keep] if result.shape[:2] == keep.shape else result
