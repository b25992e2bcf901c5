import torch
from torch import Tensor, nn

from homespun.batch import Batch, Loss, Term
from homespun.planning.count import flops_per_token


class Objective(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(23, 13)
        self.inner = nn.Linear(13, 17)
        self.outer = nn.Linear(17, 3)

    def forward(self, batch: Batch) -> Loss:
        logits: Tensor = self.outer(nn.functional.dropout(self.inner(self.words(batch.input_ids)), 0.5))
        return Loss({"loss": Term(logits.sum(), 1.0)})


def test_products_forward_and_backward_by_real_tokens_and_nothing_is_left() -> None:
    objective = Objective()
    keep = torch.tensor([[True] * 5 + [False] * 2])
    batch = Batch(torch.ones(1, 7, dtype=torch.int64), attention_mask=keep, targets={"loss": 1.0})
    before = torch.get_rng_state()
    # both layers learn, and the gradient goes on through them to the words: three times the products
    assert flops_per_token(objective, batch) == 3 * 2 * 7 * (13 * 17 + 17 * 3) / 5
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in objective.parameters())
