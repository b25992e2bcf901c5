"""Splits and folds: every row once, the classes in proportion, and what cannot be split."""

import numpy as np
import pytest

from homespun.data.splits import stratified_folds, stratified_order, stratified_split
from homespun.errors import UserError


def joined(*parts: np.ndarray) -> list[int]:
    return sorted(int(index) for part in parts for index in part)


class TestSplits:
    targets = np.repeat([0, 1, 2], [70, 20, 10])

    def test_classes_keep_their_proportion(self) -> None:
        training, validation = stratified_split(self.targets, 0.1, seed=3)
        assert np.bincount(self.targets[validation]).tolist() == [7, 2, 1]
        assert joined(training, validation) == list(range(100))
        assert (np.diff(training) > 0).all()
        assert (np.diff(validation) > 0).all()

    def test_the_seed_decides(self) -> None:
        first, again, other = (stratified_split(self.targets, 0.2, seed)[1].tolist() for seed in (1, 1, 2))
        assert first == again != other

    def test_a_class_with_one_row_stays_in_training(self) -> None:
        targets = np.append(self.targets, 3)
        training, validation = stratified_split(targets, 0.1, seed=0)
        assert 100 in training
        assert joined(training, validation) == list(range(101))

    def test_several_labels_are_split_at_random(self) -> None:
        training, validation = stratified_split(np.eye(3, dtype=np.int64)[self.targets], 0.13, seed=0)
        assert (len(training), len(validation)) == (87, 13)

    @pytest.mark.parametrize("columns", [0, 3])
    def test_a_random_split_needs_a_row_on_each_side(self, columns: int) -> None:
        targets = np.zeros((4, columns), dtype=np.int64)
        assert [len(part) for part in stratified_split(targets, 0.1, seed=0)] == [3, 1]
        with pytest.raises(UserError, match=r"data\.validation=0\.85 of 4 rows"):
            stratified_split(targets, 0.85, seed=0)

    @pytest.mark.parametrize("share", [0.0, 1.0, 0.01, 0.99])
    def test_a_share_that_cannot_be(self, share: float) -> None:
        with pytest.raises(UserError, match=r"data\.validation="):
            stratified_split(self.targets, share, seed=0)

    @pytest.mark.parametrize("several", [False, True])
    def test_folds_cover_every_row_once(self, several: bool) -> None:
        targets = np.eye(3, dtype=np.int64)[self.targets] if several else self.targets
        folds = list(stratified_folds(targets, 7, seed=1))
        assert joined(*(test for _, test in folds)) == list(range(100))
        assert all(joined(*fold) == list(range(100)) for fold in folds)
        if not several:
            assert {tuple(np.bincount(self.targets[test])) for _, test in folds} <= {
                (10, a, b) for a in (2, 3) for b in (1, 2)
            }

    def test_rows_alone_in_their_class_are_shared_out(self, caplog: pytest.LogCaptureFixture) -> None:
        targets = np.append(self.targets, [5, 3, 4])
        folds = list(stratified_folds(targets, 2, seed=1))
        assert "3 rows are the only ones of their class" in caplog.text
        assert joined(*(test for _, test in folds)) == list(range(103))
        assert all(joined(*fold) == list(range(103)) and (np.diff(fold[1]) > 0).all() for fold in folds)
        assert [[row for row in test.tolist() if row > 99] for _, test in folds] == [[100, 102], [101]]
        of_others = [test[test < 100].tolist() for _, test in folds]
        assert of_others == [test.tolist() for _, test in stratified_folds(self.targets, 2, seed=1)]
        with pytest.raises(UserError, match=r"folds=11 .* 10 rows"):
            stratified_folds(targets, 11, seed=1)
        with pytest.raises(UserError, match="two rows"):
            stratified_folds(np.arange(7), 2, seed=1)

    @pytest.mark.parametrize("folds", [1, 11])
    def test_folds_that_cannot_be(self, folds: int) -> None:
        with pytest.raises(UserError, match=" 10 rows"):
            stratified_folds(self.targets, folds, seed=0)


def test_every_beginning_of_an_order_in_proportion_is_so() -> None:
    targets = np.repeat([0, 1, 2], [600, 300, 100])
    order = stratified_order(targets, seed=1)
    assert sorted(order.tolist()) == list(range(1000))
    for size in (10, 53, 500):
        counts = np.bincount(targets[order[:size]], minlength=3)
        assert np.abs(counts - np.array([0.6, 0.3, 0.1]) * size).max() <= 1.5
    assert (stratified_order(targets, seed=1) == order).all()
    assert (stratified_order(targets, seed=2) != order).any()
    assert sorted(stratified_order(np.zeros((17, 0), dtype=np.int64), seed=1).tolist()) == list(range(17))


class TestGroups:
    groups = np.repeat(np.arange(11), [1, 2, 3, 5, 7, 2, 1, 3, 1, 4, 2])[:, None]

    def test_groups_are_not_divided(self) -> None:
        training, validation = stratified_split(self.groups, 0.3, seed=5)
        assert joined(training, validation) == list(range(31))
        ours, theirs = set(self.groups[training, 0].tolist()), set(self.groups[validation, 0].tolist())
        assert not ours & theirs
        assert len(theirs) == 4
        assert stratified_split(self.groups, 0.001, seed=5)[1].size  # never none

    def test_folds_divide_no_group(self) -> None:
        folds = list(stratified_folds(self.groups, 5, seed=1))
        assert joined(*(test for _, test in folds)) == list(range(31))
        for training, test in folds:
            assert not set(self.groups[training, 0].tolist()) & set(self.groups[test, 0].tolist())

    def test_what_cannot_be(self) -> None:
        with pytest.raises(UserError, match="11 groups"):
            stratified_folds(self.groups, 12, seed=0)
        with pytest.raises(UserError, match="one group"):
            stratified_split(np.zeros((7, 1), dtype=np.int64), 0.2, seed=0)
