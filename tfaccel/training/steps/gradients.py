"""Small operations on gradients, dense or `IndexedSlices`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import keras
import tensorflow as tf

from tfaccel.errors import PlanError
from tfaccel.training.private.private_random import refusing_unseeded_random
from tfaccel.training.steps.overrides import instance_attributes, left_by_user, replaces

CombineSlices = Callable[[list[Any]], list[Any]]


def densify(gradients: list[Any]) -> list[Any]:
    """Gradients with the rows of `IndexedSlices` summed into dense tensors.

    Keras applies the gradient of a repeated embedding row once per repetition, so Adam and clipping see
    `sum(g_i ** 2)` instead of `sum(g_i) ** 2`. Once summed, they see the true gradient.
    """
    return [tf.convert_to_tensor(g) if isinstance(g, tf.IndexedSlices) else g for g in gradients]


def is_bad(value: Any) -> tf.Tensor:
    """1.0 if a tensor has a NaN or an infinite value, else 0.0."""
    return tf.cast(~tf.reduce_all(tf.math.is_finite(tf.convert_to_tensor(value))), tf.float32)


def empty_gradient(gradient: Any, variable: keras.Variable) -> Any:
    """The gradient of a variable for zero rows: zeros, or `IndexedSlices` without slices."""
    if not isinstance(gradient, tf.IndexedSlices):
        return tf.zeros(variable.shape, gradient.dtype)
    shape = [int(size) for size in variable.shape]
    return tf.IndexedSlices(
        tf.zeros([0, *shape[1:]], gradient.dtype),
        tf.zeros([0], gradient.indices.dtype),
        None if gradient.dense_shape is None else tf.constant(shape, gradient.dense_shape.dtype),
    )


def have_equal_indices(parts: Sequence[Any]) -> bool:
    """In eager mode: whether all gradients are `IndexedSlices` with the same indices in the same order."""
    return all(
        isinstance(part, tf.IndexedSlices)
        and part.indices.shape == parts[0].indices.shape
        and bool(tf.reduce_all(part.indices == parts[0].indices))
        for part in parts
    )


def merged_slices(slices: tf.IndexedSlices, num_contributors: Any) -> tf.IndexedSlices:
    """Sums the slices of several replicas, which have the same indices in the same order, into those of one."""
    size = tf.shape(slices.indices)[0] // num_contributors
    values = tf.reshape(slices.values, tf.concat([[num_contributors, size], tf.shape(slices.values)[1:]], axis=0))
    return tf.IndexedSlices(tf.reduce_sum(values, axis=0), slices.indices[:size], slices.dense_shape)


def scaled(gradient: Any, weight: Any) -> Any:
    """A gradient times a number."""
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values * tf.cast(weight, gradient.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(weight, gradient.dtype)


def applying_pairs(apply: Callable[..., Any]) -> Callable[[Any], Any]:
    """An `apply_gradients` that takes pairs of gradient and variable, from a function that takes two lists."""
    return lambda grads_and_vars: apply(*map(list, zip(*grads_and_vars, strict=True)))


def apply_as_class(optimizer: keras.optimizers.Optimizer, gradients: list[Any], variables: Any) -> None:
    """Calls the update of an optimizer as the user left it: its `apply_gradients` if that is not Keras's."""
    apply = left_by_user(optimizer, "apply")
    if variables is None or not replaces(optimizer, keras.optimizers.Optimizer, "apply_gradients"):
        apply(gradients, variables)
    else:  # a custom `apply_gradients` calls `apply`, which must be the user's
        with instance_attributes(optimizer, {"apply": apply}):
            left_by_user(optimizer, "apply_gradients")(list(zip(gradients, variables, strict=True)))


def check_updated(variables: Iterable[keras.Variable], num_replicas: int) -> None:
    """Raises PlanError for what replicas cannot update alike: Keras does not know it, or its gradient is its value."""
    for variable in variables:
        if not isinstance(variable, keras.Variable):
            raise PlanError(
                f"An optimizer is given a tf.Variable, which {num_replicas} replicas cannot update. Create it with "
                "`self.add_weight(...)`, or as a keras.Variable."
            )
        if getattr(variable, "overwrite_with_gradient", False):
            raise PlanError(
                f"{variable.path} takes the value of its gradient, as the scales of float8 do, and several replicas "
                f"would sum their values. Received: a model with such variables and {num_replicas} replicas. Train it "
                "on one device, or without quantize('float8')."
            )


def same_numbers_on_all(
    num_replicas: int, *, when: Callable[[], bool] = lambda: True
) -> contextlib.AbstractContextManager[None]:
    """While tracing updates: raises PlanError for random numbers that would differ between the replicas' updates."""
    return contextlib.nullcontext() if num_replicas == 1 else refusing_unseeded_random(_refuse_unseeded, when=when)


def _refuse_unseeded() -> NoReturn:
    raise PlanError(
        "The optimizer draws random numbers without a seed of its own, so that several replicas would update their "
        "weights with different numbers. Received: an update that calls keras.random without `seed`, or tf.random. "
        "Give the optimizer a keras.random.SeedGenerator, and pass it as `seed`; or train on one device."
    )


def summed_rows(gradients: list[Any]) -> list[Any]:
    """Gradients whose `IndexedSlices` have each index once, with the sum of its slices."""
    return [each_row_once(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient for gradient in gradients]


def each_row_once(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """The same gradient, with the slices of each row summed."""
    indices, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(indices))
    return tf.IndexedSlices(values, indices, gradient.dense_shape)
