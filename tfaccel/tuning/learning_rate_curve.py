"""The smoothed loss of a learning-rate range test: when it has diverged, and where it falls most steeply."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfaccel.tuning.learning_rate_report import EXPONENTIAL, MIN_POINTS, LearningRateTest

_STANDARD_ERRORS = 3.0  # the loss must fall by more, or batches that differ explain it
_MEDIAN_TO_DEVIATION = 1.4826  # of normally distributed numbers


class SmoothedLoss:
    """The exponential moving average of losses, and whether it has diverged.

    Args:
        test: its smoothing and divergence factor.

    Example:
        >>> smoothed = SmoothedLoss(LearningRateTest(smoothing=0.5))
        >>> [round(smoothed.add(loss), 3) for loss in (1.0, 1.0, 0.0, 9.0)], smoothed.diverged
        ([1.0, 1.0, 0.429, 5.0], True)
    """

    def __init__(self, test: LearningRateTest) -> None:
        self._test = test
        self._average = 0.0
        self._lowest = math.inf
        self.values: list[float] = []

    def add(self, loss: float) -> float:
        """Adds the loss of a step; returns the average, corrected for its start at zero."""
        weight = self._test.smoothing
        self._average = weight * self._average + (1 - weight) * loss
        self.values.append(self._average / (1 - weight ** (len(self.values) + 1)))
        self._lowest = min(self._lowest, self.values[-1])
        return self.values[-1]

    @property
    def diverged(self) -> bool:
        """Whether the last value is `divergence_factor` times the lowest (of a negative one: as far above it)."""
        factor = self._test.divergence_factor
        if factor is None or len(self.values) < 2:
            return False
        return self.values[-1] - self._lowest > (factor - 1) * abs(self._lowest)


def suggestion(
    rates: Sequence[float], losses: Sequence[float], smoothed: Sequence[float], test: LearningRateTest
) -> tuple[float | None, str]:
    """The rate at which the smoothed loss falls most steeply, and the reason; None if there is no such rate.

    The first and the last rates are skipped: there the average holds few losses, and the loss diverges. Steepness is
    measured over the logarithm of the rate if the rates are spaced exponentially. It is divided by the weight of a new
    loss in the average, which is largest at first; otherwise the noise of the first losses often looks steepest.

    Args:
        rates, losses, smoothed: the tested rates, their losses and the moving average.
        test: how they were tested.
    """
    last = len(rates) - test.skip_last
    if last - test.skip_first < MIN_POINTS:
        return None, (
            f"Only {len(rates)} rates were tested, and {test.fewest_steps} are needed. Start from a lower "
            "min_learning_rate (--min_learning_rate), or look for the cause in model and data."
        )
    chosen = slice(test.skip_first, last)
    values = np.asarray(smoothed, float)[chosen]
    axis = np.asarray(rates, float)[chosen]
    slopes = np.gradient(values, np.log10(axis) if test.spacing == EXPONENTIAL else axis)
    slopes *= 1 - test.smoothing ** np.arange(test.skip_first + 1, last + 1)
    fall, error = float(values[0] - values.min()), _standard_error(losses, test)
    if slopes.min() >= 0 or fall <= _STANDARD_ERRORS * error:
        return None, (
            f"The smoothed loss falls by {max(fall, 0.0):.2g} at most, which is no more than its noise "
            f"({_STANDARD_ERRORS * error:.2g}). Test higher rates (max_learning_rate), more steps (num_steps) or "
            "larger batches, or look for the cause in model and data."
        )
    steepest = int(slopes.argmin())
    reason = "The smoothed loss falls most steeply there."
    if steepest == len(slopes) - 1:
        reason = "The smoothed loss still falls at the highest tested rate: test higher ones (max_learning_rate)."
    return float(axis[steepest]), reason


def _standard_error(losses: Sequence[float], test: LearningRateTest) -> float:
    """The standard error of the average at the first rate that counts, from how much losses of neighbors differ."""
    differences = np.abs(np.diff(np.asarray(losses, float)))
    deviation: Any = _MEDIAN_TO_DEVIATION * np.median(differences) / math.sqrt(2)
    weights = test.smoothing ** np.arange(test.skip_first + 1)
    return float(deviation * math.sqrt(np.sum(weights**2)) / np.sum(weights))
