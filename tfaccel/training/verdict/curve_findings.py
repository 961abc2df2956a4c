"""Findings in loss curves (jumps, memorized examples, losses that still fall), as phrases with figures."""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass

MIN_EPOCHS = 3

# Fractions of the total decrease of the loss unless noted otherwise. A huge loss before the first updates (a constant
# offset, lagging moving statistics) would make all these fractions small, so such a first value is ignored.
_BLOW_UP = 20  # ratio of the first to the second value above which the first is ignored
_JUMP, _MANY_JUMPS = 0.25, 0.2  # _MANY_JUMPS: fraction of the epochs
_LOST_AGAIN = 0.5
_WORSE_THAN_BEST, _EPOCHS_SINCE_BEST = 0.1, 3
_NOISE = 2.0  # multiple of the noise between epochs
_FOLLOWED, _FAR_BELOW = 0.8, 0.5  # ratio of the validation to the training decrease; of training to validation loss
_HARDLY_FOLLOWED, _BELOW = 0.4, 0.85
_PLATEAU, _MEMORISED = 0.1, 0.2  # ratio of the decreases of log loss, validation to training; ratio of the losses
_STILL_FALLING = 0.03
_FALL_OF_LEVEL, _MIN_FALL = 0.1, 0.005  # fractions of the loss itself
_HARDLY_LEARNT = 0.1  # fraction of the first loss


@dataclass(frozen=True)
class LossCurves:
    """The training loss after each epoch and the validation loss at the same epochs, all finite.

    Args:
        train: at least three values.
        validation: as many values, or none.
    """

    train: tuple[float, ...]
    validation: tuple[float, ...]

    @property
    def start(self) -> float:
        """The initial training loss: the first value, or the second if the first is more than 20 times as large."""
        first, second = self.train[:2]
        return second if second > 0 and first > _BLOW_UP * second else first

    def instabilities(self) -> list[str]:
        """Losses that jump up in many epochs, or end far above their minimum."""
        train, lowest = self.train, min(self.train)
        learnt = max(self.start - lowest, 0.0)
        if train[-1] - self.start > 0.1 * abs(self.start) and min(train[1:]) >= train[0]:
            return [f"the training loss rose from {train[0]:.4g} to {train[-1]:.4g}"]
        if train[-1] - lowest > _LOST_AGAIN * learnt and learnt > _HARDLY_LEARNT * abs(self.start):
            where = train.index(lowest) + 1
            return [f"the training loss was {lowest:.4g} in epoch {where} and is {train[-1]:.4g} at the end"]
        found = _jumps("training", train, _JUMP * max(learnt, 1e-12))
        if self.validation:
            found += _jumps("validation", self.validation, 2 * _JUMP * self._learnt_on_validation(), and_back=True)
        return found

    def over_fitting(self) -> list[str]:
        """A validation loss that rises while the training loss falls, or stays far above it."""
        if not self.validation:
            return []
        train, values = self.train, self.validation
        best = min(range(len(values)), key=values.__getitem__)
        recent = statistics.median(values[-_EPOCHS_SINCE_BEST:])
        least = max(_WORSE_THAN_BEST * self._learnt_on_validation(), _NOISE * _noise(values))
        since = len(values) - 1 - best
        found = []
        if recent - values[best] > least and since >= min(_EPOCHS_SINCE_BEST, best + 1) and train[-1] < train[best]:
            found.append(
                f"the validation loss was lowest in epoch {best + 1} ({values[best]:.4g}) and is {values[-1]:.4g} at "
                f"the end, while the training loss fell from {train[best]:.4g} to {train[-1]:.4g}"
            )
        return found + self._gap()

    def hardly_learnt(self) -> list[str]:
        """Losses that hardly fell."""
        values, name = (self.validation, "validation") if self.validation else (self.train, "training")
        fallen = [one for one in (values, self.train) if one[0] - min(one) >= _HARDLY_LEARNT * abs(one[0])]
        nothing_left = max(map(abs, values)) == 0
        if fallen or nothing_left:
            return []
        return [f"the {name} loss hardly fell, from {values[0]:.4g} to {min(values):.4g}"]

    def still_falling(self) -> list[str]:
        """Losses that are still falling at the end."""
        values, name = (self.validation, "validation") if self.validation else (self.train, "training")
        num_last = max(1, len(values) // 5)
        before = min(values[:-num_last])
        lately = before - min(values[-num_last:])
        start = min(values[0], 2 * self.start) if self.start > 0 else values[0]
        learnt = max(start - min(values), 0.0)
        far = 3 * _STILL_FALLING if len(values) < 2 * MIN_EPOCHS - 1 else _STILL_FALLING
        of_level = lately / before if before > 0 else 0.0
        is_much = lately > far * learnt or (of_level > _FALL_OF_LEVEL and values[-1] > 0.05 * start)
        if is_much and lately > max(_NOISE * _noise(values), _MIN_FALL * abs(before)):
            epochs = "epoch" if num_last == 1 else f"{num_last} epochs"
            brought = f"from {before:.4g} to {min(values[-num_last:]):.4g}"
            return [f"the {name} loss still falls: {brought} in the last {epochs} of {len(values)}"]
        return []

    def _gap(self) -> list[str]:
        """A training loss far below the validation loss; skipped for negative losses, whose ratio means nothing."""
        train, values = self.train, self.validation
        if train[-1] < 0 or values[-1] <= 0 or train[-1] >= _BELOW * values[-1]:
            return []
        quotient = train[-1] / values[-1]
        figures = f"({train[-1]:.4g}) is far below the validation loss ({values[-1]:.4g})"
        of_train, of_validation = self.start - train[-1], self.start - values[-1]
        if of_train <= _HARDLY_LEARNT * abs(self.start):
            return [f"the training loss {figures}"] if quotient < _FAR_BELOW else []
        followed = of_validation / of_train
        if (quotient < _FAR_BELOW and followed < _FOLLOWED) or followed < _HARDLY_FOLLOWED:
            return [f"the training loss {figures}"]
        second, floor = min(1, len(train) - 2), 1e-12
        memorised = math.log(max(train[second], floor) / max(train[-1], floor))
        learnt = math.log(max(values[second], floor) / values[-1])
        if quotient < _MEMORISED and learnt < _PLATEAU * memorised:
            return [
                f"since epoch {second + 1} the training loss fell from {train[second]:.4g} to {train[-1]:.4g}, but the "
                f"validation loss only from {values[second]:.4g} to {values[-1]:.4g}"
            ]
        return []

    def _learnt_on_validation(self) -> float:
        """Decrease of the validation loss from the initial loss; at least a quarter of its minimum."""
        lowest = min(self.validation)
        return max(min(self.start, self.validation[0]) - lowest, 0.25 * abs(lowest), 1e-12)


def _noise(values: tuple[float, ...]) -> float:
    """The noise of a curve between epochs, without its trend, from the median absolute second difference."""
    if len(values) < 2 * MIN_EPOCHS:
        return 0.0
    steps = [after - before for before, after in itertools.pairwise(values)]
    bends = [abs(after - before) for before, after in itertools.pairwise(steps)]
    return statistics.median(bends) / math.sqrt(6)


def _jumps(name: str, values: tuple[float, ...], least: float, *, and_back: bool = False) -> list[str]:
    """A finding if a loss jumps up in many epochs; with `and_back`, counts only jumps from which it falls again."""
    jumps = [epoch for epoch, (before, after) in enumerate(itertools.pairwise(values), 2) if after - before > least]
    if and_back:
        jumps = [epoch for epoch in jumps if values[epoch - 1] - min(values[epoch - 1 :]) > least]
    if len(jumps) <= max(1, _MANY_JUMPS * len(values)):
        return []
    return [f"the {name} loss jumped up in {len(jumps)} of {len(values)} epochs (first in epoch {jumps[0]})"]
