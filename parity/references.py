"""The reference of each case, and the tolerance."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import keras
import ml_dtypes
import tensorflow as tf

from tfaccel.parity.case import ParityCase
from tfaccel.parity.compare import largest_difference
from tfaccel.parity.datasets import arrays, global_batch_size
from tfaccel.parity.models import MODELS
from tfaccel.parity.share_layers import AverageShares
from tfaccel.parity.training_run import PLAIN_KERAS, Values, compiled_model, training_run
from tfaccel.training.private.private_layers import patched

NUM_ROUNDINGS = 3
ADAPTIVE_TOLERANCE = 1e-4
SGD_TOLERANCE = 1e-5


Reference = tuple[Values, float]
ValuesOf = Callable[[ParityCase], Values]


@lru_cache(maxsize=8)
def reference_values(case: ParityCase) -> Values:
    """The values of plain Keras on one device with the same global batches, or of the model that replaces it
    (`ParityModel.fault`)."""
    case = reference_case(case)
    model = compiled_model(case, reference=True, jit_compile=case.xla)
    return training_run(case, PLAIN_KERAS, model, callbacks=[AverageShares()])


def reference(case: ParityCase, get_values: ValuesOf = reference_values) -> Reference:
    """The reference values and the tolerance of a case."""
    return get_values(case), tolerance(case, get_values)


def reference_case(case: ParityCase) -> ParityCase:
    """Resets the fields of a case that its reference does not depend on.

    Random draws differ with and without XLA, so the reference of a model with dropout keeps its `xla`.
    """
    return dataclasses.replace(case, xla=case.xla and case.model == "dropout", exact_kernels=False)


def tolerance_over_roundings(case: ParityCase) -> float:
    """`tolerance` in low precision, where the distance is the largest over several runs that are rounded otherwise.

    One run is one sample of rounding, which can be small by chance. In each of these runs the rows of a batch stand in
    another order, and every gradient is moved by up to half a unit in the last place, since a sum of N shares is
    rounded N times; a `Dense` layer rounds the gradient of each share, as each replica does. With LARS, orders gave
    distances from 0.0017 to 0.0040 in one case, and gradients so moved distances from 0.0005 to 0.0007 in another,
    where the reference itself was 0.0003 away. In a GAN the gradients of two shares nearly cancel: rounding their sum
    gave distances from 0.00009 to 0.00014, rounding each of them up to 0.0004.
    """
    case = reference_case(case)
    in_float32 = reference_values(case.in_float32())
    distances = []
    for seed in range(NUM_ROUNDINGS):
        data = arrays(case).in_other_order(global_batch_size(case.placement.num_replicas), seed)
        model = compiled_model(case, reference=True, jit_compile=case.xla)
        for name in MODELS[case.model].optimizers:
            _round_gradients_otherwise(getattr(model, name), keras.DTypePolicy(case.layer_dtype).compute_dtype, seed)
        with _dense_by_shares(case.placement.num_replicas):
            values = training_run(case, PLAIN_KERAS, model, data=data, callbacks=[AverageShares()])
        kept = {name: value for name, value in values.items() if not name.startswith("predictions")}  # of other rows
        distances.append(largest_difference(kept, {name: in_float32[name] for name in kept})[0])
    return 2 * max(distances)


def _dense_by_shares(num_shares: int) -> contextlib.AbstractContextManager[None]:
    """Within the block, `Dense` layers process the shares of a batch apart, so that the gradient of each is rounded."""
    call = keras.layers.Dense.call

    def by_shares(self: keras.layers.Dense, inputs: tf.Tensor, training: Any = None) -> tf.Tensor:
        bounds = [tf.shape(inputs)[0] * share // num_shares for share in range(num_shares + 1)]
        parts = [call(self, inputs[first:last], training) for first, last in itertools.pairwise(bounds)]
        return tf.concat(parts, axis=0)

    return patched(keras.layers.Dense, call=by_shares)


def _round_gradients_otherwise(optimizer: keras.optimizers.Optimizer, dtype: str, seed: int) -> None:
    """Multiplies every gradient by random factors of 1 plus or minus at most half the dtype's machine epsilon."""
    apply, half_unit = optimizer.apply, float(ml_dtypes.finfo(tf.as_dtype(dtype).as_numpy_dtype).eps) / 2

    def moved(values: tf.Tensor, index: int) -> tf.Tensor:
        seeds = tf.stack([tf.cast(optimizer.iterations, tf.int32), len(optimizer.variables) * seed + index])
        noise = tf.random.stateless_uniform(tf.shape(values), seeds, -half_unit, half_unit)
        return values * tf.cast(1 + noise, values.dtype)

    def apply_moved(gradients: Sequence[Any], trainable_variables: Any = None) -> Any:
        rounded = [
            tf.IndexedSlices(moved(gradient.values, index), gradient.indices, gradient.dense_shape)
            if isinstance(gradient, tf.IndexedSlices)
            else moved(gradient, index)
            for index, gradient in enumerate(gradients)
        ]
        return apply(rounded, trainable_variables)

    optimizer.apply = apply_moved


def tolerance(case: ParityCase, get_values: ValuesOf = reference_values) -> float:
    """The largest allowed difference from the reference after `NUM_STEPS` steps.

    In float32 it is a constant. In low precision, where a sum over N shares is rounded N times and the sum over the
    whole batch once, it is twice the distance between plain Keras in this policy and in float32: replicas and reference
    are both roundings of the float32 run, and each may be that far from it.
    """
    exact = SGD_TOLERANCE if case.optimizer == "sgd" else ADAPTIVE_TOLERANCE
    if case.layer_dtype == "float32":
        return exact
    rounded, in_float32 = get_values(case), get_values(case.in_float32())
    distance, _ = largest_difference(rounded, {name: in_float32[name] for name in rounded})
    return max(exact, 2 * distance)
