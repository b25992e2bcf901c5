"""Stratified splits of labelled rows into training and validation, or into folds."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from homespun.errors import UserError, quantity

Rows = NDArray[np.int64]  # row numbers, or a value for each row

logger = logging.getLogger(__name__)


def stratified_split(targets: Rows, share: float, seed: int) -> tuple[Rows, Rows]:
    """Split row indices into training and validation with equal class proportions.

    Args:
        targets: from `Labels.encode`. A class with one row stays in training; multi-label rows are split at random;
            (rows, 1) are groups, such as articles of questions, which are not divided.
        share: share of the validation.
        seed: random seed of the split.

    Returns:
        Ascending row indices of training and validation.

    Raises:
        UserError: the share is not between 0 and 1, or a side would have fewer rows than there are classes.
    """
    if not 0 < share < 1:
        raise UserError(f"data.validation={share} must be between 0 and 1, exclusive; set it to 0.1")
    from sklearn.model_selection import GroupShuffleSplit, train_test_split

    rows = np.arange(len(targets))
    if _are_groups(targets):
        groups = len(np.unique(targets))
        if groups < 2:
            raise UserError("all rows belong to one group, which is not divided; give files as data.validation")
        share = min(max(share, 1 / groups), 1 - 1 / groups)
        splitter = GroupShuffleSplit(1, test_size=share, random_state=seed)
        training, validation = next(splitter.split(rows, groups=targets[:, 0]))
        return np.sort(training), np.sort(validation)
    if targets.ndim == 2:
        if np.ceil(share * len(rows)) == len(rows):
            raise UserError(
                f"data.validation={share} of {quantity(len(rows), 'row')} leaves one side empty; give more rows"
            )
        training, validation = train_test_split(rows, test_size=share, random_state=seed)
        return np.sort(training), np.sort(validation)
    counts = np.bincount(targets)
    single = counts[targets] == 1
    classes, candidates = int((counts > 1).sum()), int((~single).sum())
    smaller = min(np.ceil(share * candidates), candidates - np.ceil(share * candidates))
    if classes == 0 or smaller < classes:
        raise UserError(f"data.validation={share} of {candidates} rows is too small for {classes} classes; use 0.5")
    parts = train_test_split(rows[~single], test_size=share, stratify=targets[~single], random_state=seed)
    return np.sort(np.concatenate([parts[0], rows[single]])), np.sort(parts[1])


def stratified_folds(targets: Rows, folds: int, seed: int) -> Iterator[tuple[Rows, Rows]]:
    """Yield row indices of training and test for each of ``folds`` folds; each row is in one test part.

    Rows that are the only ones of their class are distributed over the test parts; the class is then not in training.

    Raises:
        UserError: fewer than two folds, or more than the smallest class with several rows has.
    """
    from sklearn.model_selection import GroupKFold, KFold

    if _are_groups(targets):
        groups = len(np.unique(targets))
        _check_folds(folds, groups, f"the rows belong to {groups} groups that are not divided")
        by_group = GroupKFold(folds, shuffle=True, random_state=seed)
        return iter(by_group.split(targets, groups=targets[:, 0]))
    if targets.ndim == 2:
        _check_folds(folds, len(targets), f"there are {len(targets)} rows")
        return iter(KFold(folds, shuffle=True, random_state=seed).split(targets))
    counts = np.bincount(targets)[targets]
    if (counts == 1).all():
        raise UserError("no class has two rows, and folds need two or more; give more rows of each class")
    smallest = int(counts[counts > 1].min())
    _check_folds(folds, smallest, f"the smallest class has {smallest} rows")
    return _folds_of_classes(targets, counts > 1, folds, seed)


def _check_folds(folds: int, most: int, reason: str) -> None:
    if not 2 <= folds <= most:
        raise UserError(f"folds={folds} must be from 2 to {most}: {reason}; change it, or give more rows")


def _folds_of_classes(targets: Rows, several: NDArray[np.bool_], folds: int, seed: int) -> Iterator[tuple[Rows, Rows]]:
    from sklearn.model_selection import StratifiedKFold

    rows, single = np.flatnonzero(several), np.flatnonzero(~several)
    if len(single):
        logger.warning("%d rows are the only ones of their class, which is missing in their training", len(single))
    splitter = StratifiedKFold(folds, shuffle=True, random_state=seed)
    for fold, (_, tested) in enumerate(splitter.split(rows, targets[rows])):
        test = np.sort(np.concatenate([rows[tested], single[fold::folds]]))
        yield np.setdiff1d(np.arange(len(targets)), test), test


def _are_groups(targets: Rows) -> bool:
    return targets.ndim == 2 and targets.shape[1] == 1


def stratified_order(targets: Rows, seed: int) -> Rows:
    """Order the rows so that each prefix has about the class proportions; returns (rows,) indices.

    ``targets`` as in `stratified_split`; multi-label rows are in random order.
    """
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(targets))
    if targets.ndim == 2:
        return order
    positions = np.empty(len(targets))  # rows of a class are spread evenly over 0..1, with a random offset
    for label in np.unique(targets):
        members = order[targets[order] == label]
        positions[members] = (np.arange(len(members)) + generator.random()) / len(members)
    return np.argsort(positions, kind="stable")
