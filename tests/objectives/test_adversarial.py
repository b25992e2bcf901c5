"""SiFT: the perturbation, its term in the loss, and every kind of task."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from torch.nn import functional as F

from homespun.batch import Batch
from homespun.data.labels import Labels
from homespun.data.rows import Row
from homespun.errors import UserError
from homespun.models.config import ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.models.sequence_heads import LinearHeadConfig
from homespun.objectives import adversarial
from homespun.objectives.adversarial import (
    PlainAdversarialConfig,
    SiftConfig,
    binary_symmetric_kl,
    squared_error,
    symmetric_kl,
)
from homespun.tasks.classification import Classification
from homespun.tasks.number_training import RegressionCollator
from homespun.tasks.regression import Regression
from homespun.training.config import TrainConfig
from homespun.training.step import check_sharding

LABELS = Labels(("a", "b", "c"))
SEVERAL = Labels(("a", "b", "c"), multi_label=True)
KINDS = {"sift": SiftConfig(), "plain": PlainAdversarialConfig()}
SHAPES: dict[str, dict[str, Any]] = {
    "post": {},
    "pre": {"residual": {"kind": "pre"}, "embedding_norm": False},
    "reversible": {"residual": {"kind": "reversible"}},
    "relative": {"positions": {"kind": "none"}, "attention": {"kind": "disentangled"}},
    "narrow": {"embedding_size": 10},
    "linformer": {"attention": {"kind": "linformer", "k": 7}},
}


def made(kind: Any, labels: Labels = LABELS, *, dropout: float = 0.1, **fields: Any) -> tuple[Any, Batch]:
    sizes = {"hidden_size": 28, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 17}
    sizes |= {"vocab_size": 53, "max_position_embeddings": 31, "hidden_dropout_prob": dropout}
    model = ModelConfig(backbone=EncoderConfig(**(sizes | fields)))
    config = Classification(head=LinearHeadConfig(dropout=dropout), adversarial=kind)
    torch.manual_seed(1)
    objective = config.wrap(config.build(model.build(), model, labels), None, labels)
    random = np.random.default_rng(3)
    rows = []
    for number in range(7):
        label = (random.random(3) > 0.5).astype(np.int64) if labels.multi_label else number % 3
        rows.append(Row(random.integers(5, 53, 3 + 2 * number), label=label))
    return objective.train(), config.collate(0, labels)(rows, [])


def test_sharded_training_is_refused() -> None:
    objective, _ = made(KINDS["plain"])
    with pytest.raises(UserError, match=r"objective\.adversarial.*train\.parallel=ddp"):
        check_sharding(objective, TrainConfig(parallel="fsdp"))
    check_sharding(objective, TrainConfig(parallel="ddp"))
    check_sharding(objective.objective, TrainConfig(parallel="fsdp"))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("labels", [LABELS, SEVERAL], ids=["one", "several"])
def test_the_other_terms_stay_what_they_are(kind: str, shape: str, labels: Labels) -> None:
    objective, batch = made(KINDS[kind], labels, dropout=0.0, **SHAPES[shape])
    alone = objective.objective(batch).terms
    torch.manual_seed(4)
    terms = objective(batch).terms
    assert all(p.grad is None for p in objective.parameters())  # the first pass leaves nothing in them
    for name, term in alone.items():
        torch.testing.assert_close(terms[name].sum, term.sum)
    for name, term in terms.items():
        assert batch.targets[name] == pytest.approx(float(term.count))
    assert terms["adversarial"].sum.item() > 0
    terms["adversarial"].sum.backward()
    learned = [name for name, p in objective.named_parameters() if p.grad is not None and p.grad.any()]
    assert any("layers.0" in name for name in learned)
    assert not objective.model.backbone.embeddings.norm._forward_pre_hooks


def test_it_is_there_in_training_alone() -> None:
    objective, batch = made(SiftConfig())
    assert "adversarial" not in objective.eval()(batch).terms
    with torch.no_grad():
        assert "adversarial" not in objective.train()(batch).terms


def test_the_perturbed_text_meets_the_same_dropout() -> None:
    kind = SiftConfig(init_perturbation=1e-9, step_size=1e-9)
    objective, batch = made(kind, dropout=0.5)
    torch.manual_seed(4)
    terms = objective(batch).terms
    assert terms["adversarial"].sum.item() < 1e-6
    assert terms["loss"].sum.item() > 1


def test_a_step_follows_from_the_seed() -> None:
    objective, batch = made(SiftConfig())
    found = []
    for seed in (4, 4, 5):
        torch.manual_seed(seed)
        found.append(objective(batch).terms["adversarial"].sum.item())
    assert found[0] == found[1] != found[2]


def perturbation(kind: Any, scale: float, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """How far the vectors were moved, by the length that they had."""
    objective, batch = made(kind, dropout=0.0)
    embeddings = objective.model.backbone.embeddings
    with torch.no_grad():
        for part in (embeddings.words, embeddings.positions.embedding, embeddings.segments):
            part.weight *= scale
    seen = []
    perturb = type(kind).perturb

    def watched(self: Any, vectors: Tensor, delta: Tensor) -> Tensor:
        perturbation = perturb(self, vectors, delta)
        seen.append(((perturbation - vectors) / vectors.std(-1, keepdim=True)).detach())
        return perturbation

    monkeypatch.setattr(type(kind), "perturb", watched)
    torch.manual_seed(4)
    objective(batch)
    monkeypatch.undo()
    return seen[-1][batch.attention_mask.bool()]


def test_sift_does_not_ask_how_long_the_vectors_are(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = (perturbation(SiftConfig(), scale, monkeypatch) for scale in (1.0, 37.0))
    torch.testing.assert_close(after, before, rtol=1e-3, atol=1e-5)
    plain = [perturbation(PlainAdversarialConfig(), scale, monkeypatch) for scale in (1.0, 37.0)]
    assert plain[0].abs().mean() > 10 * plain[1].abs().mean()


def test_sift_is_what_the_released_layer_does() -> None:
    """Normalised without weights, perturbed, and then under the norm of the embeddings."""
    draw = torch.Generator().manual_seed(3)
    vectors, delta = 5 * torch.randn(3, 7, 19, generator=draw) + 2, 0.1 * torch.randn(3, 7, 19, generator=draw)
    released = F.layer_norm(F.layer_norm(vectors, (19,), eps=1e-7) + delta, (19,))
    torch.testing.assert_close(
        F.layer_norm(SiftConfig().perturb(vectors, delta), (19,)), released, rtol=1e-4, atol=1e-4
    )
    gradient = torch.randn(3, 7, 19, generator=draw)
    step = SiftConfig().step(delta, gradient) - delta
    torch.testing.assert_close(step.abs().amax(-1), torch.full((3, 7), 1e-4), rtol=1e-2, atol=1e-8)
    initial = SiftConfig().init(vectors, draw)
    assert initial.abs().max() <= 2e-2
    assert 0.007 < initial.std() < 0.01


def test_plain_perturbations_have_one_length() -> None:
    kind = PlainAdversarialConfig(epsilon=3.0)
    gradient = torch.randn(5, 7, 11, generator=torch.Generator().manual_seed(1))
    step = kind.step(torch.zeros(5, 7, 11), gradient)
    torch.testing.assert_close(step.flatten(1).norm(dim=1), torch.full((5,), 3.0))


def test_the_ascent_step_raises_the_loss() -> None:
    """The perturbation that is learned from moves the answers further than the one it began with."""
    for kind in (SiftConfig(step_size=1e-2), PlainAdversarialConfig()):
        objective, batch = made(kind, dropout=0.0)
        adversarial_losses: list[float] = []
        adversarial_loss = type(kind).adversarial_loss

        def watched(
            self: Any,
            *arguments: Any,
            adversarial_loss: Any = adversarial_loss,
            adversarial_losses: list[float] = adversarial_losses,
        ) -> Any:
            perturbed = adversarial_loss(self, *arguments)
            adversarial_losses.append(perturbed[0].item())
            return perturbed

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(kind), "adversarial_loss", watched)
            objective(batch)
        assert adversarial_losses[1] > adversarial_losses[0]


def test_distances_by_hand() -> None:
    p, q = torch.tensor([[0.7, 0.2, 0.1]]), torch.tensor([[0.3, 0.3, 0.4]])
    wanted = ((p - q) * (p / q).log()).sum(-1)
    torch.testing.assert_close(symmetric_kl(p.log(), q.log()), wanted)
    assert symmetric_kl(p.log(), p.log()).abs().max() < 1e-6
    first, second = p[:, :1].logit(), q[:, :1].logit()
    torch.testing.assert_close(binary_symmetric_kl(first, second), (0.7 - 0.3) * (first - second)[:, 0])
    torch.testing.assert_close(squared_error(torch.tensor([[3.0]]), torch.tensor([[1.0]])), torch.tensor([4.0]))


def test_gradients_of_the_distance_are_those_of_the_released_one() -> None:
    draw = torch.Generator().manual_seed(1)
    perturbed, clean = (torch.randn(5, 3, generator=draw, requires_grad=True) for _ in range(2))
    first, second = perturbed.log_softmax(-1), clean.log_softmax(-1)
    released = (second.exp().detach() * -first).sum() + (first.exp().detach() * -second).sum()
    ours = torch.autograd.grad(symmetric_kl(perturbed, clean).sum(), (perturbed, clean))
    for mine, theirs in zip(ours, torch.autograd.grad(released, (perturbed, clean)), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision(kind: str) -> None:
    objective, batch = made(KINDS[kind])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = objective(batch)
    total = loss.total(batch.targets)
    total.backward()
    assert torch.isfinite(total)
    assert all(torch.isfinite(p.grad).all() for p in objective.parameters() if p.grad is not None)


def test_gradient_checkpointing_changes_nothing() -> None:
    objective, batch = made(SiftConfig())
    grads = []
    for on in (False, True):
        one = copy.deepcopy(objective)
        one.model.backbone.gradient_checkpointing = on
        torch.manual_seed(4)
        one(batch).total(batch.targets).backward()
        grads.append([p.grad for p in one.parameters() if p.grad is not None])
    for plain, recomputed in zip(*grads, strict=True):
        torch.testing.assert_close(recomputed, plain, rtol=1e-4, atol=1e-6)


def test_an_infinite_gradient_takes_no_step() -> None:
    perturbation = adversarial._EmbeddingPerturbation(SiftConfig(), torch.Generator().manual_seed(1))
    vectors = torch.ones(2, 3, 5)
    perturbation(torch.nn.Identity(), (vectors,))
    before = perturbation.delta.detach().clone()
    perturbation.ascend((perturbation.delta * torch.inf).sum())
    assert torch.equal(perturbation.delta, before)


def test_a_frozen_encoder_is_refused() -> None:
    with pytest.raises(ValidationError, match="frozen=false"):
        Classification(frozen=True, adversarial=SiftConfig())


def test_a_regression_is_perturbed_in_units_of_its_spread() -> None:
    """Numbers a hundred times as large are learned alike."""
    model = ModelConfig(
        backbone=EncoderConfig(vocab_size=53, hidden_size=28, num_hidden_layers=1, intermediate_size=17)
    )
    config = Regression(head=LinearHeadConfig(dropout=0.0), adversarial=SiftConfig())
    found = []
    for scale in (1.0, 100.0):
        numbers = scale * np.array([1.0, 2.0, 4.0, 3.0, 5.0])
        torch.manual_seed(1)
        loss = config.build(model.build(), model, numbers)
        objective, collate = config.wrap(loss, RegressionCollator(0, "absolute_error"))
        rows = [Row(np.arange(5, 11 + 2 * place), label=float(number)) for place, number in enumerate(numbers)]
        batch = collate(rows, [])
        terms = objective.train()(batch).terms
        assert batch.targets["adversarial"] == terms["adversarial"].count == 5
        found.append(terms["adversarial"].sum.item())
    assert found[0] == pytest.approx(found[1], rel=1e-3)
    assert found[0] > 0
    with pytest.raises(ValidationError, match="frozen=false"):
        Regression(frozen=True, adversarial=SiftConfig())
