"""The loader: any step at any time, on any number of workers, processes and micro-batches, is the same step."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
from itertools import islice

import numpy as np
import pytest
import torch

from homespun.batch import Batch
from homespun.data.loader import Loader
from homespun.data.rows import Row
from homespun.errors import UserError


class Numbered:
    """Row i is its number, repeated to a length."""

    def __init__(self, count, lengths=None):
        self.lengths = np.full(count, 5) if lengths is None else lengths

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        assert isinstance(index, int)
        return Row(np.full(self.lengths[index], index))


def collate(rows, row_seeds):
    """Row numbers as labels, and for each row a number drawn for it, and its epoch; padded with -1."""
    longest = max(len(row.input_ids) for row in rows)
    ids = torch.full((len(rows), longest), -1)
    for place, row in zip(ids, rows, strict=True):
        place[: len(row.input_ids)] = torch.from_numpy(row.input_ids)
    random = torch.stack([torch.randint(10**9, (), generator=row_seed.generator()) for row_seed in row_seeds])
    return Batch(ids, labels=random, pair_labels=torch.tensor([row_seed.epoch for row_seed in row_seeds]))


def failing_collate(rows, row_seeds):
    raise UserError("a row that cannot be collated")


def contents(batches):
    """(row, row_seed, epoch) of each row in order."""
    return [
        item
        for batch in batches
        for item in zip(batch.input_ids[:, 0].tolist(), batch.labels.tolist(), batch.pair_labels.tolist(), strict=True)
    ]


def loader(count=103, **given):
    return Loader(Numbered(count), collate, **{"batch_size": 8, "seed": 7, **given})


def news(count=6000):
    return np.random.default_rng(0).normal(50, 15, count).clip(5, 128).astype(int)


ORDERS = ["shuffled", "bucketed"]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 17, 103, 1201])
def test_an_epoch_is_every_row_once(count, order):
    ours = loader(count, order=order)
    assert ours.steps_per_epoch == -(-count // 8)
    for epoch in range(2):
        steps = [ours.step(epoch * ours.steps_per_epoch + i) for i in range(ours.steps_per_epoch)]
        assert sorted(row for step in steps for row, _, _ in contents(step)) == list(range(count))
        assert {e for step in steps for _, _, e in contents(step)} == {epoch}
        sizes = [len(contents(step)) for step in steps]
        assert max(sizes) <= 8
        assert sum(size < 8 for size in sizes) <= 2
        assert len(steps) == 1 or min(sizes) >= 4


def test_epochs_and_seeds_have_orders_of_their_own():
    ours = loader()
    first, second = (
        [row for i in range(13) for row, _, _ in contents(ours.step(epoch * 13 + i))] for epoch in range(2)
    )
    assert first != second != sorted(second)
    assert contents(ours.step(0)) != contents(loader(seed=8).step(0))


def test_a_row_has_another_draw_in_another_epoch():
    ours = loader(5, batch_size=5)
    first, second = (dict(item[:2] for item in contents(ours.step(i))) for i in range(2))
    assert all(first[row] != second[row] for row in range(5))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("micro", [None, 1, 2, 3, 5, 100])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_any_split_of_a_step_is_the_same_step(world, micro, order):
    undivided = loader(order=order)
    parts = [loader(order=order, micro_batch_size=micro, rank=rank, world_size=world) for rank in range(world)]
    for number in (0, 5, 11, 12, 13, 40):
        split = [part.step(number) for part in parts]
        assert contents(batch for part in split for batch in part) == contents(undivided.step(number))
        assert all(part for part in split), "every process takes part in every step"
        assert all(len(batch.input_ids) <= (micro or 8) for part in split for batch in part)


def test_another_micro_batch_size_is_the_same_step():
    ours = loader(order="bucketed")
    halved = ours.with_micro_batch_size(4)
    assert [len(batch.input_ids) for batch in halved.step(3)] == [4, 4]
    assert contents(halved.step(3)) == contents(ours.step(3))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # torch, where there is one core
def test_steps_go_on_from_anywhere(workers):
    ours = loader(order="bucketed", workers=workers, micro_batch_size=3)
    expected = [ours.step(number) for number in range(20, 31)]
    got = list(islice(ours.steps(20), 11))
    assert [contents(step) for step in got] == [contents(step) for step in expected]
    for mine, theirs in zip(got, expected, strict=True):
        for one, two in zip(mine, theirs, strict=True):
            assert torch.equal(one.input_ids, two.input_ids)


def test_workers_leave_the_random_state_alone():
    """Else dropout would depend on how many workers there are, and on when training was resumed."""
    torch.manual_seed(3)
    before = torch.get_rng_state()
    next(loader(workers=1).steps())
    assert torch.equal(torch.get_rng_state(), before)


def test_workers_leave_interrupts_to_the_trainer():
    steps = loader(workers=1).steps()
    next(steps)
    (worker,) = multiprocessing.active_children()
    os.kill(worker.pid, signal.SIGINT)
    assert contents(list(islice(steps, 9))[-1]) == contents(loader().step(9))


def test_a_users_mistake_in_a_worker_is_a_users_mistake():
    with pytest.raises(UserError, match="cannot be collated"):
        next(Loader(Numbered(9), failing_collate, batch_size=2, seed=0, workers=1).steps())


def test_a_process_ends_after_a_mistake_in_a_worker() -> None:
    code = (
        "import numpy as np; from homespun.data.loader import Loader; from homespun.errors import UserError\n"
        "class Rows:\n lengths = np.ones(9, dtype=np.int64)\n"
        " def __len__(self): return 9\n"
        " def __getitem__(self, index): return index\n"
        "def fail(rows, seeds): raise UserError('a mistake')\n"
        "try: next(Loader(Rows(), fail, batch_size=2, seed=0, workers=1).steps())\n"
        "except UserError as error: kept = error; print(error)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert (ended.stdout, ended.stderr) == ("a mistake\n", "")


@pytest.mark.parametrize("workers", [0, 1])
def test_once_is_every_row_in_order(workers):
    ours = loader(19, workers=workers, order="bucketed", rank=1, world_size=2)
    batches = list(ours.once())
    assert [len(batch.input_ids) for batch in batches] == [8, 8, 3]
    assert [row for row, _, _ in contents(batches)] == list(range(19))
    assert {epoch for _, _, epoch in contents(batches)} == {0}
    assert contents(ours.with_micro_batch_size(5).once()) == contents(batches)
    drawn = dict(item[:2] for i in range(3) for item in contents(loader(19).step(i)))
    assert drawn == dict(item[:2] for item in contents(batches)), "the draws of epoch 0"


def test_a_loader_can_be_sent_to_a_process():
    ours = loader(order="bucketed")
    assert contents(pickle.loads(pickle.dumps(ours)).step(17)) == contents(ours.step(17))


# ---- bucketing


def padding(ours, steps):
    batches = [batch for i in range(steps) for batch in ours.step(i)]
    ids = torch.cat([batch.input_ids.flatten() for batch in batches])
    return (ids < 0).float().mean().item()


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [8, 32, 64])
def test_bucketing_leaves_little_padding(batch_size):
    rows = Numbered(2500, news(2500))
    ours = {order: Loader(rows, collate, batch_size=batch_size, seed=1, order=order) for order in ORDERS}
    shares = {order: padding(one, one.steps_per_epoch) for order, one in ours.items()}
    assert shares["bucketed"] < 0.05
    assert shares["shuffled"] > 0.2


def test_buckets_come_in_no_order_of_length():
    ours = Loader(Numbered(6000, news()), collate, batch_size=32, seed=1, order="bucketed")
    widths = [ours.step(i)[0].input_ids.shape[1] for i in range(ours.steps_per_epoch)]
    assert abs(np.corrcoef(widths, np.arange(len(widths)))[0, 1]) < 0.3
    halves = np.array(widths[:-2]).reshape(2, -1).mean(1) if len(widths) % 2 == 0 else [1, 1]
    assert halves[0] == pytest.approx(halves[1], rel=0.15)


def test_buckets_differ_between_epochs():
    ours = loader(1201, order="bucketed")
    assert [contents(ours.step(i)) for i in range(3)] != [contents(ours.step(i + 151)) for i in range(3)]


# ---- bad input


@pytest.mark.parametrize("given", [{"batch_size": 0}, {"batch_size": -3}, {"micro_batch_size": 0}])
def test_sizes_are_at_least_one(given):
    with pytest.raises(UserError, match=" 1 or more"):
        loader(**given)


def test_no_rows_are_no_steps():
    with pytest.raises(UserError, match="no rows"):
        loader(0)


@pytest.mark.parametrize("given", [{"batch_size": 2, "world_size": 3}, {"count": 2, "world_size": 3}])
def test_every_process_needs_a_row(given):
    with pytest.raises(UserError, match=" 3 processes"):
        loader(**given)
