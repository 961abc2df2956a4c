"""Properties that must hold in addition to the comparison with plain Keras.

Each check trains under a strategy and returns the deviation from the expected result (0 if exact), the allowed
deviation, and what was compared.
"""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np

from tfaccel.parity.axes import CHECK_NAMES
from tfaccel.parity.case import ParityCase, Placement
from tfaccel.parity.compare import difference, largest_difference
from tfaccel.parity.datasets import OVERFLOWING_STEP, Arrays, arrays, global_batch_size
from tfaccel.parity.references import ADAPTIVE_TOLERANCE
from tfaccel.parity.training_run import PLAIN_KERAS, TFACCEL, Trainer, compiled_model, variable_values

Outcome = tuple[float, float, str]
# Calls a function that builds a model in the scope of the strategy.
Make = Callable[[Callable[[], keras.Model]], keras.Model]


def _weights(model: keras.Model) -> dict[str, np.ndarray]:
    return {name: value for name, value in variable_values(model, ()).items() if name.startswith("weight")}


def _fit(trainer: Trainer, model: keras.Model, data: Arrays, batch_size: int) -> keras.callbacks.History:
    return trainer.fit(model, data.x, data.y, batch_size=batch_size, shuffle=False, verbose=0)


def accumulating_4_batches_is_one_step_on_all_of_them(placement: Placement, make: Make) -> Outcome:
    """Compares weights after accumulating over 4 batches with plain Keras on batches four times as large."""
    accumulating = ParityCase(placement, accumulation=4, optimizer="adamw", clipping="global_clipnorm")
    at_once = ParityCase(placement, optimizer="adamw", clipping="global_clipnorm")
    size = global_batch_size(placement.num_replicas)
    data = arrays(accumulating).rows(0, 8 * size)
    model = make(lambda: compiled_model(accumulating, reference=False, jit_compile=False))
    reference = compiled_model(at_once, reference=True, jit_compile=False)
    _fit(TFACCEL, model, data, size)
    _fit(PLAIN_KERAS, reference, data, 4 * size)
    return largest_difference(_weights(model), _weights(reference))[0], ADAPTIVE_TOLERANCE, "weights"


def an_overflow_on_the_last_replica_skips_the_step_everywhere(placement: Placement, make: Make) -> Outcome:
    """Compares weights before and after a step in which one row of the last replica has an infinite gradient.

    The loss scale must be halved, and the step must not be counted.
    """
    case = ParityCase(placement, dtype_policy="mixed_float16")
    size = global_batch_size(placement.num_replicas)
    model = make(lambda: compiled_model(case, reference=False, jit_compile=False))
    _fit(TFACCEL, model, arrays(case).rows(0, OVERFLOWING_STEP * size), size)
    before, scale = _weights(model), model.optimizer.dynamic_scale.numpy()
    _fit(TFACCEL, model, arrays(case).rows(OVERFLOWING_STEP * size, (OVERFLOWING_STEP + 1) * size), size)
    values = {
        **_weights(model),
        "loss scale": model.optimizer.dynamic_scale.numpy(),
        "steps": model.optimizer.iterations.numpy(),
    }
    expected = {
        **{name: value for name, value in before.items() if " on replica " not in name},
        "loss scale": scale / 2,
        "steps": np.asarray(OVERFLOWING_STEP),
    }
    distance, where = largest_difference(values, expected)
    return distance, 0.0, where


def dropout_masks_differ_between_replicas_and_are_the_same_in_every_run(placement: Placement, make: Make) -> Outcome:
    """Compares the masks of two runs; the deviation is infinite if two rows of one run share a mask."""
    first, second = _dropout_masks(placement, make), _dropout_masks(placement, make)
    if len(np.unique(first, axis=0)) < len(first):
        return float("inf"), 0.0, "two rows have the same mask"
    return difference(first, second), 0.0, "masks"


def _dropout_masks(placement: Placement, make: Make) -> np.ndarray:
    """The dropout masks of one training batch, one per row.

    The loss is the sum of `weight[row] * dropout(1)` over rows and units, so its gradient is the mask, and one step of
    gradient descent with learning rate -1 writes it into the weights, which start at zero.
    """
    num_rows, num_units = global_batch_size(placement.num_replicas), 32

    def build() -> keras.Model:
        row, ones = keras.Input((num_rows,)), keras.Input((num_units,))
        weight = keras.layers.Dense(num_units, use_bias=False, kernel_initializer="zeros")
        dropped = keras.layers.Dropout(0.5, seed=3)(ones)
        model = keras.Model([row, ones], keras.layers.Dot(axes=1)([weight(row), dropped]))
        model.compile(keras.optimizers.SGD(-1.0), loss=keras.losses.MeanAbsoluteError(reduction="sum"))
        return model

    model = make(build)
    data = Arrays(
        [np.eye(num_rows, dtype="float32"), np.ones((num_rows, num_units), "float32")],
        np.full((num_rows, 1), -1e6, "float32"),
    )
    _fit(TFACCEL, model, data, num_rows)
    return model.trainable_variables[0].numpy() > 0


CHECKS: dict[str, Callable[[Placement, Make], Outcome]] = {name: globals()[name] for name in CHECK_NAMES}
