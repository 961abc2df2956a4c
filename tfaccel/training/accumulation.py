"""Gradient accumulation set by a plan, without changes to the workload."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras

from tfaccel.training.private import private_api
from tfaccel.training.steps.model_parts import stepping_optimizers


@keras.saving.register_keras_serializable(package="tfaccel")
class AccumulatedSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """A learning-rate schedule over optimizer steps; Keras calls it with a batch number.

    Args:
        schedule: maps an optimizer step to its learning rate.
        accumulation_steps: batches per optimizer step.

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
        """The learning rate of the optimizer step that contains batch `step`."""
        return self.schedule(keras.ops.floor_divide(step, self.accumulation_steps))

    def get_config(self) -> dict[str, Any]:
        """Arguments of `from_config`."""
        schedule = keras.optimizers.schedules.serialize(self.schedule)
        return {"schedule": schedule, "accumulation_steps": self.accumulation_steps}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> AccumulatedSchedule:
        """Creates a schedule from `get_config`'s output."""
        return cls(keras.optimizers.schedules.deserialize(config["schedule"]), config["accumulation_steps"])


def accumulate(optimizer: keras.optimizers.Optimizer, accumulation_steps: int) -> None:
    """Makes an optimizer that is not built yet take one step every `accumulation_steps` batches."""
    for one in stepping_optimizers(optimizer):
        one.gradient_accumulation_steps = accumulation_steps
        schedule = private_api.learning_rate_schedule(one)
        if schedule is not None:
            one.learning_rate = AccumulatedSchedule(schedule, accumulation_steps)


@contextlib.contextmanager
def workload_schedule(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """Within the block, the optimizer has the workload's own schedule, so a model saved there does not need tfaccel."""
    found = [(one, private_api.learning_rate_schedule(one)) for one in stepping_optimizers(optimizer)]
    wrapped = [(one, schedule) for one, schedule in found if isinstance(schedule, AccumulatedSchedule)]
    try:
        for one, schedule in wrapped:
            one.learning_rate = schedule.schedule
        yield
    finally:
        for one, schedule in wrapped:
            one.learning_rate = schedule
