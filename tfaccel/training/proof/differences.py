"""Whether variables and metrics after a step on several replicas differ from one device's by more than rounding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.training.private.private_api import all_layers
from tfaccel.training.private.private_layers import loss_trackers
from tfaccel.training.private.private_slots import get_every_slot
from tfaccel.training.proof.detached_step import State, get_value
from tfaccel.training.steps.merged_metrics import (
    GATHERED,
    get_result,
    merged_states,
    merges_itself,
    metrics_in,
    names_of_results,
)
from tfaccel.training.steps.model_parts import averages_and_steps, get_optimizers, inner_optimizer, unlisted_metrics
from tfaccel.training.steps.replicas import Replicas

_SPREADS = 50.0  # differences of more than so many times the rounding that was seen are not rounding
_NEARBY = 2.0**-20  # by which weights are moved to see what rounding in other kernels may do: 8 times that of float32
_SPREADS_NEARBY = 8.0  # the same for what that has changed
_MAX_ROUNDING = 1e-2  # of the largest step; what the order of the rows moves by more is not only rounding
_EPSILON = 2e-6  # of the value itself
_NOISY_ELEMENTS = 4.0
_MAX_TOGETHER = 0.02  # of the step, of all elements of a weight that has slots

_SMALLEST_OF_SLICES = 1e-7  # of the largest step: squares of gradients that may be rounding are smaller
_MAX_OF_SLICES = 1e-3  # where numbers are rounded more, small gradients tell nothing

_ROUNDING = 1e-6  # of what a metric has added up so far
_MAX_APART = 1e-3  # of its size, what a replica assigns to a variable from what it has in common with the others


@dataclass(frozen=True)
class Tolerance:
    """How large a difference may be.

    Attributes:
        of_step: relative to the largest change of any element in the step.
        of_value: relative to a log's value.
        scale: the largest step of variables of the same kind; what is nothing beside it is rounding.
        nothing: relative to that step.
        spreads: differences of more than so many times the rounding that was seen are not rounding.
    """

    of_step: float
    of_value: float
    scale: float = 0.0
    nothing: float = 1e-5
    spreads: float = _SPREADS

    @classmethod
    def of_model(cls, model: keras.Model) -> Tolerance:
        """That of a model: wider if any layer computes in 16 bits, or on a GPU, which may multiply in TF32."""
        policies = {layer.dtype_policy.compute_dtype for layer in all_layers(model)}
        if policies & {"float16", "bfloat16"}:
            return cls(0.1, 0.02, nothing=2e-2)
        if tf.config.list_logical_devices("GPU"):
            return cls(2e-2, 1e-2)
        return cls(5e-4, 1e-4)

    @property
    def of_nearby(self) -> Tolerance:
        """The tolerance where the rounding that was seen is what weights have changed that were moved by `_NEARBY`."""
        return replace(self, spreads=_SPREADS_NEARBY)

    def of_rounding(self, step: float, value: float) -> float:
        """What rounding alone may make two values of a variable differ by.

        Args:
            step: how far any element of the variable has moved at most.
            value: its largest element.
        """
        return self.nothing * self.scale + self.of_step * step + _EPSILON * value

    def of_slices(self, step: float) -> Tolerance:
        """That of a slot which slices of a gradient move: its own step counts, however far those of others have moved.

        A large `epsilon` hides in the weight what a slot of small gradients shows.
        """
        is_small = step > _SMALLEST_OF_SLICES * self.scale and self.of_step < _MAX_OF_SLICES
        return replace(self, scale=step) if is_small else self

    def of_output(self, many: Any, one: Any) -> tuple[bool, float]:
        """Whether two outputs differ, and by how much; other than dense values are not compared."""
        if not (isinstance(many, np.ndarray) and isinstance(one, np.ndarray)):
            return False, 0.0
        if many.shape != one.shape:
            return True, 1.0
        if not is_rounded(one):
            return bool((many != one).any()), float((many != one).mean()) if one.size else 0.0
        return self.of_log(many, one)

    def of_log(self, many: Any, one: Any) -> tuple[bool, float]:
        """Whether two logs differ, and by how much."""
        many, one = np.asarray(many), np.asarray(one)
        if many.shape != one.shape:
            return True, 1.0
        many, one = _where_finite(one, _in_64_bits(many), _in_64_bits(one))
        if not np.isfinite(many).all():
            return True, 1.0
        size = max(float(np.abs(one).max(initial=0.0)), 1e-3)
        distance = float(np.abs(many - one).max(initial=0.0)) / size
        return distance > self.of_value, distance


def unequal_copies(weights: Sequence[keras.Variable], others: Iterable[tf.Variable], replicas: Replicas) -> list[str]:
    """The names of variables of which replicas hold values that differ by more than rounding.

    `others` are the replicas' copies of variables that are not Keras's.
    """
    by_name: dict[str, dict[str, list[tf.Variable]]] = {}
    for one in others:
        name, _, replica = one.name.partition(":")[0].partition("/replica_")
        by_name.setdefault(name, {}).setdefault(replica, []).append(one)  # several may have one name
    copies = [(name, ones) for name, found in by_name.items() for ones in zip(*found.values(), strict=False)]
    locally = [replicas.components(weights, i) for i in range(len(replicas.devices))]
    copies += [(one.path, ones) for one, ones in zip(weights, zip(*locally, strict=True), strict=True)]
    numeric = [(name, ones) for name, ones in copies if ones[0].dtype.is_floating or ones[0].dtype.is_integer]
    values = [np.stack([np.asarray(get_value(one), np.float64) for one in ones]) for _, ones in numeric]
    totals = replicas.sum_arrays_over_workers([local.sum(axis=0) for local in values])
    means = [total / (len(local) * replicas.num_workers) for local, total in zip(values, totals, strict=True)]
    sizes = [_MAX_APART * np.abs(mean).max(initial=0.0) for mean in means]
    apart = [np.abs(v - mean).max(initial=0.0) > size for v, mean, size in zip(values, means, sizes, strict=True)]
    counts = replicas.sum_over_workers([int(one) for one in apart]) if apart else []
    return [name for (name, _), count in zip(numeric, counts, strict=True) if count]


def _are_alike(many: list[np.ndarray], one: list[np.ndarray]) -> bool:
    """Whether states give the same results, whatever is added later: they are equal, but for a common factor."""
    rows = [np.concatenate([np.asarray(value, np.float64).ravel() for value in state]) for state in (many, one)]
    largest = int(np.abs(rows[1]).argmax()) if rows[1].size else 0
    if not all(np.isfinite(row).all() and row.size and row[largest] for row in rows):
        return True
    return bool(np.abs(rows[0] / rows[0][largest] - rows[1] / rows[1][largest]).max() < _MAX_APART)


def slots_of_slices(own_rows: Iterable[tuple[Any, keras.Variable]]) -> set[str]:
    """The paths of the slots of weights whose sparse gradients have rows of each replica's own."""
    slots = (get_every_slot(inner_optimizer(optimizer), variable) for optimizer, variable in own_rows)
    return {slot.path for found in slots for slot in found}


def is_rounded(values: np.ndarray) -> bool:
    """Whether values are floating-point numbers, real or complex; others are equal or not."""
    return values.dtype.kind in "fc" or values.dtype.name.startswith(("bfloat", "float"))


def size_of_step(before: np.ndarray, after: np.ndarray) -> float:
    """How far a variable has moved at most."""
    if after.dtype.kind not in "iu" and not is_rounded(after):
        return 0.0
    before = _of_shape(after, before)
    largest = _largest_change(before, after)
    if np.isfinite(largest):
        return largest
    moved = _in_64_bits(after) - _in_64_bits(before)
    return float(np.abs(moved[np.isfinite(moved)]).max(initial=0.0))


def _largest_change(before: np.ndarray, after: np.ndarray) -> float:
    """The largest change of any element of float32 variables, without copies in 64 bits; NaN for other dtypes."""
    if before.dtype != np.float32 or after.dtype != np.float32:
        return np.nan
    with np.errstate(invalid="ignore", over="ignore"):
        moved = after - before
    return max(float(moved.max(initial=0.0)), -float(moved.min(initial=0.0)))


def _in_64_bits(values: Any) -> np.ndarray:
    """Values as float64, complex ones with their real and imaginary parts along a last axis."""
    values = np.asarray(values)
    if values.dtype.kind == "c":
        values = np.stack([values.real, values.imag], axis=-1)
    return np.asarray(values, np.float64)


def _of_shape(like: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The values of a variable; zeros if it had another shape."""
    return values if values.shape == like.shape else np.zeros_like(like)


def _where_finite(one: np.ndarray, *values: np.ndarray) -> tuple[np.ndarray, ...]:
    """Values with zeros where one device's are not finite: those tell nothing, unlike the ones beside them."""
    finite = np.isfinite(_in_64_bits(one))
    return tuple(np.where(finite, value, 0.0) for value in values)


def nearby(before: State, variables: list[tf.Variable], direction: int) -> dict[int, np.ndarray]:
    """Values beside those of a state, by the ids of their variables: each is moved by `_NEARBY` of it, up or down."""
    signs, found = np.random.default_rng(direction), {}
    for variable in variables:
        value = before[variable]
        if value.dtype in (np.float32, np.float64):
            found[id(variable)] = value * (1 + _NEARBY * signs.choice([-1, 1], value.shape)).astype(value.dtype)
    return found


def get_slots(
    model: keras.Model, replicas: Replicas, path: str, states: tuple[State, State, State], largest: dict[str, float]
) -> list[tuple[str, np.ndarray, float]]:
    """The slots of a weight, or of its average, as `is_noise` takes them.

    Args:
        model: the model.
        replicas: its replicas.
        path: of the weight.
        states: before a step, and after it on one device and on several replicas.
        largest: kind of a variable -> the largest step of that kind.
    """
    found, optimizers = [], get_optimizers(model).values()
    followers = {id(slot) for optimizer in optimizers for slot in averages_and_steps(optimizer)}
    slots = (slot for optimizer in optimizers for slot in optimizer.variables if id(slot) not in followers)
    for slot in slots:
        word, place = kind_of(slot.name, is_slot=True), replicas.components([slot], 0)[0]
        owner = path.replace("/", "_").removesuffix("_average").removesuffix("_momentum")
        if owner.endswith(slot.name.removesuffix(f"_{word}")) and word in largest:
            before, *after = (np.asarray(state[place], np.float64) for state in states)
            one, many = (np.abs(value - before) for value in after)
            found.append((word, np.maximum(one, many), largest[word]))
    return found


def is_noise(slots: list[tuple[str, np.ndarray, float]], tolerance: Tolerance) -> Any:
    """Where the gradient that an optimizer has seen is nothing beside the others', so that all of it may be rounding.

    Where no slot has moved there was no gradient: the step itself has assigned what differs.

    Args:
        slots: for each slot of a weight: the last word of its name, how far it has moved, on one device or on the
            replicas, and how far the slots of that name have moved at most. Those that hold squares of gradients have
            other names than "momentum".

    Returns:
        A boolean array of the weight's shape; False without slots.
    """
    found, moves = np.array(bool(slots)), np.array(False)
    for word, moved, largest in slots:
        found = found & (moved <= tolerance.nothing ** (1 if "momentum" in word else 2) * largest)
        moves = moves | (moved != 0)
    return found & moves


def without_multiple(many: np.ndarray, one: np.ndarray, rounded: list[np.ndarray]) -> np.ndarray:
    """A variable after a step on several replicas, without what follows from the rounding of a weight.

    A moving average of a weight differs by a fraction of what the weight differs by.

    Args:
        many: its value on several replicas.
        one: its value on one device.
        rounded: by how much weights differ, which is only rounding.
    """
    if many.shape != one.shape or not is_rounded(one) or one.dtype.kind == "c" or one.size == 1:
        return many
    distance = np.asarray(many, np.float64) - one
    best = distance
    for other in rounded:
        if other.shape != distance.shape or not (other.any() and np.isfinite(other).all()):
            continue
        fraction = np.vdot(other, distance) / np.vdot(other, other)
        rest = distance - fraction * other
        if abs(fraction) <= 1 and np.abs(rest).max() < np.abs(best).max():
            best = rest
    return many if best is distance else np.asarray(one, np.float64) + best


def difference(
    before: np.ndarray,
    one: np.ndarray,
    again: np.ndarray,
    many: np.ndarray,
    tolerance: Tolerance,
    *,
    has_slots: bool,
    noise: Any = False,
) -> tuple[bool, float]:
    """Compares a variable.

    An optimizer such as Adam divides a gradient by its own size, so that a gradient that is nothing but rounding moves
    a weight by up to a whole step. A weight that has slots therefore differs only if its elements do by more than a
    fraction of the step together, and more of them than the order of the rows moves, too. No fault can hide there: the
    slots, which hold the gradient itself, are compared element by element.

    Args:
        before: its value before the step.
        one: after the step on one device.
        again: after the step on one device, which was rounded otherwise: the rows were in another order, say.
        many: after the step on several replicas.
        has_slots: whether an optimizer moves it, with slots of its own.

    Returns:
        Whether it differs, and the largest difference relative to the step, without what is only rounding.

    Example:
        >>> before, one = np.zeros(2), np.ones(2)
        >>> difference(before, one, one, np.array([1.0, 0.5]), Tolerance(1e-5, 1e-5), has_slots=False)
        (True, 0.5)
    """
    if many.shape != one.shape:
        return True, 1.0
    if not is_rounded(one):
        return bool((one != many).any()), float((one != many).mean()) if one.size else 0.0
    if not one.size:
        return False, 0.0
    if np.array_equal(one, many):
        return False, 0.0
    before, again = _of_shape(one, before), again if again.shape == one.shape else one
    step, apart, value = (_largest_change(first, one) for first in (before, many, np.zeros((), one.dtype)))
    if np.isfinite([step, apart, value]).all() and apart <= tolerance.of_rounding(step, value):
        return False, apart / max(step, tolerance.scale, value, 1e-12)
    before, one, again, many = _where_finite(one, *map(_in_64_bits, (before, one, again, many)))
    before, again = (np.where(np.isfinite(value), value, one) for value in (before, again))
    if not np.isfinite(many).all():
        return True, 1.0
    step, rounding = float(np.abs(one - before).max()), np.abs(again - one)
    distance, value = np.where(noise, 0.0, np.abs(many - one)), float(np.abs(one).max())
    floor = tolerance.of_rounding(step, value)
    allowed = max(floor, min(tolerance.spreads * float(rounding.max()), _MAX_ROUNDING * max(step, tolerance.scale)))
    size = max(step, tolerance.scale, value, 1e-12)
    far = distance > allowed
    differs = bool(far.any())
    if has_slots:
        together = float(np.linalg.norm(distance)) > _MAX_TOGETHER * float(np.linalg.norm(one - before))
        differs = together and int(far.sum()) > _NOISY_ELEMENTS * int((rounding > floor).sum())
    return differs, float(distance[far if differs else ~far].max(initial=0.0)) / size


def kind_of(name: str, *, is_trained: bool = False, is_slot: bool = False) -> str:
    """Variables that are measured by the same step: all weights, all first moments, all that layers call alike."""
    last = name.rpartition("/")[2]
    return "weight" if is_trained else last.rpartition("_")[2] if is_slot else last


class MetricDifference:
    """The metrics of a model before and after a step.

    A metric's state over all replicas is the sum of their states; that of a gathered metric is the same on all. What a
    step adds to it must give the result that it gives on one device.

    Attributes:
        names: the names of all its metrics, also those that only layers and losses refer to.
        variables: what their states are made of.
        names_of_results: those of their results in logs.
        begun: whether they held rows before the step, on any worker.
        differing: the metrics that differed in the last step.
    """

    def __init__(self, model: keras.Model, replicas: Replicas) -> None:
        self._replicas = replicas
        self._model = model
        trackers = [one for one in loss_trackers(model) if one is not None]
        metrics = {id(one): one for one in (*metrics_in(model), *unlisted_metrics(model))}
        self._metrics = [metric for metric in metrics.values() if metric.variables]
        texts = [metric for metric in self._metrics if any(one.dtype == "string" for one in metric.variables)]
        self._compared = [one for one in self._metrics if not merges_itself(one) and one not in texts]
        self._of_losses = {id(tracker) for tracker in trackers}
        self.names = sorted({metric.name for metric in self._metrics})
        self.variables = [variable for metric in self._metrics for variable in metric.variables]
        self.names_of_results: set[str] = set()
        self.begun = False
        self.differing: list[keras.metrics.Metric] = []
        self._ratios: dict[int, float] = {}  # of what one device and all replicas have added to the count of a mean
        self._before = State([])
        self._totals: dict[int, np.ndarray] = {}
        self._of_all: dict[int, list[list[np.ndarray]]] = {}  # over all replicas, before the step and after it

    def begin(self, before: State) -> dict[int, np.ndarray]:
        """Takes note of the state before a step, which holds all of the model's variables. Every worker must call it.

        Returns:
            The metrics' state over all replicas, with which one device begins, by the ids of the first components.
        """
        self.names_of_results = names_of_results(self._model, self._replicas)
        self._before, added = before, [metric for metric in self._compared if metric not in GATHERED]
        parts = [value for metric in added for value in self._state(metric, before)]
        firsts = [one for metric in added for one in self._replicas.components(metric.variables, 0)]
        self._totals = dict(zip(map(id, firsts), self._replicas.sum_arrays_over_workers(parts), strict=True))
        return self._totals | merged_states(self._metrics, self._replicas)

    def end(self, after: State) -> None:
        """Takes note of the state of all replicas after the step. Every worker must call it, once for a step."""
        alike, added = ([m for m in self._compared if (m in GATHERED) == is_alike] for is_alike in (True, False))
        local = [[self._state(metric, state) for state in (self._before, after)] for metric in added]
        has_rows, *totals = self._replicas.sum_arrays_over_workers([self._has_rows(), *tf.nest.flatten(local)])
        self.begun = bool(has_rows)
        self._of_all = dict(zip(map(id, added), tf.nest.pack_sequence_as(local, totals), strict=True))
        self._of_all |= {id(one): [self._state(one, state) for state in (self._before, after)] for one in alike}

    def of_step(self, one: State, tolerance: Tolerance) -> Iterator[tuple[str, float]]:
        """Yields the names of the metrics that differ, and by how much; see `end`.

        Args:
            one: the state after a step of one device, which holds it in the components of the first replica.
        """
        self.differing = []
        for metric in (one for one in self._metrics if id(one) in self._of_all):
            firsts = self._replicas.components(metric.variables, 0)
            before = [np.asarray(self._totals.get(id(v), self._before[v])) for v in firsts]
            of_one = [np.asarray(one[v]) for v in firsts]
            start, of_all = self._of_all[id(metric)]
            largest = max((float(np.abs(v).max(initial=0.0)) for v in before if np.isfinite(v).all()), default=0.0)
            if self.begun and metric not in GATHERED:
                of_all = [value - first for value, first in zip(of_all, start, strict=True)]
                of_one = [value - first for value, first in zip(of_one, before, strict=True)]
            if isinstance(metric, keras.metrics.Mean):  # a scalar of each replica counts as one value
                count = [variable is metric.count for variable in metric.variables].index(True)
                self._ratios[id(metric)] = float(of_one[count] / of_all[count]) if of_all[count] else 1.0
            added = max((float(np.abs(v).max(initial=0.0)) for v in of_one), default=0.0)
            rounding = _ROUNDING * largest / added if np.isfinite(added) and added else 0.0
            results = [self._results(metric, state) for state in (of_all, of_one)]
            if id(metric) not in self._of_losses and not _are_alike(of_all, of_one):
                results = [of_all, of_one]  # which later results depend on
            for value, of_device in zip(*results, strict=True):
                differs, relative = tolerance.of_log(value, of_device)
                if differs and relative > rounding:
                    self.differing.append(metric)
                    yield metric.name, relative
                    break

    def differing_anywhere(self, *, of_losses: bool = False) -> list[keras.metrics.Metric]:
        """The metrics that differed on any worker and can be updated with the rows of all.

        Args:
            of_losses: whether those of Keras's losses can, which Keras's own steps update with one number a step.
        """
        known = {id(metric) for metric in self.differing}
        counts = self._replicas.sum_over_workers([int(id(metric) in known) for metric in self._metrics])
        differing = [metric for metric, count in zip(self._metrics, counts, strict=True) if count]
        return [one for one in differing if one not in GATHERED and (of_losses or id(one) not in self._of_losses)]

    def gather(self, metrics: list[keras.metrics.Metric]) -> State:
        """Lets every replica update metrics with the rows of all. Call it with the state from before the step.

        Returns:
            That state of theirs, which each replica has its part of.
        """
        before = State([one for metric in metrics for one in self._replicas.copies(metric.variables)])
        parts = [self._state(metric, self._before) for metric in metrics]
        has_rows, *totals = self._replicas.sum_arrays_over_workers([self._has_rows(), *tf.nest.flatten(parts)])
        GATHERED.update(metrics)
        for metric, summed in zip(metrics, tf.nest.pack_sequence_as(parts, totals), strict=True):
            for i in range(len(self._replicas.devices) if has_rows else 0):
                for variable, total in zip(self._replicas.components(metric.variables, i), summed, strict=True):
                    variable.assign(total * self._ratios.get(id(metric), 1.0))
        return before

    def _has_rows(self) -> np.ndarray:
        """Whether the metrics held rows before the step."""
        states = [self._before[one] for metric in self._metrics for one in self._replicas.copies(metric.variables)]
        numbers = [state for state in states if state.dtype.kind == "f" and np.isfinite(state).all()]
        return np.array(any(state.any() for state in numbers), np.int64)

    def _state(self, metric: keras.metrics.Metric, state: State) -> list[np.ndarray]:
        """The state over this worker's replicas: the sum of theirs, or the first one's of a gathered metric."""
        local = range(1 if metric in GATHERED else len(self._replicas.devices))
        parts = [[np.asarray(state[v]) for v in self._replicas.components(metric.variables, i)] for i in local]
        return [np.sum(values, axis=0, dtype=values[0].dtype) for values in zip(*parts, strict=True)]

    def _results(self, metric: keras.metrics.Metric, state: list[np.ndarray]) -> list[Any]:
        kept = State(self._replicas.components(metric.variables, 0))
        with self._replicas.local(metric.variables, 0):
            for variable, value in zip(metric.variables, state, strict=True):
                variable.assign(value)
            try:
                return [np.asarray(one) for one in keras.tree.flatten(get_result(metric))]
            finally:
                kept.put_back()
