"""Labelled rows in parts: training and validation, or folds, with the classes in equal proportion.

Apart from `homespun.data.labels`, because scikit-learn takes a second to import and a prediction needs none of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import GroupKFold, GroupShuffleSplit, KFold, StratifiedKFold, train_test_split

from homespun.errors import UserError

logger = logging.getLogger(__name__)


def stratified_split(
    targets: NDArray[np.int64], share: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row indices of training and validation, ascending, with the classes in equal proportion on both sides.

    ``targets`` are `Labels.encode`'s. A class with one row stays in training. Rows with several labels have no one
    class to keep in proportion, and are drawn at random. (rows, 1) are the groups that the rows belong to, such as the
    texts that several questions are about: a group is whole on one side.

    Raises:
        UserError: the share is not between 0 and 1, or gives a side fewer rows than there are classes.
    """
    if not 0 < share < 1:
        raise UserError(f"the validation share must lie between 0 and 1, not {share}")
    rows = np.arange(len(targets))
    if _are_groups(targets):
        groups = len(np.unique(targets))
        if groups < 2:
            raise UserError("all rows belong to one group, which cannot be divided; give files for the validation")
        share = min(max(share, 1 / groups), 1 - 1 / groups)
        parts = GroupShuffleSplit(1, test_size=share, random_state=seed).split(rows, groups=targets[:, 0])
        training, validation = next(parts)
        return np.sort(training), np.sort(validation)
    if targets.ndim == 2:
        if min(round(share * len(rows)), round((1 - share) * len(rows))) < 1:
            raise UserError(f"a validation share of {share} of {len(rows)} rows leaves one side empty; give more rows")
        training, validation = train_test_split(rows, test_size=share, random_state=seed)
        return np.sort(training), np.sort(validation)
    counts = np.bincount(targets)
    lone = counts[targets] == 1
    classes, candidates = int((counts > 1).sum()), int((~lone).sum())
    smaller = min(np.ceil(share * candidates), candidates - np.ceil(share * candidates))
    if classes == 0 or smaller < classes:
        raise UserError(
            f"a validation share of {share} of {candidates} rows is too small to hold each of {classes} classes "
            "on both sides; move the share towards 0.5, or give more rows"
        )
    training, validation = train_test_split(rows[~lone], test_size=share, stratify=targets[~lone], random_state=seed)
    return np.sort(np.concatenate([training, rows[lone]])), np.sort(validation)


def stratified_folds(
    targets: NDArray[np.int64], folds: int, seed: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Row indices of training and test of each of ``folds`` folds; each row is in exactly one test part.

    A row that is the only one of its class is tested where nothing was learned of that class; such rows are shared out
    by turns.

    Raises:
        UserError: fewer than two folds, or more than the smallest class has rows, such rows aside.
    """
    if _are_groups(targets):
        groups = len(np.unique(targets))
        if not 2 <= folds <= groups:
            raise UserError(
                f"{folds} folds asked for, but the rows belong to {groups} groups that are not divided; ask for 2 "
                f"folds or more, and no more than that"
            )
        by_group = GroupKFold(folds, shuffle=True, random_state=seed)
        return iter(by_group.split(targets, groups=targets[:, 0]))
    if targets.ndim == 2:
        if not 2 <= folds <= len(targets):
            raise UserError(
                f"{folds} folds asked for, but there are {len(targets)} rows; ask for 2 folds or more, and no more "
                f"than that"
            )
        return iter(KFold(folds, shuffle=True, random_state=seed).split(targets))
    counts = np.bincount(targets)[targets]
    if (counts == 1).all():
        raise UserError("no class has two rows, of which folds could be made; give more rows of each class")
    smallest = int(counts[counts > 1].min())
    if not 2 <= folds <= smallest:
        raise UserError(
            f"{folds} folds asked for, but the smallest class has {smallest} rows; ask for 2 folds or more, and no "
            f"more than that, or leave out the classes with fewer rows"
        )
    return _folds_of_classes(targets, counts > 1, folds, seed)


def _folds_of_classes(
    targets: NDArray[np.int64], several: NDArray[np.bool_], folds: int, seed: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    rows, lone = np.flatnonzero(several), np.flatnonzero(~several)
    if len(lone):
        logger.warning("%d rows are the only ones of their class; the folds that test them learn without it", len(lone))
    splitter = StratifiedKFold(folds, shuffle=True, random_state=seed)
    for fold, (_, tested) in enumerate(splitter.split(rows, targets[rows])):
        own = np.sort(np.concatenate([rows[tested], lone[fold::folds]]))
        yield np.setdiff1d(np.arange(len(targets)), own), own


def _are_groups(targets: NDArray[np.int64]) -> bool:
    return targets.ndim == 2 and targets.shape[1] == 1


def stratified_order(targets: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """(rows,) an order of the rows whose every beginning holds the classes in about their proportion.

    ``targets`` are those of `stratified_split`; where a row has no one class, the order is at random.
    """
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(targets))
    if targets.ndim == 2:
        return order
    places = np.empty(len(targets))  # of each row, in its class: evenly over 0..1, from a beginning of its own
    for kind in np.unique(targets):
        own = order[targets[order] == kind]
        places[own] = (np.arange(len(own)) + generator.random()) / len(own)
    return np.argsort(places, kind="stable")
