"""The nouns `LearningRateTest`, how a range of learning rates is tested, and `LearningRateReport`, what came of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from os import PathLike

from tfaccel.argument_types import checks_types
from tfaccel.errors import WorkloadError
from tfaccel.known_names import suggests_names
from tfaccel.planning.option_checks import check_choice, check_counts, check_fractions, check_seed
from tfaccel.records import SavedRecord
from tfaccel.reporting.charts import save_learning_rate_picture
from tfaccel.short_repr import short_repr

EXPONENTIAL, LINEAR = "exponential", "linear"
MIN_POINTS = 3  # a slope needs neighbors on both sides


@short_repr
@suggests_names
@checks_types(WorkloadError, checks_numbers=True)
@dataclass(frozen=True, kw_only=True)
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


@short_repr
@dataclass(frozen=True, kw_only=True)
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
            low, high = self.learning_rates[0], self.learning_rates[-1]
            best = min(range(len(self.smoothed_losses)), key=self.smoothed_losses.__getitem__)
            found.append(("tested rates", f"{len(self.learning_rates)}, from {low:.2e} to {high:.2e}"))
            found.append(
                ("smoothed loss", f"{self.smoothed_losses[0]:.4g} at first, lowest {self.smoothed_losses[best]:.4g} at "
                 f"{self.learning_rates[best]:.2e}")
            )  # fmt: skip
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
