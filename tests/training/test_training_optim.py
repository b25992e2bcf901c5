from __future__ import annotations

import pytest
from torch import nn
from training_parts import Objective

from homespun.errors import UserError
from homespun.training.config import AdamW
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
    assert sorted(names) == ["head.bias", "pooler.bias", "pooler.weight"]


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
