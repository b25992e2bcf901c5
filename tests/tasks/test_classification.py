"""Fine-tuning: the loss is PyTorch's, any split into micro-batches weighs the same, and a frozen encoder stays."""

import pickle
from typing import Any, get_args

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch.nn import functional as F

from homespun.batch import Batch, Loss
from homespun.commands.workload import made_up_tokenizer
from homespun.data.labels import Labels
from homespun.data.rows import Row
from homespun.errors import UserError
from homespun.models.bundle import ModelBundle
from homespun.models.config import ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.models.sequence_heads import LinearHeadConfig, SequenceHeadConfig
from homespun.tasks.classification import Classification, ClassificationLoss
from homespun.tasks.texts import LabelledText, PairsData

HEADS = get_args(get_args(SequenceHeadConfig)[0])
SINGLE, SEVERAL = Labels(("a", "b", "c")), Labels(("a", "b", "c"), multi_label=True)
WEIGHTS = (0.5, 1.0, 3.0)


def model_config(**fields: Any) -> ModelConfig:
    sizes = {"hidden_size": 14, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 17}
    return ModelConfig(backbone=EncoderConfig(**{"vocab_size": 53, "max_position_embeddings": 31, **sizes, **fields}))


def objective(config: Classification, labels: Labels = SINGLE, **arguments: Any) -> ClassificationLoss:
    torch.manual_seed(1)
    model = model_config()
    return config.build(model.build(), model, labels, **arguments)


def some_rows(labels: Labels, count: int = 7) -> list[Row]:
    generator = np.random.default_rng(3)
    rows = []
    for index in range(count):
        label = (generator.random(3) > 0.5).astype(np.int64) if labels.multi_label else index % 3
        rows.append(Row(generator.integers(5, 53, 3 + 2 * index), label=label))
    return rows


def collated(labels: Labels, rows: list[Row] | None = None, **arguments: Any) -> Batch:
    collate = Classification().collate(0, labels, **arguments)
    return pickle.loads(pickle.dumps(collate))(some_rows(labels) if rows is None else rows, [])


def logits_of(module: ClassificationLoss, batch: Batch) -> torch.Tensor:
    return module.model(batch.input_ids, batch.attention_mask)


def test_collate_pads_to_the_longest() -> None:
    batch = collated(SINGLE)
    assert batch.input_ids.shape == (7, 15)
    assert batch.attention_mask.sum(dim=1).tolist() == [3, 5, 7, 9, 11, 13, 15]
    assert batch.labels.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert batch.targets == {"loss": 7, "accuracy": 7}
    assert collated(SINGLE, some_rows(SINGLE, 1)).attention_mask is None


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_the_loss_is_cross_entropy(weights: Any, smoothing: float) -> None:
    module = objective(Classification(label_smoothing=smoothing), weights=weights).eval()
    batch = collated(SINGLE, weights=weights)
    assert batch.labels is not None
    logits = logits_of(module, batch)
    weight = None if weights is None else torch.tensor(weights)
    expected = F.cross_entropy(logits, batch.labels, weight=weight, label_smoothing=smoothing)
    loss = module(batch)
    torch.testing.assert_close(loss.total(), expected)
    torch.testing.assert_close(loss.total(batch.targets), expected)
    accuracy = loss.terms["accuracy"]
    assert accuracy.weight == 0
    assert float(accuracy.sum) == (logits.argmax(1) == batch.labels).sum()
    assert accuracy.count == 7


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_the_loss_of_several_labels_is_binary_cross_entropy(weights: Any) -> None:
    module = objective(Classification(), SEVERAL, weights=weights).eval()
    batch = collated(SEVERAL, weights=weights)
    logits = logits_of(module, batch)
    weight = None if weights is None else torch.tensor(weights)
    expected = F.binary_cross_entropy_with_logits(logits, batch.labels.float(), pos_weight=weight)
    loss = module(batch)
    torch.testing.assert_close(loss.total(), expected)
    torch.testing.assert_close(loss.total(batch.targets), expected)
    right = ((logits > 0) == batch.labels.bool()).all(1).sum()
    assert float(loss.terms["accuracy"].sum) == right


@pytest.mark.parametrize("labels", [SINGLE, SEVERAL])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_targets_are_the_counts_and_micro_batches_add_up(labels: Labels, weights: Any) -> None:
    rows = some_rows(labels)
    whole, *parts = (collated(labels, part, weights=weights) for part in (rows, rows[:2], rows[2:6], rows[6:]))
    module = objective(Classification(), labels, weights=weights).eval()
    targets = {name: sum(part.targets[name] for part in parts) for name in whole.targets}
    assert targets == pytest.approx(whole.targets)
    loss: Loss = module(whole)
    assert {name: float(term.count) for name, term in loss.terms.items()} == pytest.approx(whole.targets)
    together = sum(module(part).total(targets) for part in parts)
    torch.testing.assert_close(together, loss.total(), atol=1e-6, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("labels", [SINGLE, SEVERAL])
@pytest.mark.parametrize("head", HEADS)
def test_every_head_overfits_one_batch(head: Any, labels: Labels) -> None:
    module = objective(Classification(head=head(dropout=0.0)), labels)
    batch = collated(labels)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    for _ in range(120):
        optimizer.zero_grad()
        module(batch).total().backward()
        optimizer.step()
    with torch.no_grad():
        loss = module.eval()(batch)
    assert float(loss.total()) < 0.1
    assert float(loss.terms["accuracy"].sum) == 7


def test_a_frozen_encoder_stays() -> None:
    module = objective(Classification(frozen=True)).train()
    assert module.model.head.training
    assert not module.model.backbone.training
    before = {name: value.clone() for name, value in module.model.backbone.state_dict().items()}
    batch = collated(SINGLE)
    first, again = (module.model.backbone(batch.input_ids) for _ in range(2))
    assert torch.equal(first, again)
    module(batch).total().backward()
    learned = [parameter for parameter in module.parameters() if parameter.requires_grad]
    assert {id(p) for p in learned} == {id(p) for p in module.model.head.parameters()}
    torch.optim.Adam(learned, lr=1.0).step()
    for name, value in module.model.backbone.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_the_encoder_is_taken_over_and_the_head_is_new() -> None:
    config = model_config()
    model = config.build()
    module = Classification(head=LinearHeadConfig(num_labels=99)).build(model, config, SINGLE)
    product, described = module.export_model()
    assert product.backbone is model.backbone
    assert described.head == LinearHeadConfig(num_labels=3)
    assert described.backbone == config.backbone
    assert described.build().state_dict().keys() == product.state_dict().keys()
    assert "class_weights" not in module.state_dict()


def test_weights_are_balanced_or_given_by_name() -> None:
    config = Classification(class_weights="balanced")
    weights = config.weights(SINGLE, np.repeat([0, 1, 2], [6, 3, 1]))
    assert weights == pytest.approx((10 / 18, 10 / 9, 10 / 3))
    weights = config.weights(SEVERAL, np.array([[1, 0, 1], [1, 1, 1], [0, 0, 1], [0, 0, 1]]))
    assert weights == pytest.approx((1.0, 3.0, 1 / 4))
    assert Classification(class_weights={"c": 2.5}).weights(SINGLE, np.array([0])) == (1.0, 1.0, 2.5)
    assert Classification().weights(SINGLE, np.array([0])) is None
    with pytest.raises(UserError, match="no class 'x'"):
        Classification(class_weights={"x": 1.0}).weights(SINGLE, np.array([0]))


def test_balanced_weights_count_the_rows_of_the_training() -> None:
    tokenizer = made_up_tokenizer(53)
    config = model_config(vocab_size=tokenizer.vocab_size)
    stored = ModelBundle(config.build(), config, tokenizer)
    examples = [LabelledText("x", label, second) for label, second in ["az"] * 3 + ["bz"] + ["b "] * 2]
    balanced = Classification(class_weights="balanced")
    task = balanced.task(PairsData(max_length=16), stored, examples)
    setup = task.training_setup(balanced, stored, task.rows(examples))
    assert len(setup.rows) == 4
    loss: Any = setup.objective
    assert loss.loss.class_weights.tolist() == pytest.approx([4 / 6, 2])


def test_config_round_trip_and_refusals() -> None:
    adapter = TypeAdapter(Classification)
    config = adapter.validate_python({"head": {"kind": "cnn", "filters": 7}, "class_weights": {"a": 2}})
    assert adapter.validate_python(config.model_dump(mode="json")) == config
    for wrong in ({"class_weights": {"a": 0}}, {"class_weights": "even"}, {"label_smoothing": 1}, {"head": "cnn"}):
        with pytest.raises(ValidationError):
            adapter.validate_python(wrong)


def test_a_batch_without_labels() -> None:
    with pytest.raises(ValueError, match="labels"):
        objective(Classification())(Batch(torch.tensor([[1, 2]])))
