"""Learning-rate schedules: by name, scaled, begun later, and as gradient accumulation needs them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import keras
from keras.optimizers.schedules import LearningRateSchedule

from tfaccel.errors import WorkloadError
from tfaccel.planning.run_length import LearningRateScaling
from tfaccel.training.private import private_api
from tfaccel.training.steps.model_parts import stepping_optimizers

logger = logging.getLogger("tfaccel")

_NUM_SAMPLES = 33  # of a schedule, to find its peak
_SETTERS = (keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau)
_LAST_PART = 1e-3  # final rate as a fraction of the peak; not zero, since Ftrl divides by it


class LaterSchedule(LearningRateSchedule):
    """Base class of schedules that precede `schedule` with `num_steps` other steps."""

    def __init__(self, schedule: LearningRateSchedule, num_steps: int) -> None:
        super().__init__()
        self.schedule = schedule
        self.num_steps = num_steps

    def get_config(self) -> dict[str, Any]:
        """The config that `from_config` takes."""
        return {"schedule": keras.optimizers.schedules.serialize(self.schedule), "num_steps": self.num_steps}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Creates a schedule from the config that `get_config` returned."""
        return cls(keras.optimizers.schedules.deserialize(config["schedule"]), config["num_steps"])


@keras.saving.register_keras_serializable(package="tfaccel")
class WarmUp(LaterSchedule):
    """A linear warm-up followed by another schedule.

    Args:
        schedule: the schedule after the warm-up; its step 0 is the first step after the warm-up.
        num_steps: number of warm-up steps, at least 1.

    Example:
        >>> falling = keras.optimizers.schedules.PolynomialDecay(1.0, decay_steps=4, end_learning_rate=0.0)
        >>> [float(WarmUp(falling, 2)(step)) for step in range(7)]
        [0.5, 0.75, 1.0, 0.75, 0.5, 0.25, 0.0]
    """

    def __call__(self, step: Any) -> Any:
        """The learning rate of a step; the warm-up starts at the schedule's first rate divided by `num_steps`."""
        step = keras.ops.cast(step, "float32")
        later = self.schedule(keras.ops.maximum(step - self.num_steps, 0.0))
        part = keras.ops.minimum(step / self.num_steps, 1.0)
        return later * (part + (1.0 - part) / self.num_steps)


@keras.saving.register_keras_serializable(package="tfaccel")
class LaterStart(LaterSchedule):
    """A schedule that begins after `num_steps` steps, as in a run that goes on with a new one.

    Example:
        >>> falling = keras.optimizers.schedules.PolynomialDecay(1.0, decay_steps=4, end_learning_rate=0.0)
        >>> [float(LaterStart(falling, 10)(step)) for step in (10, 11, 14)]
        [1.0, 0.75, 0.0]
    """

    def __call__(self, step: Any) -> Any:
        """The learning rate of a step."""
        return self.schedule(keras.ops.maximum(keras.ops.cast(step, "float32") - self.num_steps, 0.0))


@keras.saving.register_keras_serializable(package="tfaccel")
class ScaledRate(LearningRateSchedule):
    """A learning rate multiplied by a factor, which rises linearly from 1 during a warm-up.

    Args:
        learning_rate: a number, or a `LearningRateSchedule`.
        factor: the factor after the warm-up, above 0.
        warm_up_steps: number of steps of the warm-up; 0 for none.

    Example:
        >>> [float(ScaledRate(0.5, factor=3.0, warm_up_steps=2)(step)) for step in range(4)]
        [0.5, 1.0, 1.5, 1.5]
    """

    def __init__(self, learning_rate: float | LearningRateSchedule, *, factor: float, warm_up_steps: int) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.factor = factor
        self.warm_up_steps = warm_up_steps

    def __call__(self, step: Any) -> Any:
        """The learning rate of a step."""
        part = keras.ops.cast(step, "float32") / max(1, self.warm_up_steps)
        factor = 1.0 + (self.factor - 1.0) * keras.ops.minimum(part, 1.0) if self.warm_up_steps else self.factor
        return factor * self.unscaled(step)

    def unscaled(self, step: Any) -> Any:
        """The learning rate of a step without the factor."""
        return self.learning_rate(step) if callable(self.learning_rate) else self.learning_rate

    def get_config(self) -> dict[str, Any]:
        """The config that `from_config` takes."""
        rate = self.learning_rate
        rate = keras.optimizers.schedules.serialize(rate) if callable(rate) else rate
        return {"learning_rate": rate, "factor": self.factor, "warm_up_steps": self.warm_up_steps}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Creates a schedule from the config that `get_config` returned."""
        rate = config["learning_rate"]
        rate = keras.optimizers.schedules.deserialize(rate) if isinstance(rate, dict) else rate
        return cls(rate, factor=config["factor"], warm_up_steps=config["warm_up_steps"])


def make_schedule(name: str, *, peak: float, num_steps: int, warm_up: float) -> LearningRateSchedule:
    """Creates a learning-rate schedule.

    Args:
        name: "cosine", "linear", "exponential" (each decays to a thousandth of the peak) or "constant".
        peak: the peak learning rate.
        warm_up: fraction of the steps used for the warm-up.

    Example:
        >>> rates = make_schedule("linear", peak=1.0, num_steps=20, warm_up=0.1)
        >>> [round(float(rates(step)), 3) for step in (0, 2, 11, 20)]
        [0.5, 1.0, 0.501, 0.001]
    """
    num_rising = max(1, round(warm_up * num_steps))
    num_falling = max(1, num_steps - num_rising)
    if name in ("cosine", "constant"):  # Keras's own class, so that a saved model does not need tfaccel
        alpha, num_falling = (_LAST_PART, num_falling) if name == "cosine" else (1.0, 1)
        return keras.optimizers.schedules.CosineDecay(
            peak / num_rising, decay_steps=num_falling, alpha=alpha, warmup_target=peak, warmup_steps=num_rising
        )
    if name == "linear":
        falling = keras.optimizers.schedules.PolynomialDecay(peak, num_falling, end_learning_rate=_LAST_PART * peak)
    else:
        falling = keras.optimizers.schedules.ExponentialDecay(peak, num_falling, decay_rate=_LAST_PART)
    return WarmUp(falling, num_rising)


@keras.saving.register_keras_serializable(package="tfaccel")
class AccumulatedSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """A learning-rate schedule over optimizer steps; Keras calls it with a batch number.

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


class ScaledRates:
    """Scales learning rates, and remembers from what to what."""

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
            before, after = (
                [float(call(step)) for step in steps] for call in (self._rates[0].unscaled, self._rates[0])
            )
            known |= {
                "warm_up_steps": self._warm_up_steps,
                "learning_rate": max(before),
                "scaled_learning_rate": max(after),
            }
        return known


@dataclass(frozen=True)
class LaterRates:
    """Lets learning rate schedules begin after some steps, and scales them.

    Args:
        num_steps: the optimizer steps before.
        scaled: None to leave the rates as they are.
    """

    num_steps: int
    scaled: ScaledRates | None

    def scale(self, optimizers: Iterable[Any]) -> None:
        """Moves the schedules of optimizers whose schedules have not been moved."""
        known = list(optimizers)
        for one in [part for optimizer in known for part in stepping_optimizers(optimizer)]:
            if isinstance(one, keras.optimizers.MultiOptimizer) or private_api.learning_rate_function(one) is not None:
                raise WorkloadError(
                    f"The learning rate of {type(one).__name__} cannot begin anew: it is a function, or one of several "
                    'that are created later. Use a LearningRateSchedule, or extend_schedule="stretch".'
                )
            schedule = private_api.learning_rate_schedule(one)
            if schedule is not None and not isinstance(schedule, LaterStart | ScaledRate):
                one.learning_rate = LaterStart(schedule, self.num_steps)
        if self.scaled is not None:
            self.scaled.scale(known)


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
