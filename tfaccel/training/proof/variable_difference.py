"""Whether a variable after a step on several replicas differs from one device's by more than rounding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

_SPREADS = 50.0  # differences of more than so many times the rounding that was seen are not rounding
_MAX_ROUNDING = 1e-2  # of the largest step; what the order of the rows moves by more is not only rounding
_EPSILON = 2e-6  # of the value itself
_NOISY_ELEMENTS = 4.0
_MAX_TOGETHER = 0.02  # of the step, of all elements of a weight that has slots


@dataclass(frozen=True)
class Tolerance:
    """How large a difference may be.

    Attributes:
        of_step: relative to the largest change of any element in the step.
        of_value: relative to a log's value.
        scale: the largest step of variables of the same kind; what is nothing beside it is rounding.
        nothing: relative to that step.
    """

    of_step: float
    of_value: float
    scale: float = 0.0
    nothing: float = 1e-5

    @classmethod
    def of_model(cls, model: keras.Model) -> Tolerance:
        """That of a model: wider in 16 bits, on a GPU, which may multiply in TF32, and under XLA."""
        policies = {layer.dtype_policy.compute_dtype for layer in (model, *model.layers)}
        if policies & {"float16", "bfloat16"}:
            return cls(0.1, 0.02, nothing=2e-2)
        if tf.config.list_logical_devices("GPU"):
            return cls(2e-2, 1e-2)
        return cls(5e-4, 1e-4)

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
            return False, 0.0
        many, one = _where_finite(one, _in_64_bits(many), _in_64_bits(one))
        if not np.isfinite(many).all():
            return True, 1.0
        size = max(float(np.abs(one).max(initial=0.0)), 1e-3)
        distance = float(np.abs(many - one).max(initial=0.0)) / size
        return distance > self.of_value, distance


def is_rounded(values: np.ndarray) -> bool:
    """Whether values are floating-point numbers, real or complex; others are equal or not."""
    return values.dtype.kind in "fc" or values.dtype.name.startswith(("bfloat", "float"))


def size_of_step(before: np.ndarray, after: np.ndarray) -> float:
    """How far a variable has moved at most."""
    if after.dtype.kind not in "iu" and not is_rounded(after):
        return 0.0
    moved = _in_64_bits(after) - _in_64_bits(before)
    return float(np.abs(moved[np.isfinite(moved)]).max(initial=0.0))


def _in_64_bits(values: Any) -> np.ndarray:
    """Values as float64, complex ones with their real and imaginary parts along a last axis."""
    values = np.asarray(values)
    if values.dtype.kind == "c":
        values = np.stack([values.real, values.imag], axis=-1)
    return np.asarray(values, np.float64)


def _where_finite(one: np.ndarray, *values: np.ndarray) -> tuple[np.ndarray, ...]:
    """Values with zeros where one device's are not finite: those tell nothing, unlike the ones beside them."""
    finite = np.isfinite(_in_64_bits(one))
    return tuple(np.where(finite, value, 0.0) for value in values)


def is_noise(slots: list[tuple[str, np.ndarray, float]], tolerance: Tolerance) -> Any:
    """Where the gradient that an optimizer has seen is nothing beside the others', so that all of it may be rounding.

    Args:
        slots: for each slot of a weight: the last word of its name, how far it has moved, and how far the slots of that
            name have moved at most. Those that hold squares of gradients have other names than "momentum".
        tolerance: what is nothing beside the largest step.

    Returns:
        A boolean array of the weight's shape; False without slots.
    """
    found: Any = False
    for place, (word, moved, largest) in enumerate(slots):
        nothing = np.abs(moved) <= tolerance.nothing ** (1 if "momentum" in word else 2) * largest
        found = nothing if not place else found & nothing
    return found


def without_multiple(many: np.ndarray, one: np.ndarray, rounded: list[np.ndarray]) -> np.ndarray:
    """A variable after a step on several replicas, without what follows from the rounding of a weight.

    A moving average of a weight differs by a fraction of what the weight differs by.

    Args:
        many: its value on several replicas.
        one: its value on one device.
        rounded: by how much weights differ, which is only rounding.
    """
    if not is_rounded(one) or one.dtype.kind == "c" or one.size == 1:
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
        again: after the step on one device, with the rows in another order.
        many: after the step on several replicas.
        tolerance: how large a difference may be.
        has_slots: whether an optimizer moves it, with slots of its own.
        noise: see `is_noise`.

    Returns:
        Whether it differs, and the largest difference relative to the step, without what is only rounding.

    Example:
        >>> before, one = np.zeros(2), np.ones(2)
        >>> difference(before, one, one, np.array([1.0, 0.5]), Tolerance(1e-5, 1e-5), has_slots=False)
        (True, 0.5)
    """
    if not is_rounded(one):
        return bool((one != many).any()), float((one != many).mean()) if one.size else 0.0
    if not one.size:
        return False, 0.0
    if np.array_equal(one, many):
        return False, 0.0
    before, one, again, many = _where_finite(one, *map(_in_64_bits, (before, one, again, many)))
    before, again = (np.where(np.isfinite(value), value, one) for value in (before, again))
    if not np.isfinite(many).all():
        return True, 1.0
    step, rounding = float(np.abs(one - before).max()), np.abs(again - one)
    distance = np.where(noise, 0.0, np.abs(many - one))
    floor = tolerance.nothing * tolerance.scale + tolerance.of_step * step + _EPSILON * float(np.abs(one).max())
    allowed = max(floor, min(_SPREADS * float(rounding.max()), _MAX_ROUNDING * max(step, tolerance.scale)))
    size = max(step, tolerance.scale, float(np.abs(one).max()), 1e-12)
    far = distance > allowed
    differs = bool(far.any())
    if has_slots:
        together = float(np.linalg.norm(distance)) > _MAX_TOGETHER * float(np.linalg.norm(one - before))
        differs = together and int(far.sum()) > _NOISY_ELEMENTS * int((rounding > floor).sum())
    return differs, float(distance[far if differs else ~far].max(initial=0.0)) / size
