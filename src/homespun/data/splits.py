"""Stratified splits of labelled rows: training and validation, or folds."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from homespun.errors import UserError

Rows = NDArray[np.int64]  # row numbers, or a value for each row

logger = logging.getLogger(__name__)


def stratified_split(targets: Rows, share: float, seed: int) -> tuple[Rows, Rows]:
    """Row indices of training and validation, ascending, with equal class proportions.

    Args:
        targets: of `Labels.encode`. A class with one row stays in training; multi-label rows are drawn at random;
            (rows, 1) are groups, such as the texts of questions, which are not divided.
        share: of the validation.
        seed: of the split.

    Raises:
        UserError: the share is not between 0 and 1, or gives a side fewer rows than there are classes.
    """
    if not 0 < share < 1:
        raise UserError(f"the validation share {share} must be between 0 and 1, exclusive")
    from sklearn.model_selection import GroupShuffleSplit, train_test_split

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


def stratified_folds(targets: Rows, folds: int, seed: int) -> Iterator[tuple[Rows, Rows]]:
    """Row indices of training and test of each of ``folds`` folds; each row is in exactly one test part.

    The only rows of their classes are distributed evenly over the test parts; their classes are then not in training.

    Raises:
        UserError: fewer than two folds, or more than the smallest class has rows (single rows aside).
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
        raise UserError("no class has two rows, of which folds could be made; give more rows of each class")
    smallest = int(counts[counts > 1].min())
    _check_folds(folds, smallest, f"the smallest class has {smallest} rows")
    return _folds_of_classes(targets, counts > 1, folds, seed)


def _check_folds(folds: int, most: int, what: str) -> None:
    if not 2 <= folds <= most:
        raise UserError(f"folds={folds}: {what}; set 2 folds or more, and no more than that")


def _folds_of_classes(targets: Rows, several: NDArray[np.bool_], folds: int, seed: int) -> Iterator[tuple[Rows, Rows]]:
    from sklearn.model_selection import StratifiedKFold

    rows, lone = np.flatnonzero(several), np.flatnonzero(~several)
    if len(lone):
        logger.warning("%d rows are the only ones of their class; the folds that test them learn without it", len(lone))
    splitter = StratifiedKFold(folds, shuffle=True, random_state=seed)
    for fold, (_, tested) in enumerate(splitter.split(rows, targets[rows])):
        own = np.sort(np.concatenate([rows[tested], lone[fold::folds]]))
        yield np.setdiff1d(np.arange(len(targets)), own), own


def _are_groups(targets: Rows) -> bool:
    return targets.ndim == 2 and targets.shape[1] == 1


def stratified_order(targets: Rows, seed: int) -> Rows:
    """(rows,) an order of the rows whose every prefix has about the class proportions.

    ``targets`` are those of `stratified_split`; multi-label rows are in random order.
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
