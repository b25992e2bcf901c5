"""Labelled rows in parts: training and validation, or folds, with the classes in equal proportion.

Apart from `homespun.data.labelled`, because scikit-learn takes a second to import and a prediction needs none of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import GroupKFold, GroupShuffleSplit, KFold, StratifiedKFold, train_test_split

from homespun.errors import UserError


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

    Raises:
        UserError: fewer than two folds, or more folds than the smallest class has rows.
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
    smallest = len(targets) if targets.ndim == 2 else min(Counter(targets.tolist()).values(), default=0)
    if not 2 <= folds <= smallest:
        what = "there are" if targets.ndim == 2 else "the smallest class has"
        raise UserError(
            f"{folds} folds asked for, but {what} {smallest} rows; ask for 2 folds or more, and no more than that, "
            "or leave out the classes with fewer rows"
        )
    splitter = (KFold if targets.ndim == 2 else StratifiedKFold)(folds, shuffle=True, random_state=seed)
    return iter(splitter.split(targets, targets))


def _are_groups(targets: NDArray[np.int64]) -> bool:
    return targets.ndim == 2 and targets.shape[1] == 1


def in_proportion(targets: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
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
