"""Confidence intervals of metric drops: paired proportions for accuracies, otherwise the jackknife."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from tfaccel.compressing.comparison.agreement import are_classes
from tfaccel.compressing.comparison.drop_interval import DropInterval, jackknife_interval, paired_interval

# Groups of the jackknife: more would take longer and hardly tighten the bounds.
_MAX_GROUPS = 30
# Batches of equal shapes are evaluated together, up to this many bytes of outputs.
_BYTES_TOGETHER = 2**26
# A metric counts as an accuracy if the fraction of correct predictions is this close; float32 has seven digits.
_SAME = 1e-5

# Inputs (or None), targets and weights of a batch.
Examples = tuple[Any, Any, Any]
# Computes a metric from batches of inputs, targets and weights with the outputs of both models.
ValueOf = Callable[[Iterable[tuple[Examples, Any, Any]]], float]


@dataclass(frozen=True, kw_only=True)
class DropLimit:
    """The limit of a variant's drop.

    Attributes:
        metric: the metric's name.
        lower_is_better: whether a lower value is better.
        drop: the largest allowed drop.
        confidence: with which the drop must be below it.
    """

    metric: str
    lower_is_better: bool
    drop: float
    confidence: float


class DropJudge:
    """Computes confidence intervals of drops against the float model.

    Examples are assumed to be independent.

    Args:
        limit: the metric and its limit.
        examples: the held-out data, batch by batch.
        of_float: the float model's outputs for these batches.
        get_value: computes the metric.
    """

    def __init__(
        self, limit: DropLimit, examples: Sequence[Examples], of_float: Sequence[Any], *, get_value: ValueOf
    ) -> None:
        self._limit = limit
        self._examples = examples
        self._of_float = of_float
        self._get_value = get_value
        self._num_examples = sum(_num_rows(outputs) for outputs in of_float)

    def interval(self, outputs: Sequence[Any], *, of_float: float, value: float) -> DropInterval:
        """The interval of a variant's drop.

        Args:
            outputs: its outputs for the held-out data, batch by batch.
            of_float: the metric of the float model.
            value: the variant's metric.
        """
        known = {"confidence": self._limit.confidence, "limit": self._limit.drop}
        for before, after in self._right_answers(outputs):
            if abs(before.mean() - of_float) < _SAME and abs(after.mean() - value) < _SAME:
                worse, better = int((before & ~after).sum()), int((after & ~before).sum())
                return paired_interval(worse, better, self._num_examples, **known)
        sign = 1.0 if self._limit.lower_is_better else -1.0
        both = zip(self._without_groups(self._of_float), self._without_groups(outputs), strict=True)
        without = [sign * (after - before) for before, after in both]
        return jackknife_interval(
            sign * (value - of_float),
            without,
            self._num_examples,
            counts_right_answers=not self._limit.lower_is_better and self._has_whole_targets,
            **known,
        )

    def _right_answers(self, outputs: Sequence[Any]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Which examples the float model and the variant predict correctly, for every applicable rule."""
        found: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
        for (_, y, _), a, b in zip(self._examples, self._of_float, outputs, strict=True):
            rules = _rules(y, a)
            for name, right in rules.items():
                found.setdefault(name, []).append((right(a), right(b)))
            if "largest" in rules:
                same = np.asarray(a).argmax(axis=-1) == np.asarray(b).argmax(axis=-1)
                found.setdefault("same", []).append((np.ones_like(same), same))
        whole = [pairs for pairs in found.values() if len(pairs) == len(self._examples)]
        return [(np.concatenate([a for a, _ in pairs]), np.concatenate([b for _, b in pairs])) for pairs in whole]

    @functools.cached_property
    def _has_whole_targets(self) -> bool:
        targets = [leaf for _, y, _ in self._examples for leaf in keras.tree.flatten(y) if leaf is not None]
        whole = [
            np.isin(leaf, (0, 1)).all() or not np.issubdtype(np.asarray(leaf).dtype, np.floating) for leaf in targets
        ]
        return bool(whole) and all(whole)

    @functools.cached_property
    def _together(self) -> list[list[int]]:
        """Indices of batches that are evaluated together."""
        groups: list[list[int]] = []
        size, shapes = 0, None
        for place, (example, outputs) in enumerate(zip(self._examples, self._of_float, strict=True)):
            own = [np.shape(leaf)[1:] for leaf in keras.tree.flatten((example, outputs)) if leaf is not None]
            if own != shapes or size >= _BYTES_TOGETHER:
                groups.append([])
                size, shapes = 0, own
            groups[-1].append(place)
            size += sum(np.asarray(leaf).nbytes for leaf in keras.tree.flatten(outputs))
        return groups

    def _without_groups(self, outputs: Sequence[Any]) -> list[float]:
        """The metric without every k-th example, for each group in turn."""
        if outputs is self._of_float:
            return self._of_float_without_groups
        return self._left_out(outputs)

    @functools.cached_property
    def _of_float_without_groups(self) -> list[float]:
        return self._left_out(self._of_float)

    def _left_out(self, outputs: Sequence[Any]) -> list[float]:
        count = min(_MAX_GROUPS, self._num_examples)
        groups = range(count if count > 1 else 0)
        return [self._get_value(self._without_group(outputs, group, count)) for group in groups]

    def _without_group(self, outputs: Sequence[Any], group: int, count: int) -> Iterator[tuple[Examples, Any, Any]]:
        """The batches without every `count`-th example, concatenated a few at a time."""
        start = 0
        for places in self._together:
            parts = [_joined([part[place] for place in places]) for part in (self._examples, self._of_float, outputs)]
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
