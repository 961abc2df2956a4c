"""How a variant's outputs compare with the float model's: their agreement, and how sure the drop of a metric is.

Confidence intervals of drops are those of paired proportions for accuracies, otherwise of the jackknife.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from scipy import special

from tfaccel.compressing.variant import DropInterval

_MAX_EXAMPLES = 2**29
_HALVINGS = 60
# A group with a smaller relative contribution to the drop counts as unchanged: float32 has seven digits.
_NO_CHANGE = 1e-5
# Groups of the jackknife: more would take longer and hardly tighten the bounds.
_MAX_GROUPS = 30
# Batches of equal shapes are evaluated together, up to this many bytes of outputs.
_BYTES_TOGETHER = 2**26
# A metric counts as an accuracy if the fraction of correct predictions is this close; float32 has seven digits.
_SAME = 1e-5

# Inputs (or None), targets and weights of a batch.
Examples = tuple[Any, Any, Any]
# The same with the outputs of the float model and of a variant.
Judged = tuple[Examples, Any, Any]
GetValue = Callable[[Iterable[Judged]], float]  # computes a metric


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


def paired_interval(worse: int, better: int, num_examples: int, *, confidence: float, limit: float) -> DropInterval:
    """The interval of a drop in accuracy.

    The bounds are Tango's score interval for the difference of paired proportions, and at least as wide as the
    exact Clopper-Pearson interval of the predictions that changed.

    Args:
        worse: number of examples that the float model predicts correctly and the variant does not.
        better: the other way round.
        num_examples: number of all examples.
        confidence: of each bound.
        limit: the largest allowed drop.

    Example:
        >>> paired_interval(0, 0, 32, confidence=0.95, limit=0.01)  # doctest: +ELLIPSIS
        DropInterval(low=-0.0893..., high=0.0893..., num_examples=32, num_needed=299)

    Reference: T. Tango, Equivalence test and confidence interval for the difference in proportions for the
    paired-sample design, Statistics in Medicine 17 (1998).
    """
    high = _highest_difference(worse, better, num_examples, confidence)

    def is_enough(count: float) -> bool:
        share = count / num_examples
        return _highest_difference(worse * share, better * share, count, confidence) <= limit

    return DropInterval(
        low=-_highest_difference(better, worse, num_examples, confidence),
        high=high,
        num_examples=num_examples,
        num_needed=_least_count(is_enough) if (worse - better) / num_examples < limit else None,
    )


def jackknife_interval(
    drop: float,
    without_groups: Sequence[float],
    num_examples: int,
    *,
    confidence: float,
    limit: float,
    counts_right_answers: bool = False,
) -> DropInterval:
    r"""The interval of a drop in any smooth metric, by the jackknife over groups of examples.

    With the drop $d$ of all examples and $d_g$ of all but group $g$ of $G$, the values $G d - (G - 1) d_g$ are treated
    as independent; Student's t distribution gives the bounds.

    Args:
        drop: the drop on all examples.
        without_groups: the drop without each group of examples; group sizes differ by at most one.
        num_examples: number of all examples.
        confidence: of each bound.
        limit: the largest allowed drop.
        counts_right_answers: whether each example counts as right or wrong; the bounds then allow for changes too rare
            to occur among these examples.

    Example:
        >>> found = jackknife_interval(0.0, [0.01, -0.01, 0.02, -0.02], 40, confidence=0.95, limit=0.1)
        >>> round(found.high, 3), found.num_needed
        (0.064, 17)
    """
    count = len(without_groups)
    half, unseen = math.inf, 0.0
    if count > 1:
        values = count * drop - (count - 1) * np.asarray(without_groups, np.float64)
        half = float(special.stdtrit(count - 1, confidence) * values.std(ddof=1) / math.sqrt(count))
        if counts_right_answers and np.mean(np.abs(values) < _NO_CHANGE) >= 0.5:
            unseen = _of_unseen(num_examples, confidence)
    room = limit - drop
    needed = None
    if room > 0 and math.isfinite(half):
        needed = math.ceil(num_examples * (half / room) ** 2)
        if unseen:
            needed = max(needed, _least_count(lambda count: _of_unseen(count, confidence) <= room) or 0)
    half = max(half, unseen)
    return DropInterval(low=drop - half, high=drop + half, num_examples=num_examples, num_needed=needed)


def _of_unseen(num_examples: float, confidence: float) -> float:
    """The highest rate of an event that did not occur in this many examples."""
    return float(-math.expm1(math.log1p(-confidence) / num_examples))


def _highest_difference(worse: float, better: float, num_examples: float, confidence: float) -> float:
    """The highest p(worse) - p(better) consistent with these counts."""
    quantile = float(special.ndtri(confidence))
    low, high = (worse - better) / num_examples, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _score(middle, worse, better, num_examples) < -quantile:
            high = middle
        else:
            low = middle
    exact = 1.0 if worse >= num_examples else float(special.betaincinv(worse + 1, num_examples - worse, confidence))
    return max(high, exact - better / num_examples)


def _score(difference: float, worse: float, better: float, num_examples: float) -> float:
    """Tango's score statistic of a difference, with the maximum-likelihood rate of better answers under it."""
    a = 2 * num_examples
    b = -worse - better + (2 * num_examples - worse + better) * difference
    c = -better * difference * (1 - difference)
    rate = (math.sqrt(max(b * b - 4 * a * c, 0.0)) - b) / (2 * a)
    variance = num_examples * (2 * rate + difference * (1 - difference))
    distance = worse - better - num_examples * difference
    return distance / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, distance) if distance else 0.0


def _least_count(is_enough: Callable[[float], bool]) -> int | None:
    """The smallest sufficient number of examples; None if none is."""
    counts = range(1, _MAX_EXAMPLES + 1)
    place = bisect.bisect_left(counts, True, key=is_enough)
    return counts[place] if place < len(counts) else None


@dataclass(kw_only=True)
class DropJudge:
    """Computes confidence intervals of drops against the float model.

    Examples are assumed to be independent.

    Args:
        lower_is_better: whether a lower value of the metric is better.
        limit: the largest allowed drop.
        confidence: with which the drop must be below it.
        examples: the held-out data, batch by batch.
        of_float: the float model's outputs for these batches.
        get_value: computes the metric.
    """

    lower_is_better: bool
    limit: float
    confidence: float
    examples: Sequence[Examples]
    of_float: Sequence[Any]
    get_value: GetValue

    @functools.cached_property
    def _num_examples(self) -> int:
        return sum(_num_rows(outputs) for outputs in self.of_float)

    def interval(self, outputs: Sequence[Any], *, of_float: float, value: float) -> DropInterval:
        """The interval of a variant's drop.

        Args:
            outputs: its outputs for the held-out data, batch by batch.
            of_float: the metric of the float model.
            value: the variant's metric.
        """
        known = {"confidence": self.confidence, "limit": self.limit}
        for before, after in self._right_answers(outputs):
            if abs(before.mean() - of_float) < _SAME and abs(after.mean() - value) < _SAME:
                worse, better = int((before & ~after).sum()), int((after & ~before).sum())
                return paired_interval(worse, better, self._num_examples, **known)
        sign = 1.0 if self.lower_is_better else -1.0
        both = zip(self._of_float_without_groups, self._left_out(outputs), strict=True)
        without = [sign * (after - before) for before, after in both]
        return jackknife_interval(
            sign * (value - of_float),
            without,
            self._num_examples,
            counts_right_answers=not self.lower_is_better and self._has_whole_targets,
            **known,
        )

    def _right_answers(self, outputs: Sequence[Any]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Which examples the float model and the variant predict correctly, for every applicable rule."""
        found: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
        for (_, y, _), a, b in zip(self.examples, self.of_float, outputs, strict=True):
            rules = _rules(y, a)
            for name, right in rules.items():
                found.setdefault(name, []).append((right(a), right(b)))
            if "largest" in rules:
                same = np.asarray(a).argmax(axis=-1) == np.asarray(b).argmax(axis=-1)
                found.setdefault("same", []).append((np.ones_like(same), same))
        whole = [pairs for pairs in found.values() if len(pairs) == len(self.examples)]
        return [(np.concatenate([a for a, _ in pairs]), np.concatenate([b for _, b in pairs])) for pairs in whole]

    @functools.cached_property
    def _has_whole_targets(self) -> bool:
        targets = [leaf for _, y, _ in self.examples for leaf in keras.tree.flatten(y) if leaf is not None]
        whole = [
            np.isin(leaf, (0, 1)).all() or not np.issubdtype(np.asarray(leaf).dtype, np.floating) for leaf in targets
        ]
        return bool(whole) and all(whole)

    @functools.cached_property
    def _together(self) -> list[list[int]]:
        """Indices of batches that are evaluated together."""
        groups: list[list[int]] = []
        size, shapes = 0, None
        for place, (example, outputs) in enumerate(zip(self.examples, self.of_float, strict=True)):
            own = [np.shape(leaf)[1:] for leaf in keras.tree.flatten((example, outputs)) if leaf is not None]
            if own != shapes or size >= _BYTES_TOGETHER:
                groups.append([])
                size, shapes = 0, own
            groups[-1].append(place)
            size += sum(np.asarray(leaf).nbytes for leaf in keras.tree.flatten(outputs))
        return groups

    @functools.cached_property
    def _of_float_without_groups(self) -> list[float]:
        return self._left_out(self.of_float)

    def _left_out(self, outputs: Sequence[Any]) -> list[float]:
        """The metric without every k-th example, for each group in turn."""
        count = min(_MAX_GROUPS, self._num_examples)
        groups = range(count if count > 1 else 0)
        return [self.get_value(self._without_group(outputs, group, count)) for group in groups]

    def _without_group(self, outputs: Sequence[Any], group: int, count: int) -> Iterator[Judged]:
        """The batches without every `count`-th example, concatenated a few at a time."""
        start = 0
        for places in self._together:
            parts = [_joined([part[place] for place in places]) for part in (self.examples, self.of_float, outputs)]
            rows = np.arange(start, start + _num_rows(parts[1])) % count != group
            start += len(rows)
            if rows.any():
                yield _rows(parts[0], rows), _rows(parts[1], rows), _rows(parts[2], rows)


def _rules(y: Any, outputs: Any) -> dict[str, Callable[[Any], np.ndarray]]:
    """Rules for whether an output is correct, by name; none for several outputs."""
    if y is None or len(keras.tree.flatten(outputs)) != 1 or len(keras.tree.flatten(y)) != 1:
        return {}
    (target,), (output,) = keras.tree.flatten(y), keras.tree.flatten(outputs)
    target, output = np.asarray(target), np.asarray(output)
    if output.ndim == 2 and are_classes(target, output):
        wanted = target.argmax(axis=-1) if target.shape == output.shape else target.reshape(-1)
        return {"largest": lambda given: _array(given).argmax(axis=-1) == wanted}
    if output.size == target.size == len(output) and np.isin(target, (0, 1)).all():
        wanted = target.reshape(-1) == 1
        limits = {"above a half": 0.5, "above 0": 0.0}
        return {name: functools.partial(_is_right, wanted, limit) for name, limit in limits.items()}
    return {}


def _is_right(wanted: np.ndarray, limit: float, given: Any) -> np.ndarray:
    return (_array(given).reshape(-1) > limit) == wanted


def _array(given: Any) -> np.ndarray:
    return np.asarray(keras.tree.flatten(given)[0])


def _num_rows(outputs: Any) -> int:
    return len(keras.tree.flatten(outputs)[0])


def _joined(nests: Sequence[Any]) -> Any:
    return keras.tree.map_structure(
        lambda *leaves: None if leaves[0] is None else np.concatenate([np.asarray(leaf) for leaf in leaves]), *nests
    )


def _rows(nest: Any, rows: np.ndarray) -> Any:
    return keras.tree.map_structure(lambda leaf: None if leaf is None else leaf[rows], nest)
