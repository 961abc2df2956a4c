"""Gradient accumulation that a plan asks for and the workload need not know of."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras

from tfaccel.training.private import private_api
from tfaccel.training.steps.model_parts import stepping_optimizers


@keras.saving.register_keras_serializable(package="tfaccel")
class AccumulatedSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """A learning-rate schedule by optimizer steps. Keras asks it by batches, `accumulation_steps` to an optimizer step.

    Args:
        schedule: gives the learning rate of an optimizer step.
        accumulation_steps: batches in one optimizer step.

    Example:
        >>> linear = keras.optimizers.schedules.PolynomialDecay(1.0, decay_steps=10, end_learning_rate=0.0)
        >>> float(AccumulatedSchedule(linear, 4)(23)), float(linear(5))
        (0.5, 0.5)
    """

    def __init__(self, schedule: keras.optimizers.schedules.LearningRateSchedule, accumulation_steps: int) -> None:
        super().__init__()
        self.schedule = schedule
        self.accumulation_steps = accumulation_steps

    def __call__(self, step: Any) -> Any:
        """The learning rate of the optimizer step that the batch number `step` belongs to."""
        return self.schedule(keras.ops.floor_divide(step, self.accumulation_steps))

    def get_config(self) -> dict[str, Any]:
        """What `from_config` takes."""
        schedule = keras.optimizers.schedules.serialize(self.schedule)
        return {"schedule": schedule, "accumulation_steps": self.accumulation_steps}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> AccumulatedSchedule:
        """The schedule that `get_config` was called on."""
        return cls(keras.optimizers.schedules.deserialize(config["schedule"]), config["accumulation_steps"])


def accumulate(optimizer: keras.optimizers.Optimizer, accumulation_steps: int) -> None:
    """Lets an optimizer that is not built yet step once for `accumulation_steps` batches."""
    for one in stepping_optimizers(optimizer):
        one.gradient_accumulation_steps = accumulation_steps
        schedule = private_api.learning_rate_schedule(one)
        if schedule is not None:
            one.learning_rate = AccumulatedSchedule(schedule, accumulation_steps)


@contextlib.contextmanager
def workload_schedule(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """Gives the optimizer the workload's own schedule meanwhile, so that a saved model needs nothing of tfaccel."""
    found = [(one, private_api.learning_rate_schedule(one)) for one in stepping_optimizers(optimizer)]
    wrapped = [(one, schedule) for one, schedule in found if isinstance(schedule, AccumulatedSchedule)]
    try:
        for one, schedule in wrapped:
            one.learning_rate = schedule.schedule
        yield
    finally:
        for one, schedule in wrapped:
            one.learning_rate = schedule
