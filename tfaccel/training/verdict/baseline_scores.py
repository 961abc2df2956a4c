"""`BaselineScores`: a trained model's score compared with those of cheaper predictors, such as trivial ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tfaccel.errors import WorkloadError
from tfaccel.records import Record
from tfaccel.short_repr import short_repr

_MIN_EXAMPLES = 10  # with fewer, scores other than fractions are not compared
_MIN_SKILL = 0.2  # 0 is the best trivial predictor's score, 1 a perfect score
_SAME = 1e-6  # scores that differ by a smaller fraction are the same, rounded in another way
_CLOSE = 0.01  # scores that differ by a smaller fraction count as equal


@short_repr
@dataclass(frozen=True, kw_only=True)
class BaselineScores(Record):
    """A trained model's score and those of cheaper predictors on the same examples.

    A recipe's `show_result` returns it, and `verdict` accepts it.

    Args:
        metric: name of the metric.
        score: the trained model's score.
        baselines: name -> score of the strongest simple predictors on the same examples.
        trivial: name -> score of predictors that use only the targets: the most frequent class, the mean, the class
            frequencies.
        higher_is_better: whether a higher score is better.
        perfect: the best possible score; None if there is none.
        is_fraction: whether scores are fractions of the examples, such as accuracy; comparisons then account for the
            standard error.
        num_examples: number of examples scored; None if unknown.

    Raises:
        WorkloadError: if a score is not finite, or a fraction is not between 0 and 1.

    Example:
        >>> scores = BaselineScores(metric="accuracy", score=0.502, baselines={"gradient boosting": 0.601},
        ...                         trivial={"most frequent class": 0.35}, is_fraction=True, num_examples=2000)
        >>> scores.worse_than
        ('gradient boosting',)
    """

    metric: str
    score: float
    baselines: Mapping[str, float] = field(default_factory=dict)
    trivial: Mapping[str, float] = field(default_factory=dict)
    higher_is_better: bool = True
    perfect: float | None = None
    is_fraction: bool = False
    num_examples: int | None = None

    def __post_init__(self) -> None:
        for name, value in {"the model": self.score, **self.baselines, **self.trivial}.items():
            if not math.isfinite(value) or (self.is_fraction and not 0 <= value <= 1):
                wanted = "a number from 0 to 1" if self.is_fraction else "a finite number"
                raise WorkloadError(f"`{self.metric}` of {name} must be {wanted}. Received: {value!r}.")
        if self.is_fraction and self.perfect is None:
            object.__setattr__(self, "perfect", 1.0 if self.higher_is_better else 0.0)

    @property
    def worse_than(self) -> tuple[str, ...]:
        """Baselines that are better by more than the standard error, and trivial predictors that are not beaten."""
        trivial = [name for name, value in self.trivial.items() if not self._leads(self.score, value)]
        better = [name for name, value in self.baselines.items() if self._leads(value, self.score, surely=True)]
        return (*better, *trivial)

    @property
    def below(self) -> tuple[str, ...]:
        """Baselines and trivial predictors that are better, by however little."""
        sign = 1 if self.higher_is_better else -1
        found = {**self.baselines, **self.trivial}
        return tuple(name for name, value in found.items() if sign * (value - self.score) > _SAME * abs(value))

    @property
    def has_too_few_examples(self) -> bool:
        """Whether all trivial predictors are beaten, but one of them by less than the standard error."""
        leads = [
            (self._leads(self.score, value), self._leads(self.score, value, surely=True))
            for value in self.trivial.values()
        ]
        return all(lead for lead, _ in leads) and not all(surely for _, surely in leads)

    @property
    def is_hardly_better_than_trivial(self) -> bool:
        """Whether the skill is below 0.2, although baselines, if any, show that more is possible."""
        if self._skill is None or (self.baselines and not self.worse_than):
            return False
        return self._skill < _MIN_SKILL

    @property
    def is_good(self) -> bool:
        """Whether the skill is known to be at least 0.5, and no baseline is better."""
        return self._skill is not None and self._skill >= 0.5 and not self.worse_than

    @property
    def _skill(self) -> float | None:
        """The score rescaled so that the best trivial predictor has 0 and a perfect score is 1; None if unknown."""
        if self.perfect is None or not self.trivial:
            return None
        start = max(self.trivial.values()) if self.higher_is_better else min(self.trivial.values())
        whole = self.perfect - start
        return (self.score - start) / whole if abs(whole) > 1e-9 else None

    def beside(self, *names: str) -> str:
        """Compares the model's score with those of the named baselines, or of all.

        Example:
            >>> BaselineScores(metric="error", score=0.2, baselines={"ridge": 0.3}, higher_is_better=False).beside()
            'error 0.2 vs. 0.3 (ridge)'
        """
        found = {**self.baselines, **self.trivial}
        found = {name: value for name, value in found.items() if not names or name in names}
        return f"{self.metric} {self._text(self.score)} vs. " + ", ".join(
            f"{self._text(value)} ({name})" for name, value in found.items()
        )

    def _text(self, value: float) -> str:
        return f"{100 * value:.1f} %" if self.is_fraction else f"{value:.4g}"

    def _leads(self, one: float, other: float, *, surely: bool = False) -> bool:
        """Whether one score is better than another by more than 1 %; with `surely`, also beyond the standard error."""
        distance = one - other if self.higher_is_better else other - one
        least = self._error(one, other) if surely else 0.0
        return distance > max(_CLOSE * max(abs(one), abs(other)), least)

    def _error(self, one: float, other: float) -> float:
        """The standard error of the difference of two scores; 0 if unknown, infinite with too few examples."""
        if self.num_examples is None:
            return 0.0
        if not self.is_fraction:
            return math.inf if self.num_examples < _MIN_EXAMPLES else 0.0
        smoothed = [(value * self.num_examples + 1) / (self.num_examples + 2) for value in (one, other)]
        return math.sqrt(sum(value * (1 - value) for value in smoothed) / max(1, self.num_examples))


_ACCURACIES = ("accuracy", "acc", "categorical_accuracy", "sparse_categorical_accuracy", "binary_accuracy")
_ABSOLUTE = ("mean_absolute_error", "mae", "MAE")
_SQUARED = ("mean_squared_error", "mse", "MSE")
_ROOT = ("root_mean_squared_error", "rmse", "RMSE")


def trivial_scores(batches: Iterable[Any], final: Mapping[str, float]) -> BaselineScores | None:
    """Compares a finished model with a trivial predictor, for the first metric that has one.

    Accuracy is compared with the most frequent class, mean absolute error with the median, and squared errors with the
    mean. None for other metrics, for several outputs, and for targets other than one class or a vector of numbers per
    example.

    Args:
        batches: validation batches: (inputs, targets) or (inputs, targets, weights).
        final: the model's metrics on these batches.

    Example:
        >>> batches = [(None, np.array([0, 2])), (None, np.array([2, 1]))]
        >>> trivial_scores(batches, {"loss": 1.1, "accuracy": 0.75}).beside()
        'accuracy 75.0 % vs. 50.0 % (most frequent class)'
    """
    known = [name for name in final if name in (*_ACCURACIES, *_ABSOLUTE, *_SQUARED, *_ROOT)]
    if not known or not np.isfinite(final[known[0]]):
        return None
    targets = _targets(batches)
    if targets is None:
        return None
    metric, score, examples = known[0], float(final[known[0]]), len(targets)
    if metric in _ACCURACIES:
        classes = _classes(targets)
        if classes is None:
            return None
        share = float(np.unique(classes, return_counts=True)[1].max() / examples)
        return BaselineScores(
            metric=metric, score=score, trivial={"most frequent class": share}, is_fraction=True, num_examples=examples
        )
    values = targets.reshape(examples, -1).astype(np.float64)
    if metric in _ABSOLUTE:
        trivial = {"median": float(np.abs(values - np.median(values, axis=0)).mean())}
    else:
        variance = float(np.square(values - values.mean(axis=0)).mean())
        trivial = {"mean": variance if metric in _SQUARED else variance**0.5}
    return BaselineScores(
        metric=metric, score=score, trivial=trivial, higher_is_better=False, perfect=0.0, num_examples=examples
    )


def _targets(batches: Iterable[Any]) -> np.ndarray | None:
    found = []
    for batch in batches:
        target = batch[1] if isinstance(batch, tuple) and len(batch) >= 2 else None
        if target is None or not hasattr(target, "dtype") or not hasattr(target, "__array__"):
            return None
        found.append(np.asarray(target))
        if found[-1].ndim not in (1, 2) or found[-1].dtype.kind not in "biuf":
            return None
    return np.concatenate(found) if found and sum(map(len, found)) else None


def _classes(targets: np.ndarray) -> np.ndarray | None:
    """The class of each example, from integer or one-hot labels; None for other targets."""
    if targets.ndim == 1 or targets.shape[1] == 1:
        flat = targets.reshape(-1)
        return flat if np.array_equal(flat, np.round(flat)) else None
    is_one_hot = np.isclose(targets.sum(axis=1), 1).all() and (targets.max(axis=1) > 0.5).all()
    return targets.argmax(axis=1) if is_one_hot else None
