"""Features of texts from a backbone, without training: the mean of its vectors over the real tokens."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from homespun.data.padding import pad
from homespun.data.rows import Rows
from homespun.models.model import Model


def mean_features(model: Model, rows: Rows, *, pad_id: int, batch_size: int = 64) -> NDArray[np.float32]:
    """(rows, hidden) mean of the last hidden states over each row's tokens, in the order of the rows.

    Leaves the model in evaluation mode.
    """
    device = next(model.parameters()).device
    model.eval()
    order = np.argsort(-rows.lengths, kind="stable")
    parts = []
    with torch.inference_mode():
        for start in range(0, len(order), batch_size):
            batch = pad([rows[index] for index in order[start : start + batch_size].tolist()], pad_id).to(device)
            hidden = model.backbone(batch.input_ids, attention_mask=batch.attention_mask)
            keep = torch.ones(hidden.shape[:2], device=device)
            if batch.attention_mask is not None:
                keep = batch.attention_mask.float()
            means = (hidden * keep[..., None]).sum(1) / keep.sum(1, keepdim=True)
            parts.append(means.float().cpu().numpy())
    result = np.empty((len(rows), parts[0].shape[1]), dtype=np.float32)
    result[order] = np.concatenate(parts)
    return result
