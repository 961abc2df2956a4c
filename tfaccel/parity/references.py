"""The reference of each case, and the tolerance."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import lru_cache

from tfaccel.parity.case import ParityCase
from tfaccel.parity.compare import largest_difference
from tfaccel.parity.datasets import arrays, global_batch_size
from tfaccel.parity.share_layers import AverageShares
from tfaccel.parity.training_run import PLAIN_KERAS, Values, compiled_model, training_run

NUM_ROW_ORDERS = 3
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


def reference(case: ParityCase, values_of: ValuesOf = reference_values) -> Reference:
    """The reference values and the tolerance of a case."""
    return values_of(case), tolerance(case, values_of)


def reference_case(case: ParityCase) -> ParityCase:
    """Resets the fields of a case that its reference does not depend on.

    Random draws differ with and without XLA, so the reference of a model with dropout keeps its `xla`.
    """
    return dataclasses.replace(case, xla=case.xla and case.model == "dropout", exact_kernels=False)


def tolerance_over_row_orders(case: ParityCase) -> float:
    """`tolerance` in low precision, where the distance is the largest over several orders of the rows in each batch.

    The order changes nothing but rounding. One run is one sample of it, which can be small by chance: with LARS at a
    rate of 2.0, four orders gave distances from 0.0017 to 0.0040, and plain Keras differed from itself by 0.0077.
    """
    case = reference_case(case)
    in_float32 = reference_values(case.in_float32())
    distances = []
    for seed in range(NUM_ROW_ORDERS):
        data = arrays(case).in_other_order(global_batch_size(case.placement.num_replicas), seed)
        model = compiled_model(case, reference=True, jit_compile=case.xla)
        values = training_run(case, PLAIN_KERAS, model, data=data, callbacks=[AverageShares()])
        kept = {name: value for name, value in values.items() if not name.startswith("predictions")}  # of other rows
        distances.append(largest_difference(kept, {name: in_float32[name] for name in kept})[0])
    return 2 * max(distances)


def tolerance(case: ParityCase, values_of: ValuesOf = reference_values) -> float:
    """The largest allowed difference from the reference after `NUM_STEPS` steps.

    In float32 it is a constant. In low precision, where a sum over N shares is rounded N times and the sum over the
    whole batch once, it is twice the distance between plain Keras in this policy and in float32: replicas and reference
    are both roundings of the float32 run, and each may be that far from it.
    """
    exact = SGD_TOLERANCE if case.optimizer == "sgd" else ADAPTIVE_TOLERANCE
    if case.layer_dtype == "float32":
        return exact
    rounded, in_float32 = values_of(case), values_of(case.in_float32())
    distance, _ = largest_difference(rounded, {name: in_float32[name] for name in rounded})
    return max(exact, 2 * distance)
