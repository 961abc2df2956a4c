"""Scales the learning rates of a run whose batch size is not the recommended one."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import keras

from tfaccel.errors import WorkloadError
from tfaccel.planning.learning_rate_scaling import LearningRateScaling
from tfaccel.training.private import private_api
from tfaccel.training.schedules import ScaledRate
from tfaccel.training.steps.model_parts import stepping_optimizers

logger = logging.getLogger("tfaccel")

_NUM_SAMPLES = 33  # of a schedule, to find its peak
_SETTERS = (keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau)


class ScaledRates:
    """Scales learning rates, and remembers from what to what.

    Args:
        scaling: the rule and the batch sizes.
        num_steps: optimizer steps of the whole run; None if unknown.
    """

    def __init__(self, scaling: LearningRateScaling, num_steps: int | None) -> None:
        self._scaling = scaling
        self._num_steps = num_steps
        self._warm_up_steps = scaling.warm_up_steps(num_steps)
        self._done: list[keras.optimizers.Optimizer] = []
        self._rates: list[ScaledRate] = []  # before and after, for each optimizer

    def scale(self, optimizers: Iterable[Any]) -> None:
        """Scales those that have not been; call it before the plan makes them accumulate.

        A schedule, and a number with a warm-up, become a `ScaledRate`; a number without one is multiplied, so that
        callbacks can still change it.

        Raises:
            WorkloadError: for a learning rate that cannot be scaled.
        """
        if self._scaling.factor == 1:
            return
        for one in [part for optimizer in optimizers for part in stepping_optimizers(optimizer)]:
            if any(one is known for known in self._done):
                continue
            if isinstance(one, keras.optimizers.MultiOptimizer) or private_api.learning_rate_function(one) is not None:
                raise WorkloadError(
                    f"The learning rate of {type(one).__name__} cannot be scaled: it is a function, or one of several "
                    "that are created later. Use a number or a LearningRateSchedule, or leave out "
                    "learning_rate_scaling (--learning_rate_scaling)."
                )
            schedule = private_api.learning_rate_schedule(one)
            rate = ScaledRate(
                float(keras.ops.convert_to_numpy(one.learning_rate)) if schedule is None else schedule,
                factor=self._scaling.factor,
                warm_up_steps=self._warm_up_steps,
            )
            is_number = schedule is None and not self._warm_up_steps
            one.learning_rate = float(rate(0)) if is_number else rate
            self._done.append(one)
            self._rates.append(rate)

    def check_callbacks(self, callbacks: Sequence[keras.callbacks.Callback]) -> None:
        """Raises WorkloadError for a callback that sets the rate that the warm-up computes, or that overwrites it."""
        for callback in callbacks:
            plateau = isinstance(callback, keras.callbacks.ReduceLROnPlateau)
            if isinstance(callback, _SETTERS) and self._rates and (self._warm_up_steps or not plateau):
                remedy = "Set scaling_warm_up=0 (--scaling_warm_up=0)" if plateau else "Scale the rates in it"
                raise WorkloadError(
                    f"{type(callback).__name__} sets the learning rate, which learning_rate_scaling scales. {remedy}, "
                    "or leave out learning_rate_scaling (--learning_rate_scaling)."
                )

    def log(self) -> None:
        """Logs from what to what the rate is scaled, and why."""
        if not self._rates:
            logger.info(
                "The learning rate is not scaled: %d is the recommended global batch size.",
                self._scaling.global_batch_size,
            )
            return
        found = self.to_json()
        logger.info(
            "The peak learning rate is scaled from %.4g to %.4g, after %d steps of warm-up (%s).",
            found["learning_rate"],
            found["scaled_learning_rate"],
            self._warm_up_steps,
            self._scaling.reason,
        )

    def to_json(self) -> dict[str, Any]:
        """The scaling, and the first optimizer's peak learning rate before and after it."""
        known: dict[str, Any] = {**self._scaling.to_json(), "factor": self._scaling.factor}
        if self._rates:
            last = self._num_steps or 1
            steps = sorted({round(i * (last - 1) / (_NUM_SAMPLES - 1)) for i in range(_NUM_SAMPLES)})
            steps = sorted({*steps, min(self._warm_up_steps, last)})
            before, after = ([float(call(step)) for step in steps] for call in _calls(self._rates[0]))
            known |= {
                "warm_up_steps": self._warm_up_steps,
                "learning_rate": max(before),
                "scaled_learning_rate": max(after),
            }
        return known


def _calls(rate: ScaledRate) -> tuple[Any, Any]:
    return rate.unscaled, rate
