"""Numbers and ratings: the layers that learn them, by hand; and that the stored head says the same."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from homespun.batch import Batch, RowSeed
from homespun.data.labels import RegressionRows
from homespun.data.long_inputs import ChunkMean, ChunkPool
from homespun.data.rows import Row, SubsetRows
from homespun.errors import UserError
from homespun.metrics.regression import ordinal_regression_metrics
from homespun.models.bundle import ModelBundle
from homespun.models.config import ModelConfig
from homespun.tasks.number_training import RegressionCollator, RegressionLoss
from homespun.tasks.ordinal_regression import (
    OrdinalHead,
    OrdinalRegression,
    OrdinalRegressionTask,
    log_likelihood,
    rating_probabilities,
)
from homespun.tasks.protocol import paths
from homespun.tasks.regression import Regression, RegressionTask
from homespun.tasks.text_outputs import numbers_of_examples
from homespun.tasks.texts import LabelledData, LabelledText

SIZES = {"hidden_size": 14, "num_attention_heads": 2, "intermediate_size": 22, "num_hidden_layers": 1}
CONFIG = ModelConfig.model_validate(
    {"backbone": {"kind": "encoder", "vocab_size": 37, "max_position_embeddings": 19, **SIZES}}
)
NUMBERS = np.array([130.0, 170.0, 110.0, 190.0, 230.0])
RANKS = np.array([0, 2, 1, 2, 3])
HEADS = ["linear", "mean", "ffn", "pooled", "cnn", "bilstm"]


def rows(labels: Any) -> list[Row]:
    draw = np.random.default_rng(1)
    return [Row(draw.integers(5, 37, size=3 + i).astype(np.int64), label=float(n)) for i, n in enumerate(labels)]


def batch_of(labels: Any, measured: str, weights: tuple[float, ...] | None = None) -> Batch:
    some = rows(labels)
    return RegressionCollator(0, measured, weights)(some, [RowSeed(0, 0, i) for i in range(len(some))])


def regression(**settings: Any) -> RegressionLoss:
    torch.manual_seed(3)
    return Regression.model_validate(settings).build(CONFIG.build(), CONFIG, NUMBERS)


def ratings(**settings: Any) -> RegressionLoss:
    torch.manual_seed(3)
    return OrdinalRegression.model_validate(settings).build(CONFIG.build(), CONFIG, RANKS, (1.0, 2.0, 4.0, 5.0))


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("make", [regression, ratings])
def test_the_stored_head_says_what_was_trained(make: Any, head: str) -> None:
    objective = make(head={"kind": head}).eval()
    batch = batch_of(RANKS, "accuracy")
    trained = objective.model(batch.input_ids, **batch.context)
    model, config = objective.export_model()
    assert torch.allclose(model.eval()(batch.input_ids, **batch.context), trained, rtol=1e-5, atol=1e-4)
    assert config.head.model_dump()["num_labels"] == trained.shape[1] == (1 if make is regression else 3)
    built = config.build()
    built.load_state_dict(model.state_dict())  # it is the model of its config


@pytest.mark.parametrize("long_inputs", [ChunkMean(chunks=3), ChunkPool(chunks=3)])
@pytest.mark.parametrize("last_layers", [1, 2])
def test_chunks_and_last_layers_are_stored_too(long_inputs: Any, last_layers: int) -> None:
    config = CONFIG.model_copy(update={"backbone": CONFIG.backbone.model_copy(update={"num_hidden_layers": 2})})
    settings = OrdinalRegression(last_layers=last_layers)
    made = settings.build(config.build(), config, RANKS, (1, 2, 3, 4), long_inputs=long_inputs).eval()
    ids = torch.randint(5, 37, (3, 7), generator=torch.Generator().manual_seed(1))
    chunks = torch.tensor([[0, 2], [1, -1]])
    model, stored = made.export_model()
    assert torch.allclose(model(ids, chunks=chunks), made.model(ids, chunks=chunks), atol=1e-5)
    stored.build().load_state_dict(model.state_dict())


def test_numbers_begin_at_their_mean_and_cost_their_variance() -> None:
    objective = regression(head={"kind": "linear", "dropout": 0.0}).eval()
    with torch.no_grad():
        for parameter in objective.model.head.head.parameters():
            parameter.zero_()
        loss = objective(batch_of(NUMBERS, "absolute_error"))
    assert loss.terms["loss"].sum / loss.terms["loss"].count == pytest.approx(1.0, rel=1e-5)
    error = loss.terms["absolute_error"]
    assert error.sum / error.count == pytest.approx(np.abs(NUMBERS - NUMBERS.mean()).mean(), rel=1e-5)
    assert error.weight == 0
    head = objective.model.head
    assert head.loss_from_metrics({"squared_error": NUMBERS.var()}) == pytest.approx(1.0, rel=1e-5)
    for number in (7.0, 0.1):  # the deviation of many 0.1 is not zero
        with pytest.raises(UserError, match=f"all training labels are {number:g},"):
            Regression().build(CONFIG.build(), CONFIG, np.full(36, number))


def test_ratings_begin_at_their_frequencies() -> None:
    objective = ratings(head={"kind": "linear"}).eval()
    with torch.no_grad():
        for parameter in objective.model.head.head.parameters():
            parameter.zero_()
        batch = batch_of(RANKS, "accuracy")
        logits = objective.model(batch.input_ids, **batch.context)
        loss = objective(batch).terms["loss"]
    smoothed = (np.array([1, 1, 2, 1]) + 0.5) / 7
    assert rating_probabilities(logits.numpy())[0] == pytest.approx(smoothed, rel=1e-4)
    assert float(loss.sum) == pytest.approx(-np.log(smoothed[RANKS]).sum(), rel=1e-4)


def test_the_likelihood_is_that_of_the_differences_and_holds_far_out() -> None:
    logits = torch.tensor([[2.0, 0.5, -1.0], [0.3, 0.2, -4.0], [60.0, 50.0, 40.0]], dtype=torch.float64)
    probabilities = rating_probabilities(logits.numpy())
    assert probabilities.sum(axis=1) == pytest.approx(np.ones(3))
    for rank in range(4):
        told = log_likelihood(logits, torch.full((3,), rank))[:2]
        assert told.exp().numpy() == pytest.approx(probabilities[:2, rank], rel=1e-6)
    logits.requires_grad_()
    far = log_likelihood(logits, torch.tensor([0, 3, 1]))
    assert float(far[2].detach()) == pytest.approx(-50.0, rel=1e-3)  # not the logarithm of nothing
    far.sum().backward()
    assert logits.grad.isfinite().all()


def test_divergence_of_ratings_is_that_of_their_probabilities() -> None:
    drawn = (torch.randn(5, 3, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    told, clean = (logits.sort(descending=True)[0] for logits in drawn)
    first, second = (rating_probabilities(logits.numpy()) for logits in (told, clean))
    by_hand = ((first - second) * (np.log(first) - np.log(second))).sum(axis=1)
    told.requires_grad_()
    found = OrdinalHead(torch.nn.Identity(), counts=np.array([1, 2, 3, 4])).distance(told, clean)
    assert found.detach().numpy() == pytest.approx(by_hand, rel=1e-4)
    found.sum().backward()
    assert told.grad.isfinite().all()
    assert told.grad.any()


@pytest.mark.parametrize("kind", ["sift", "plain"])
@pytest.mark.parametrize("method", ["cumulative", "squared"])
def test_ratings_may_be_perturbed(method: str, kind: str) -> None:
    settings = {"method": method, "adversarial": {"kind": kind}, "class_weights": "balanced"}
    config = OrdinalRegression.model_validate(settings)
    weights = config.weights(RANKS, 4)
    torch.manual_seed(3)
    loss = config.build(CONFIG.build(), CONFIG, RANKS, (1.0, 2.0, 4.0, 5.0), weights=weights)
    measured = "accuracy" if method == "cumulative" else "absolute_error"
    module, collate = config.wrap(loss, RegressionCollator(0, measured, weights))
    batch = collate(rows(RANKS), [RowSeed(0, 0, i) for i in range(5)])
    terms = module.train()(batch).terms
    assert set(terms) == {"loss", measured, "adversarial"}
    for name, term in terms.items():
        assert batch.targets[name] == pytest.approx(float(term.count))
    assert terms["adversarial"].sum.item() > 0
    terms["adversarial"].sum.backward()
    assert any(p.grad is not None and p.grad.any() for p in module.model.backbone.parameters())
    with pytest.raises(ValidationError, match="frozen=false"):
        OrdinalRegression.model_validate({"frozen": True, "adversarial": {"kind": kind}})


def test_thresholds_stay_in_order() -> None:
    objective = ratings(head={"kind": "linear"})
    optimizer = torch.optim.SGD(objective.parameters(), lr=3.0)
    batch = batch_of([0, 0, 0, 3, 3], "accuracy")
    for _ in range(7):
        optimizer.zero_grad()
        objective(batch).total().backward()
        optimizer.step()
    thresholds = objective.model.head.thresholds
    assert (thresholds.diff() > 0).all()


def test_weights_count_in_loss_and_targets() -> None:
    settings = OrdinalRegression(class_weights="balanced")
    weights = settings.weights(RANKS, 4)
    assert weights == pytest.approx((5 / 4, 5 / 4, 5 / 8, 5 / 4))
    batch = batch_of(RANKS, "accuracy", weights)
    assert batch.targets == pytest.approx({"loss": 5.0, "accuracy": 5.0})
    torch.manual_seed(3)
    made = settings.build(CONFIG.build(), CONFIG, RANKS, (1, 2, 3, 4), weights=weights)
    assert float(made(batch).terms["loss"].count) == pytest.approx(5.0)


def test_a_frozen_encoder_is_not_trained() -> None:
    objective = regression(frozen=True)
    objective(batch_of(NUMBERS, "absolute_error")).total().backward()
    assert all(p.grad is None for p in objective.model.backbone.parameters())
    assert all(p.grad is not None for p in objective.model.head.parameters())
    assert not objective.train().model.backbone.training


@pytest.mark.parametrize("settings", [{}, {"method": "squared"}])
def test_a_tiny_model_learns_the_ratings(settings: dict[str, Any]) -> None:
    objective = ratings(head={"kind": "linear", "dropout": 0.0}, **settings)
    optimizer = torch.optim.Adam(objective.parameters(), lr=3e-2)
    batch = batch_of(RANKS, "accuracy" if not settings else "absolute_error")
    first = float(objective(batch).total().detach())
    for _ in range(60):
        optimizer.zero_grad()
        loss = objective(batch).total()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < first / 3


def test_levels_are_those_given_or_those_of_the_training() -> None:
    assert OrdinalRegression().find_levels(np.array([3.0, 1.0, 3.0])) == (1.0, 3.0)
    assert OrdinalRegression(levels=[1, 2, 3]).find_levels(np.array([3.0])) == (1.0, 2.0, 3.0)
    with pytest.raises(UserError, match="has 51 different ratings, and 2 to 50 are allowed"):
        OrdinalRegression().find_levels(np.arange(51.0))


def test_close_levels_have_different_names() -> None:
    levels = (0.5, 1000000.1, 1000000.2, 1e7)
    rating = OrdinalRegressionTask(
        LabelledData(), cast(ModelBundle, None), levels=levels, method="cumulative", out_of_range="refuse"
    )
    assert rating.labels is not None
    assert rating.labels.names == ("> 0.5", "> 1000000.1", "> 1000000.2")
    ranks = np.arange(4)
    confusion = ordinal_regression_metrics(levels, ranks, ranks)["confusion"]
    assert confusion["labels"] == ["0.5", "1000000.1", "1000000.2", "10000000"]
    with pytest.raises(UserError, match=r"rating 1000000.3, which is none of 0.5, 1000000.1, 1000000.2, 10000000;"):
        rating.stratify_by([LabelledText("a", "1000000.3")])


@pytest.mark.parametrize("odd", ["x", "nan", "inf", "9"])
def test_an_odd_number_is_named_by_its_row_in_the_file(odd: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(f"text,label\na,3\nb,\nc,{odd}\nd,-0.5\ne,1e2\n")
    data = LabelledData(train=str(tmp_path / "t.csv"))
    examples, stored = data.read_files(paths(data.train)), cast(ModelBundle, None)
    number = RegressionTask(data, stored, bounds=(-1, 5))
    rating = OrdinalRegressionTask(data, stored, levels=(3.0, 4.0), method="squared", out_of_range="refuse")
    for task in (number, rating):
        with pytest.raises(UserError, match="row 3 has"):
            task.stratify_by(examples)
    assert numbers_of_examples([examples[0], *examples[2:]]).tolist() == [3.0, -0.5, 100.0]
    with pytest.raises(UserError, match="row 2 has label 'x'"):
        numbers_of_examples([LabelledText("a", "1"), LabelledText("b", "x")])


def test_numbered_rows_are_chosen() -> None:
    class Plain(list[Row]):
        lengths = np.array([3, 4, 5, 6, 7])

    numbered = RegressionRows(Plain(rows(RANKS)), NUMBERS, {"x": 1})
    chosen = SubsetRows(numbered, np.array([4, 1]))
    assert [chosen[0].label, chosen[1].label] == [230.0, 170.0]
    assert chosen.lengths.tolist() == [7, 4]
    assert len(chosen) == 2
