import math
import subprocess
import sys

import pytest
import torch

from homespun.batch import Batch, Loss, RowSeed, Term


def test_a_draw_is_pinned() -> None:
    # a change here means that no older run can be resumed or repeated: think twice
    assert RowSeed(3, 1, 7).generator().initial_seed() == 899175616646255313
    drawn = torch.randint(0, 2**31, (3,), generator=RowSeed(3, 1, 7).generator())
    assert drawn.tolist() == [1406617838, 1020423574, 2106808649]


@pytest.mark.slow
def test_a_draw_is_the_same_in_another_process() -> None:
    code = "from homespun.batch import RowSeed; print(RowSeed(3, 1, 7).generator().initial_seed())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "1"}
    )
    assert done.stdout == f"{RowSeed(3, 1, 7).generator().initial_seed()}\n"


def test_draws_differ_in_every_part_and_do_not_run_together() -> None:
    row_seeds = [RowSeed(s, e, i) for s in range(5) for e in range(5) for i in range(13)]
    row_seeds += [RowSeed(11, 1, 1), RowSeed(1, 11, 1), RowSeed(1, 1, 11), RowSeed(1, 111, 0)]
    names = {(d.seed, d.epoch, d.index) for d in row_seeds}
    assert len({d.generator().initial_seed() for d in row_seeds}) == len(names)


def test_a_batch_moves_its_tensors_and_keeps_the_rest() -> None:
    batch = Batch(torch.zeros(3, 5, dtype=torch.int64), labels=torch.ones(2), targets={"mlm": 2.0})
    moved = batch.to("meta")
    assert moved.input_ids.device.type == "meta"
    assert moved.labels.device.type == "meta"
    assert moved.attention_mask is None
    assert moved.targets == {"mlm": 2.0}
    assert moved.num_tokens == 15
    assert batch.input_ids.device.type == "cpu"


def test_total_is_the_weighted_sum_of_means() -> None:
    terms = {"generator": Term(torch.tensor(6.0), 3), "accuracy": Term(torch.tensor(math.nan), 7, weight=0.0)}
    loss = Loss(terms | {"discriminator": Term(torch.tensor(14.0), torch.tensor(7.0), weight=50.0)})
    assert loss.total().item() == pytest.approx(6 / 3 + 50 * 14 / 7)
    assert loss.total().shape == ()


def test_targets_replace_the_counts() -> None:
    loss = Loss({"mlm": Term(torch.tensor(6.0), 3)})
    assert loss.total({"mlm": 12.0, "other": 5.0}).item() == pytest.approx(0.5)


def test_a_term_without_targets_adds_nothing_and_keeps_its_gradient_finite() -> None:
    logits = torch.ones(0, 5, requires_grad=True)
    empty = torch.nn.functional.cross_entropy(logits, torch.zeros(0, dtype=torch.int64), reduction="sum")
    loss = Loss({"mlm": Term(empty, 0), "nsp": Term(torch.tensor(4.0), 2)})
    total = loss.total()
    total.backward()
    assert total.item() == 2.0
    assert logits.grad is not None
    assert loss.total({"nsp": 2.0}).item() == 2.0


def test_counts_may_be_fractions() -> None:
    # class weights: the count is a sum of weights, here of one text of a class weighted 0.25
    assert Loss({"classes": Term(torch.tensor(0.5), 0.25)}).total().item() == pytest.approx(2.0)
    assert Loss({"classes": Term(torch.tensor(0.5), 0.25)}).total({"classes": 0.5}).item() == pytest.approx(1.0)


def test_terms_that_only_report_make_no_loss() -> None:
    assert Loss({"accuracy": Term(torch.tensor(3.0), 5, weight=0.0)}).total().item() == 0.0


def test_half_precision_sums_are_added_in_float32() -> None:
    total = Loss({"a": Term(torch.tensor(2.0, dtype=torch.bfloat16), 3)}).total()
    assert total.dtype == torch.float32
    assert total.item() == pytest.approx(2 / 3, rel=1e-6)


@pytest.mark.parametrize("sizes", [[13], [1] * 13, [2, 11], [7, 0, 5, 1]])
def test_gradients_add_up_whatever_the_split(sizes: list[int]) -> None:
    """Two terms with different counts: the mean over the step is neither the mean of means nor one weight a part."""
    torch.manual_seed(0)
    hidden, weight = torch.randn(13, 3), torch.randn(3)
    masked = torch.rand(13) < 0.4
    step = {"masked": float(masked.sum()), "all": 13.0}

    def gradient(splits: list[int]) -> torch.Tensor:
        parameter = weight.clone().requires_grad_()
        for part, mask in zip(hidden.split(splits), masked.split(splits), strict=True):
            scores = part @ parameter
            terms = {
                "masked": Term((scores.square() * mask).sum(), mask.sum()),
                "all": Term(torch.sigmoid(scores).sum(), len(scores), weight=50.0),
            }
            Loss(terms).total(step).backward()
        assert parameter.grad is not None
        return parameter.grad

    torch.testing.assert_close(gradient(sizes), gradient([13]), rtol=1e-5, atol=1e-6)
    full_weight = weight.clone().requires_grad_()
    scores = hidden @ full_weight
    (scores[masked].square().mean() + 50 * torch.sigmoid(scores).mean()).backward()
    torch.testing.assert_close(gradient(sizes), full_weight.grad, rtol=1e-5, atol=1e-6)
