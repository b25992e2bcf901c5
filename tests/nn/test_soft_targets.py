"""Soft targets: the released formula, its gradient, and no table of logits."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from homespun.nn import vocabulary_loss
from homespun.nn.vocabulary_loss import VocabLogits, binary_log_probs, soft_label_loss, soft_token_loss


def words(seed: int, targets: int = 13, vocab: int = 29, size: int = 7) -> VocabLogits:
    draw = torch.Generator().manual_seed(seed)
    made = [torch.randn(shape, generator=draw) for shape in ((targets, size), (vocab, size), (vocab,))]
    return VocabLogits(*(tensor.requires_grad_() for tensor in made))


def logits(given: VocabLogits) -> Tensor:
    return F.linear(given.features, given.weight, given.bias)


def released(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """As `distiller.py` of DistilBERT has it, whose `batchmean` is undone."""
    log_probs = F.log_softmax(student / temperature, dim=-1)
    return F.kl_div(log_probs, F.softmax(teacher / temperature, dim=-1), reduction="sum") * temperature**2


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
@pytest.mark.parametrize("chunk", [1, 29 * 5, 4 * 2**20])
def test_loss_and_gradients_are_those_of_the_released_formula(
    temperature: float, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabulary_loss, "_SOFT_CHUNK", chunk)
    student, teacher = words(1), words(2, size=11)
    ours = soft_token_loss(student, teacher, temperature=temperature)
    theirs = released(logits(student), logits(teacher).detach(), temperature)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    given = (student.features, student.weight, student.bias)
    for mine, expected_gradients in zip(
        torch.autograd.grad(3 * ours, given), torch.autograd.grad(3 * theirs, given), strict=True
    ):
        torch.testing.assert_close(mine, expected_gradients, rtol=1e-4, atol=1e-4)


def test_the_teacher_learns_nothing() -> None:
    student, teacher = words(1), words(2)
    soft_token_loss(student, teacher, temperature=2.0).backward()
    assert student.weight.grad is not None
    assert teacher.weight.grad is None
    assert teacher.features.grad is None


def test_words_that_only_one_of_them_has_count_for_nothing() -> None:
    student, teacher = words(1), words(2, vocab=31)
    cut = teacher.first(29)
    assert torch.equal(
        soft_token_loss(student, teacher, temperature=2.0), soft_token_loss(student, cut, temperature=2.0)
    )
    assert torch.equal(
        soft_token_loss(cut, student, temperature=2.0), soft_token_loss(teacher, student, temperature=2.0)
    )


def test_labels_by_hand() -> None:
    student, teacher = torch.tensor([[0.0, 0.0]]), torch.tensor([[2 * 3.0, 0.0]])
    p = torch.sigmoid(torch.tensor(3.0))  # at a temperature of 2
    expected_gradients = 4 * (p * (p / 0.5).log() + (1 - p) * ((1 - p) / 0.5).log())
    torch.testing.assert_close(soft_label_loss(student, teacher, temperature=2.0), expected_gradients[None])


def test_labels_that_do_not_exclude_each_other() -> None:
    values = torch.tensor([[1.5, -0.5, 0.0]])
    yes = binary_log_probs(values).softmax(-1)[..., 1]
    torch.testing.assert_close(yes, values.sigmoid())
