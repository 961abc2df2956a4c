"""Folds: training data cut into k parts for cross-validation, each held out once while the others are trained on."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfaccel.data.given_data import GivenArrays, leaves
from tfaccel.errors import DataError


def cut_fold(data: Any, fold: int, *, num_folds: int, seed: int) -> tuple[GivenArrays, GivenArrays]:
    """The rows to train on and the rows held out in one fold of arrays.

    Rows are drawn at random, and the classes of integer or one-hot targets are spread evenly over the folds. Arrays
    with `shuffle=False`, such as time series, are cut in their order, into blocks of neighbouring rows. In both parts,
    rows keep the order of the arrays.

    Args:
        data: the `GivenArrays` of a workload.
        fold: which fold is held out, from 0.
        num_folds: at least 2.
        seed: determines the rows of every fold.

    Raises:
        DataError: if the data are not arrays, or have fewer rows than there are folds.

    Example:
        >>> train, held_out = cut_fold(GivenArrays(np.zeros((10, 2)), np.arange(10.0)), 0, num_folds=5, seed=1)
        >>> train.num_examples, held_out.num_examples
        (8, 2)
    """
    if not isinstance(data, GivenArrays):
        what = getattr(data, "what", type(data).__name__)
        raise DataError(f"Only arrays can be split into folds. Received: {what}.")
    if not 0 <= fold < num_folds or num_folds < 2:
        raise DataError(f"There must be at least 2 folds, numbered from 0. Received: fold {fold} of {num_folds}.")
    if data.num_examples < num_folds:
        raise DataError(f"{num_folds} folds need at least {num_folds} examples. Received: {data.num_examples}.")
    if not data.shuffle:
        folds = np.arange(data.num_examples) * num_folds // data.num_examples
    else:
        folds = fold_of_rows(class_of_rows(data.targets), data.num_examples, num_folds=num_folds, seed=seed)
    return data.take(np.flatnonzero(folds != fold)), data.take(np.flatnonzero(folds == fold))


def fold_of_rows(classes: np.ndarray | None, num_rows: int, *, num_folds: int, seed: int) -> np.ndarray:
    """The fold of each row, at random; the sizes of folds differ by one row at most, and so do those of each class.

    Args:
        classes: the class of each row; None for rows without classes.
        num_rows: number of rows.
        num_folds, seed: as of `cut_fold`.

    Returns:
        int64, of shape (num_rows,).

    Example:
        >>> folds = fold_of_rows(np.repeat([0, 1], [8, 4]), 12, num_folds=4, seed=1)
        >>> np.bincount(folds[:8]).tolist(), np.bincount(folds[8:]).tolist()
        ([2, 2, 2, 2], [1, 1, 1, 1])
    """
    order = np.random.default_rng(seed).permutation(num_rows)
    if classes is not None:
        order = order[np.argsort(classes[order], kind="stable")]
    folds = np.empty(num_rows, np.int64)
    folds[order] = np.arange(num_rows) % num_folds  # dealt out class by class, each going on where the last one ended
    return folds


def class_of_rows(targets: Any) -> np.ndarray | None:
    """The class of each row of integer or one-hot targets; None for other targets, and for several.

    Targets are integers of shape (rows,) or (rows, 1), or one-hot rows of any dtype. Integers of which most occur once
    are numbers rather than classes.

    Example:
        >>> class_of_rows(np.eye(3)[[2, 0, 1]]).tolist(), class_of_rows(np.array([0.5, 1.0]))
        ([2, 0, 1], None)
    """
    arrays = list(leaves(targets))
    if len(arrays) != 1 or arrays[0].dtype.kind not in "biuf":
        return None
    target = arrays[0]
    if target.ndim == 2 and target.shape[1] > 1:
        is_one_hot = bool(np.isin(target, (0, 1)).all() and (target.sum(axis=1) == 1).all())
        return target.argmax(axis=1) if is_one_hot else None
    if target.size != len(target) or target.dtype.kind == "f":
        return None
    _, classes, counts = np.unique(target.reshape(-1), return_inverse=True, return_counts=True)
    return None if (counts == 1).sum() * 2 > len(counts) else classes.reshape(-1)
