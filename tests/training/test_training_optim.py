from functools import partial

import pytest
import torch
from torch import nn
from training_parts import Objective

from homespun.errors import UserError
from homespun.training import optim
from homespun.training.checkpoint import load_optimizer, optimizer_tensors
from homespun.training.config import Adafactor, AdamW, Soap
from homespun.training.optim import layer_scales, parameter_groups, set_learning_rate


def test_every_parameter_is_in_one_group_and_vectors_do_not_decay():
    module = Objective()
    groups = parameter_groups(module, weight_decay=0.3)
    named = [(name, group["weight_decay"]) for group in groups for name, _ in group["params"]]
    assert sorted(name for name, _ in named) == sorted(name for name, _ in module.named_parameters())
    decay = dict(named)
    assert decay["backbone.embeddings.weight"] == decay["pooler.weight"] == decay["backbone.layers.1.weight"] == 0.3
    assert decay["backbone.final_norm.weight"] == decay["backbone.layers.1.bias"] == decay["pooler.bias"] == 0.0


def test_frozen_parameters_are_left_out():
    module = Objective()
    module.backbone.requires_grad_(False)
    names = [name for group in parameter_groups(module, weight_decay=0.0) for name, _ in group["params"]]
    assert {name.split(".")[0] for name in names} == {"head", "pooler", "seldom"}


def test_nothing_to_train_is_an_error():
    with pytest.raises(UserError, match="nothing to train"):
        parameter_groups(nn.Linear(2, 3).requires_grad_(False), weight_decay=0.0)


def test_layers_learn_slower_the_deeper_they_lie():
    names = [
        "discriminator.backbone.embeddings.words.weight",
        "discriminator.backbone.projection.weight",
        "discriminator.backbone.layers.0.attention.weight",
        "discriminator.backbone.layers.1.attention.weight",
        "discriminator.backbone.layers.10.attention.weight",
        "discriminator.backbone.final_norm.weight",
        "discriminator.head.dense.weight",
        "generator.backbone.layers.0.attention.weight",
        "generator.head.layers.0.weight",
    ]
    powers = [12, 12, 11, 10, 1, 0, 0, 1, 0]
    assert layer_scales(names, 0.5) == {name: 0.5**power for name, power in zip(names, powers, strict=True)}


def test_layers_of_an_encoder_and_of_a_decoder_learn_slower_the_deeper_they_lie():
    names = [
        "model.backbone.encoder.embeddings.words.weight",
        "model.backbone.encoder.layers.0.attention.weight",
        "model.backbone.encoder.layers.2.attention.weight",
        "model.backbone.encoder.final_norm.weight",
        "model.backbone.predicting.embedding.weight",
        "model.backbone.decoder.embeddings.positions.weight",
        "model.backbone.decoder.layers.0.attention.weight",
        "model.backbone.decoder.layers.1.attention.weight",
        "model.lm_head.bias",
    ]
    powers = [4, 3, 1, 0, 4, 3, 2, 1, 0]
    assert layer_scales(names, 0.5) == {name: 0.5**power for name, power in zip(names, powers, strict=True)}


def test_the_rate_of_each_group_is_its_scale_of_the_rate():
    optimizer = AdamW(learning_rate=1.0, layer_decay=0.5).build(Objective())
    set_learning_rate(optimizer, 0.8)
    rates = {n: g["lr"] for g in optimizer.param_groups for n in g["param_names"]}
    assert rates["pooler.weight"] == pytest.approx(0.8)
    assert rates["backbone.layers.2.weight"] == pytest.approx(0.4)
    assert rates["backbone.embeddings.weight"] == pytest.approx(0.8 * 0.5**4)


def test_the_fused_optimizer_is_used_on_a_cpu():
    assert AdamW().build(Objective()).param_groups[0]["fused"]


def test_a_device_without_a_fused_kernel_gets_the_plain_optimizer():
    assert not AdamW().build(Objective().to("meta")).param_groups[0]["fused"]


def by_hand(weight: torch.Tensor, gradients: list[torch.Tensor], rate: float) -> torch.Tensor:
    """Shazeer and Stern 2018, algorithm 4, with a relative step, no momentum and no decay."""
    rows, columns = torch.zeros(5, 1, dtype=torch.float64), torch.zeros(1, 3, dtype=torch.float64)
    for step, gradient in enumerate(gradients, 1):
        beta = 1 - step**-0.8
        squares = gradient.square() + 1e-30
        rows = beta * rows + (1 - beta) * squares.mean(1, keepdim=True)
        columns = beta * columns + (1 - beta) * squares.mean(0, keepdim=True)
        update = gradient / (rows * columns / rows.mean()).sqrt()
        update = update / max(1.0, float(update.square().mean().sqrt()))
        size = max(1e-3, float(weight.square().mean().sqrt()))
        weight = weight - min(rate, step**-0.5) * size * update
    return weight


def test_adafactor_is_that_of_the_paper_and_goes_on_from_a_checkpoint():
    torch.manual_seed(1)
    linear = nn.Linear(3, 5, bias=False, dtype=torch.float64)
    gradients = list(torch.randn(4, 5, 3, dtype=torch.float64))
    expected = by_hand(linear.weight.detach().clone(), gradients, 0.3)
    optimizer = Adafactor().build(linear)
    for number, gradient in enumerate(gradients):
        if number == 2:
            again = Adafactor().build(linear)
            load_optimizer(again, {name: tensor.clone() for name, tensor in optimizer_tensors(optimizer).items()})
            optimizer = again
        set_learning_rate(optimizer, 0.3)
        linear.weight.grad = gradient
        optimizer.step()
    assert torch.allclose(linear.weight, expected, atol=1e-12)


def test_adafactor_holds_no_second_table_of_a_matrix():
    linear = nn.Linear(29, 31)
    optimizer = Adafactor().build(linear)
    linear(torch.ones(1, 29)).sum().backward()
    optimizer.step()
    assert sum(tensor.numel() for tensor in optimizer_tensors(optimizer).values()) <= 29 + 31 + 31 + 2


def test_adafactor_leaves_weights_without_a_gradient_where_they_are():
    torch.manual_seed(1)
    embedding = nn.Embedding(7, 5)
    before = embedding.weight.detach().clone()
    optimizer = Adafactor().build(embedding)
    for _ in range(3):
        embedding(torch.tensor([2, 3])).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    moved = (embedding.weight != before).any(1)
    assert moved.tolist() == [False, False, True, True, False, False, False]


def soap_by_hand(weight: torch.Tensor, gradients: list[torch.Tensor], rate: float) -> torch.Tensor:
    """Vyas et al. 2025, algorithm 3, one-sided, with a new basis at every step; the mean is kept unrotated here."""
    covariance, mean, squares = (torch.zeros(shape).double() for shape in ((3, 3), (3, 5), (3, 5)))
    for step, gradient in enumerate(gradients, 1):
        covariance = 0.7 * covariance + 0.3 * gradient @ gradient.T
        basis = torch.linalg.eigh(covariance).eigenvectors
        mean = 0.6 * mean + 0.4 * gradient
        squares = 0.9 * squares + 0.1 * (basis.T @ gradient).square()
        update = basis @ (basis.T @ mean / (1 - 0.6**step) / (squares / (1 - 0.9**step)).sqrt())
        weight = weight * (1 - rate * 0.1) - rate * update
    return weight


@pytest.mark.parametrize("tall", [False, True])
def test_soap_is_adam_in_the_eigenbasis_and_goes_on_from_a_checkpoint(tall: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    gradients = [torch.randn(3, 5, generator=generator, dtype=torch.float64) for _ in range(4)]
    linear = nn.Linear(*((3, 5) if tall else (5, 3)), bias=False).double()
    start = linear.weight.detach().clone()
    config = Soap(betas=(0.6, 0.9), shampoo_beta=0.7, frequency=1, weight_decay=0.1, eps=1e-15)
    optimizer = config.build(linear)
    for step, gradient in enumerate(gradients):
        if step == 2:
            again = config.build(linear)
            load_optimizer(again, optimizer_tensors(optimizer))
            optimizer = again
        linear.weight.grad = gradient.T.clone() if tall else gradient.clone()
        set_learning_rate(optimizer, 0.02)
        optimizer.step()
    expected = soap_by_hand(start.T if tall else start, gradients, 0.02)
    torch.testing.assert_close(linear.weight.detach(), expected.T if tall else expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("stop", [4, 5, 6])
def test_soap_computes_its_bases_at_the_same_steps_when_it_is_resumed(stop: int) -> None:
    generator = torch.Generator().manual_seed(2)
    gradients = [torch.randn(3, 5, generator=generator) for _ in range(13)]

    def trained(*, resumed: bool) -> torch.Tensor:
        torch.manual_seed(3)
        linear = nn.Linear(5, 3, bias=False)
        optimizer = Soap(frequency=7).build(linear)
        for step, gradient in enumerate(gradients):
            if resumed and step == stop:
                again = Soap(frequency=7).build(linear)
                load_optimizer(again, optimizer_tensors(optimizer))
                optimizer = again
            linear.weight.grad = gradient.clone()
            set_learning_rate(optimizer, 0.1)
            optimizer.step()
        return linear.weight.detach()

    assert torch.equal(trained(resumed=True), trained(resumed=False))


def test_soap_stacks_matrices_of_equal_shape_without_changing_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU; one of the matrices has no gradient in the first step."""

    def trained() -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(2)
        torch.manual_seed(3)
        layers = nn.ModuleList([nn.Linear(*sizes, bias=False) for sizes in ((5, 3), (5, 3), (3, 5), (5, 3), (4, 4))])
        optimizer = Soap(frequency=3).build(layers)
        for step in range(13):
            for number, parameter in enumerate(layers.parameters()):
                gradient = torch.randn(parameter.shape, generator=generator)
                parameter.grad = None if step == 0 and number == 1 else gradient
            set_learning_rate(optimizer, 0.1)
            optimizer.step()
        return [parameter.detach() for parameter in layers.parameters()]

    expected = trained()
    monkeypatch.setattr(optim, "is_stacked", lambda device: True)
    monkeypatch.setattr(optim, "_refine", lambda basis, covariance: optim._eigenvectors(covariance))
    decompose, sizes = optim._eigenvectors, []
    monkeypatch.setattr(optim, "_eigenvectors", lambda matrices: sizes.append(matrices.shape) or decompose(matrices))
    for ours, alone in zip(trained(), expected, strict=True):
        torch.testing.assert_close(ours, alone)
    assert {tuple(size) for size in sizes} == {(3, 3), (2, 3, 3), (4, 4)}


def test_bases_are_refined_towards_the_eigenvectors() -> None:
    generator = torch.Generator().manual_seed(1)
    random = partial(torch.randn, 2, 32, 32, generator=generator)
    scales = torch.tensor([1.0, 0.2])[:, None, None] * torch.logspace(0, -2, 32)
    first = random() * scales
    covariance = first.mT @ first
    basis, start = torch.linalg.eigh(covariance)[1], None

    def off_diagonal(basis: torch.Tensor) -> float:
        rotated = basis.mT @ covariance @ basis
        lengths = rotated.diagonal(dim1=-2, dim2=-1).sqrt()
        return float((rotated / lengths[..., None] / lengths[..., None, :] - torch.eye(32)).norm())

    for _ in range(5):
        change = first + 0.1 * random() * scales
        covariance = 0.8 * covariance + 0.2 * change.mT @ change
        start = basis if start is None else start
        basis = optim._refine(basis, covariance)
    assert off_diagonal(basis) < 0.4 * off_diagonal(start)
    torch.testing.assert_close(basis.mT @ basis, torch.eye(32).expand(2, 32, 32), rtol=0, atol=1e-5)


def test_a_basis_that_cannot_be_refined_is_kept() -> None:
    basis = torch.linalg.qr(torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(1)))[0]
    assert torch.equal(optim._refine(basis, torch.full((2, 4, 4), torch.nan)), basis)
    assert torch.equal(optim._refine(basis, torch.zeros(2, 4, 4)), basis)


def test_soap_trains_what_is_no_matrix_by_adamw() -> None:
    torch.manual_seed(1)
    soap, adam = Objective(), Objective()
    adam.load_state_dict(soap.state_dict())
    ours = Soap(learning_rate=0.1, others=0.5, betas=(0.8, 0.9), weight_decay=0.2, eps=1e-6).build(soap)
    theirs = AdamW(learning_rate=0.05, betas=(0.8, 0.9), weight_decay=0.2).build(adam)
    set_learning_rate(ours, 0.1)
    for _ in range(3):
        for one, other in zip(soap.parameters(), adam.parameters(), strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        ours.step()
        theirs.step()
        assert all(parameter.grad is not None for parameter in soap.parameters())
    moved = dict(adam.named_parameters())
    for name, parameter in soap.named_parameters():
        same = torch.allclose(parameter, moved[name], rtol=1e-5, atol=1e-6)
        assert same == (parameter.ndim == 1), name


def test_soap_leaves_weights_without_a_gradient_where_they_are() -> None:
    linear = nn.Linear(5, 3)
    start = linear.weight.detach().clone()
    optimizer = Soap().build(linear)
    linear.weight.grad, linear.bias.grad = torch.zeros(3, 5), None
    optimizer.step()
    assert torch.equal(linear.weight, start)


@pytest.mark.parametrize("config", [AdamW(), Soap(), Adafactor()], ids=lambda config: config.kind)
def test_a_step_with_an_overflow_in_fp16_changes_neither_weights_nor_state(config: AdamW | Soap | Adafactor) -> None:
    module = nn.Linear(8, 8)
    optimizer, scaler = config.build(module), torch.amp.GradScaler("cpu")
    for overflows in (True, False):
        before = module.weight.detach().clone()
        optimizer.zero_grad()
        scaler.scale(module(torch.ones(4, 8)).square().sum()).backward()
        assert module.weight.grad is not None
        if overflows:
            module.weight.grad[0, 0] = torch.inf
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(module.weight, before) is overflows
    assert module.weight.isfinite().all()
    assert float(optimizer.state[module.weight]["step"]) == 1.0
