"""How far the outputs of a variant agree with those of the float model."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np


class Agreement:
    r"""Agreement over batches.

    Where the targets of an output are classes (integers, or one-hot rows as wide as the output), it is the fraction
    of predictions (rows, or positions in them) where both have the same argmax. Otherwise it is
    $1 - \sum (a - b)^2 / \sum (a - \bar a)^2$, at least 0, for the float model's outputs $a$: 1 where both are
    the same. For a model with several outputs it is the mean over them.

    Example:
        >>> both = Agreement()
        >>> both.update(np.array([[2.0, 1.0]]), np.array([[0.3, 0.1]]), np.array([0]))
        >>> both.result()
        1.0
    """

    def __init__(self) -> None:
        self._outputs: list[_OutputAgreement] = []

    def update(self, of_float: Any, outputs: Any, targets: Any) -> None:
        """Adds the outputs of both models for a batch, and its targets (None where there are none)."""
        pairs = list(zip(keras.tree.flatten(of_float), keras.tree.flatten(outputs), strict=True))
        known = [] if targets is None else keras.tree.flatten(targets)
        targets = known if len(known) == len(pairs) else [None] * len(pairs)
        self._outputs = self._outputs or [_OutputAgreement() for _ in pairs]
        for one, (a, b), target in zip(self._outputs, pairs, targets, strict=True):
            one.update(np.asarray(a, np.float64), np.asarray(b, np.float64), target)

    def result(self) -> float:
        """The agreement, from 0 to 1; NaN without any output."""
        return sum(one.result() for one in self._outputs) / len(self._outputs) if self._outputs else math.nan


class _OutputAgreement:
    """Agreement of one output."""

    def __init__(self) -> None:
        self._same = self._decisions = self._count = 0
        self._squares = self._mean = self._spread = 0.0

    def update(self, a: np.ndarray, b: np.ndarray, target: Any) -> None:
        if target is not None and are_classes(np.asarray(target), a):
            self._same += int((a.argmax(axis=-1) == b.argmax(axis=-1)).sum())
            self._decisions += a[..., 0].size
        elif a.size:
            self._squares += float(((a - b) ** 2).sum())
            count, mean = self._count + a.size, float(a.mean())
            shift = mean - self._mean
            self._spread += float(((a - mean) ** 2).sum()) + shift**2 * self._count * a.size / count
            self._mean, self._count = self._mean + shift * a.size / count, count

    def result(self) -> float:
        if self._decisions:
            return self._same / self._decisions
        if not self._count:
            return math.nan
        if self._spread <= 0:
            return 1.0 if self._squares == 0 else 0.0
        return max(0.0, 1.0 - self._squares / self._spread)


def are_classes(target: np.ndarray, output: np.ndarray) -> bool:
    """Whether targets are class indices (integers), or one-hot rows as wide as the output."""
    if output.ndim < 2 or output.shape[-1] < 2:
        return False
    if target.shape in (output.shape[:-1], (*output.shape[:-1], 1)):
        return np.issubdtype(target.dtype, np.integer)
    return target.shape == output.shape and bool(np.isin(target, (0, 1)).all() and (target.sum(axis=-1) == 1).all())
