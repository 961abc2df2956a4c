"""Folds of arrays: which rows are held out, which classes they have, and what cannot be cut."""

import numpy as np
import pytest

from tfaccel.data.folds import class_of_rows, cut_fold, fold_of_rows
from tfaccel.data.given_data import GivenArrays
from tfaccel.errors import DataError

CLASSES = np.repeat([0, 1, 2], [30, 11, 7])


def held_out_rows(targets, *, num_folds, seed=1, **options):
    data = GivenArrays(np.arange(len(targets)), targets, **options)
    cuts = [cut_fold(data, fold, num_folds=num_folds, seed=seed) for fold in range(num_folds)]
    rows = [[part._parts["x"].tolist() for part in cut] for cut in cuts]
    for train, held_out in rows:
        assert sorted(train + held_out) == list(range(len(targets)))
        assert train == sorted(train) and held_out == sorted(held_out)
    return [held_out for _, held_out in rows]


@pytest.mark.parametrize("num_folds", [2, 3, 5, 7])
@pytest.mark.parametrize("targets", [CLASSES, CLASSES[:, np.newaxis], np.eye(3, dtype="float32")[CLASSES]])
def test_each_row_is_held_out_once_and_classes_are_balanced(targets, num_folds):
    held_out = held_out_rows(targets, num_folds=num_folds)
    assert sorted(row for rows in held_out for row in rows) == list(range(48))
    counts = np.array([np.bincount(CLASSES[rows], minlength=3) for rows in held_out])
    assert (np.ptp(counts, axis=0) <= 1).all()
    assert np.ptp(counts.sum(axis=1)) <= 1


def test_the_seed_determines_the_folds():
    assert held_out_rows(CLASSES, num_folds=3) == held_out_rows(CLASSES.copy(), num_folds=3)
    assert held_out_rows(CLASSES, num_folds=3) != held_out_rows(CLASSES, num_folds=3, seed=2)


def test_rows_that_are_not_shuffled_are_cut_in_order():
    assert held_out_rows(np.array([0, 1] * 4), num_folds=3, shuffle=False) == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_numbers_are_not_classes():
    others = [np.arange(20), np.linspace(0, 1, 20), np.eye(4)[[0, 1]] * 0.5, np.ones((4, 3), int)]
    assert [class_of_rows(targets) for targets in [*others, (CLASSES, CLASSES), None]] == [None] * 6
    assert np.ptp(np.bincount(fold_of_rows(None, 11, num_folds=4, seed=1))) == 1


def test_shuffling_and_class_weights_are_kept():
    data = GivenArrays(np.zeros((6, 1)), np.arange(6) % 2, shuffle="batch", class_weight={0: 2.0})
    train, _ = cut_fold(data, 0, num_folds=2, seed=1)
    assert (train.identity["shuffle"], train.identity["class_weight"]) == ("batch", data.identity["class_weight"])


@pytest.mark.parametrize(
    ("data", "fold", "num_folds", "words"),
    [
        (lambda batch_size: None, 0, 2, "Only arrays can be split into folds.*Received: function"),
        (GivenArrays(np.zeros(4)), 0, 5, "5 folds need at least 5 examples. Received: 4"),
        (GivenArrays(np.zeros(4)), 0, 1, "at least 2 folds.*fold 0 of 1"),
        (GivenArrays(np.zeros(4)), 2, 2, "at least 2 folds.*fold 2 of 2"),
    ],
)
def test_refused(data, fold, num_folds, words):
    with pytest.raises(DataError, match=words):
        cut_fold(data, fold, num_folds=num_folds, seed=1)
