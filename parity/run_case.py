"""Runs one case under its strategy and compares it with its reference."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfaccel.parity.case import ParityCase, ParityCheck, ParityRow
from tfaccel.parity.checks import CHECKS
from tfaccel.parity.compare import largest_difference
from tfaccel.parity.datasets import global_batch_size
from tfaccel.parity.models import MODELS
from tfaccel.parity.references import Reference, reference, tolerance_over_roundings
from tfaccel.parity.training_run import TFACCEL, Trainer, compiled_model, training_run
from tfaccel.training.fit import plan_of_model


def run_case(
    case: ParityCase | ParityCheck,
    strategy: tf.distribute.Strategy | None,
    trainer: Trainer = TFACCEL,
    *,
    get_reference: Callable[[ParityCase], Reference] = reference,
) -> ParityRow:
    """Trains the case under a strategy (None: without one) and compares it with plain Keras on one device.

    Args:
        case: a case, or a check of a property.
        strategy: the strategy of the case's placement.
        trainer: the trainer to test; tfaccel's by default.
        get_reference: returns the reference of a case.
    """
    started = time.perf_counter()

    def make(build: Callable[[], keras.Model]) -> keras.Model:
        with strategy.scope() if strategy is not None else contextlib.nullcontext():
            return build()

    fault = ""
    if isinstance(case, ParityCheck):
        distance, allowed, where = CHECKS[case.check](case.placement, make)
    else:
        fault = MODELS[case.model].fault
        expected, allowed = get_reference(case)
        model = make(lambda: compiled_model(case, reference=False, jit_compile=case.xla))
        extra: dict[str, Any] = {}
        if trainer is TFACCEL and MODELS[case.model].plan_fields:
            size = global_batch_size(case.placement.num_replicas)
            fields = {**dict(MODELS[case.model].plan_fields), "fused_kernels": not (case.exact_kernels or case.xla)}
            extra["plan"] = plan_of_model(model, batch_size=size, **fields)
        elif trainer is TFACCEL:
            extra["exact_kernels"] = case.exact_kernels
        distance, where = largest_difference(training_run(case, trainer, model, **extra), expected)
        if distance > allowed and case.layer_dtype != "float32" and MODELS[case.model].any_row_order:
            allowed = max(allowed, tolerance_over_roundings(case))
    return ParityRow(
        case=case.name,
        strategy=str(case.placement),
        max_abs_diff=distance if math.isfinite(distance) else None,
        tolerance=allowed,
        ok=math.isfinite(distance) and distance <= allowed,
        fault=fault,
        note=where,
        seconds=round(time.perf_counter() - started, 3),
    )
