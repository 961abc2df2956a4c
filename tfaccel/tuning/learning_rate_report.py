"""The nouns `LearningRateTest`, how a range of learning rates is tested, and `LearningRateReport`, what came of it.

The smoothed loss of a test says when it has diverged, and which rate to suggest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from os import PathLike
from typing import Any

import numpy as np

from tfaccel.errors import PlanError, WorkloadError
from tfaccel.planning.option_checks import check_choice, check_counts, check_fractions, check_seed
from tfaccel.records import SavedRecord
from tfaccel.reporting.charts import save_learning_rate_picture
from tfaccel.short_repr import noun

EXPONENTIAL, LINEAR = "exponential", "linear"
MIN_POINTS = 3  # a slope needs neighbors on both sides
_STANDARD_ERRORS = 3.0  # the loss must fall by more, or batches that differ explain it
_MEDIAN_TO_DEVIATION = 1.4826  # of normally distributed numbers


@noun(error=WorkloadError)
class LearningRateTest:
    """How `find_learning_rate` tests a range of learning rates.

    Args:
        min_learning_rate, max_learning_rate: the range, above 0.
        num_steps: number of optimizer steps, each with another rate.
        spacing: "exponential", each rate being the same multiple of the one before, or "linear".
        smoothing: weight of the past in the exponential moving average of the loss, from 0 to below 1; its bias towards
            zero is corrected.
        divergence_factor: stop as soon as the smoothed loss is this many times its lowest value, above 1; None to test
            all rates.
        skip_first, skip_last: number of the first and the last tested rates that are never suggested.
        seed: determines weights and data, if the model is built for the test.

    Raises:
        WorkloadError: for invalid values.

    Example:
        >>> test = LearningRateTest(min_learning_rate=1e-4, max_learning_rate=1.0, num_steps=15)
        >>> [f"{test.learning_rate(step):.2g}" for step in (0, 7, 14)]
        ['0.0001', '0.01', '1']
    """

    min_learning_rate: float = 1e-7
    max_learning_rate: float = 10.0
    num_steps: int = 100
    spacing: str = EXPONENTIAL
    smoothing: float = 0.98
    divergence_factor: float | None = 4.0
    skip_first: int = 10
    skip_last: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        low, high = self.min_learning_rate, self.max_learning_rate
        numbers = all(type(one) in (int, float) and math.isfinite(one) for one in (low, high))
        if not numbers or not 1e-30 <= low < high <= 1e30:
            raise WorkloadError(
                "`min_learning_rate` must be a number above 0 and below `max_learning_rate`. "
                f"Received: min_learning_rate={low!r}, max_learning_rate={high!r}."
            )
        check_counts(num_steps=self.num_steps)
        for name in ("skip_first", "skip_last"):
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise WorkloadError(f"`{name}` must be a whole number of at least 0. Received: {name}={value!r}.")
        if self.num_steps < self.fewest_steps:
            raise WorkloadError(
                f"`num_steps` must be at least {self.fewest_steps}: {self.skip_first} skipped first, {self.skip_last} "
                f"skipped last, and {MIN_POINTS} to find a slope. Received: num_steps={self.num_steps}."
            )
        check_choice("spacing", self.spacing, (EXPONENTIAL, LINEAR))
        check_fractions(smoothing=self.smoothing)
        factor = self.divergence_factor
        if factor is not None and (type(factor) not in (int, float) or not 1 < factor < math.inf):
            raise WorkloadError(
                f"`divergence_factor` must be a number above 1, or None. Received: divergence_factor={factor!r}."
            )
        check_seed(self.seed)

    @property
    def fewest_steps(self) -> int:
        """The number of steps without which there is no suggestion."""
        return self.skip_first + self.skip_last + MIN_POINTS

    def learning_rate(self, step: int) -> float:
        """The rate of a step, from 0 to `num_steps` - 1."""
        low, high, part = self.min_learning_rate, self.max_learning_rate, step / (self.num_steps - 1)
        return low * (high / low) ** part if self.spacing == EXPONENTIAL else low + (high - low) * part


def check_one_worker(num_workers: int, received: str) -> None:
    """Raises PlanError if there are several workers."""
    if num_workers > 1:
        raise PlanError(
            f"A learning-rate range test runs in one process. Received: a {received} with {num_workers} workers. Test "
            "on one worker with the same global batch size: the suggestion does not depend on the number of replicas."
        )


@noun
class LearningRateReport(SavedRecord):
    """The outcome of a learning-rate range test.

    Args:
        workload: what was trained.
        optimizer: the class of the optimizer.
        global_batch_size: examples in an optimizer step; None if unknown.
        learning_rate: the rate that the optimizer would have had in its next step.
        test: how the rates were tested.
        learning_rates: the tested rates.
        losses: the loss of each step, computed before the update with the step's rate.
        smoothed_losses: their moving average.
        suggestion: the suggested rate; None if there is none.
        reason: why this rate, or why none.
        stopped_because: why no further rates were tested.
    """

    workload: str
    optimizer: str
    global_batch_size: int | None
    learning_rate: float
    test: LearningRateTest
    learning_rates: tuple[float, ...]
    losses: tuple[float, ...]
    smoothed_losses: tuple[float, ...]
    suggestion: float | None
    reason: str
    stopped_because: str

    def rows(self) -> list[tuple[str, str]]:
        """What was found, as names and values."""
        found = [("suggested learning rate", "none" if self.suggestion is None else f"{self.suggestion:.2e}")]
        found.append(("because", self.reason))
        if self.learning_rates:
            rates, smoothed = self.learning_rates, self.smoothed_losses
            lowest = f"lowest {min(smoothed):.4g} at {rates[smoothed.index(min(smoothed))]:.2e}"
            found.append(("tested rates", f"{len(rates)}, from {rates[0]:.2e} to {rates[-1]:.2e}"))
            found.append(("smoothed loss", f"{smoothed[0]:.4g} at first, {lowest}"))
        found.append(("ended", self.stopped_because))
        found.append(("optimizer", f"{self.optimizer}, whose next step would use {self.learning_rate:.2e}"))
        return found

    def save_picture(self, path: str | PathLike[str]) -> None:
        """Draws the losses over the tested rates, with the suggestion, as a PNG file.

        Raises:
            DataError: if no rate was tested.
        """
        save_learning_rate_picture(
            path,
            self.learning_rates,
            self.losses,
            self.smoothed_losses,
            suggestion=self.suggestion,
            logarithmic=self.test.spacing == EXPONENTIAL,
        )


class SmoothedLoss:
    """The exponential moving average of losses, and whether it has diverged, by the factors of a test.

    Example:
        >>> smoothed = SmoothedLoss(LearningRateTest(smoothing=0.5))
        >>> [round(smoothed.add(loss), 3) for loss in (1.0, 1.0, 0.0, 9.0)], smoothed.diverged
        ([1.0, 1.0, 0.429, 5.0], True)
    """

    def __init__(self, test: LearningRateTest) -> None:
        self._test = test
        self._average = 0.0
        self.values: list[float] = []

    def add(self, loss: float) -> float:
        """Adds the loss of a step; returns the average, corrected for its start at zero."""
        weight = self._test.smoothing
        self._average = weight * self._average + (1 - weight) * loss
        self.values.append(self._average / (1 - weight ** (len(self.values) + 1)))
        return self.values[-1]

    @property
    def diverged(self) -> bool:
        """Whether the last value is `divergence_factor` times the lowest (of a negative one: as far above it)."""
        factor = self._test.divergence_factor
        if factor is None or len(self.values) < 2:
            return False
        lowest = min(self.values)
        return self.values[-1] - lowest > (factor - 1) * abs(lowest)


def suggestion(
    rates: Sequence[float], losses: Sequence[float], smoothed: Sequence[float], test: LearningRateTest
) -> tuple[float | None, str]:
    """The rate at which the smoothed loss falls most steeply, and the reason; None if there is no such rate.

    The first and the last rates are skipped: there the average holds few losses, and the loss diverges. Steepness is
    measured over the logarithm of the rate if the rates are spaced exponentially. It is divided by the weight of a new
    loss in the average, which is largest at first; otherwise the noise of the first losses often looks steepest.
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
