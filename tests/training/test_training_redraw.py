"""Random features that are drawn again in training: by the number of the step, so that resuming is exact."""

from pathlib import Path

import pytest
import torch
from training_parts import HIDDEN, Objective, make_trainer, train_config

from homespun.attention.multi_head import MultiHeadAttention
from homespun.attention.performer import Performer
from homespun.batch import Batch, Loss
from homespun.nn.masks import Mask


class Mixing(Objective):
    """The objective of these tests with attention between tokens, whose features are drawn anew every two steps."""

    def __init__(self) -> None:
        torch.manual_seed(5)
        super().__init__()
        self.attention = MultiHeadAttention(HIDDEN, 1, Performer(HIDDEN, 7, redraw_interval=2))
        self.mask = Mask()
        self.backbone.embeddings.register_forward_hook(lambda *call: call[2] + self.attention(call[2], self.mask))
        self.seen: list[torch.Tensor] = []

    def forward(self, batch: Batch) -> Loss:
        self.mask = Mask(batch.attention_mask)
        self.seen.append(self.attention.get_buffer("kernel.projection").clone())
        return super().forward(batch)


@pytest.mark.slow
def test_features_are_drawn_by_the_step_whatever_the_micro_batches_and_the_stops(tmp_path: Path) -> None:
    full = make_trainer(tmp_path / "whole", train_config(), objective=Mixing())
    list(full)
    seen = torch.stack(full.objective.seen)  # one forward pass a step
    assert [bool((seen[i] != seen[i + 1]).any()) for i in range(6)] == [False, True, False, True, False, True]

    small = make_trainer(tmp_path / "small", train_config(micro_batch_size=4), objective=Mixing())
    list(small)
    assert len(small.objective.seen) > 14
    assert torch.equal(torch.stack(small.objective.seen).unique_consecutive(dim=0), seen[::2])

    for stop in (3, 4):
        for step in make_trainer(tmp_path / "parts", train_config(), objective=Mixing(), resume=True):
            if step.number == stop:
                break
    parts = make_trainer(tmp_path / "parts", train_config(), objective=Mixing(), resume=True)
    list(parts)
    for name, tensor in parts.objective.state_dict().items():
        assert torch.equal(tensor, full.objective.state_dict()[name]), name
