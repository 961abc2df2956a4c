"""The noun `StepOfOneDevice`: a training step without communication, and the device that takes its time."""

from __future__ import annotations

import math

from tfaccel.errors import PlanError
from tfaccel.short_repr import noun


@noun
class StepOfOneDevice:
    """What one device does in a training step.

    Args:
        step_seconds: time of a step without communication.
        batch_size: examples per step.
        fixed_seconds: the part of the step's time that does not shrink with the batch, such as calls from the host and
            the optimizer's update. It matters when the global batch is kept.
        gradient_bytes: of each gradient, in the order of the trainable weights. TensorFlow sums gradients in the dtype
            of the weights, which is float32 under mixed precision too.
        num_train_examples: examples in an epoch; None if unknown.
        source: how the time is known: "measured" or "given".
        spread: of the measured time: interquartile range / median.
        device: on which it was measured, such as "GPU:0"; empty if unknown.
        device_model: the product name of that device; empty if unknown.

    Raises:
        PlanError: if a field is invalid.
    """

    step_seconds: float
    batch_size: int
    gradient_bytes: tuple[int, ...]
    fixed_seconds: float = 0.0
    num_train_examples: int | None = None
    source: str = "given"
    spread: float | None = None
    device: str = ""
    device_model: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "gradient_bytes", tuple(self.gradient_bytes))
        if not (math.isfinite(self.step_seconds) and self.step_seconds > 0):
            raise PlanError(f"step_seconds must be positive. Received: step_seconds={self.step_seconds}.")
        if not 0 <= self.fixed_seconds <= self.step_seconds:
            raise PlanError(
                f"fixed_seconds must be from 0 to step_seconds={self.step_seconds:g}. "
                f"Received: fixed_seconds={self.fixed_seconds}."
            )
        if self.batch_size < 1:
            raise PlanError(f"batch_size must be at least 1. Received: batch_size={self.batch_size}.")

    @property
    def device_kind(self) -> str:
        """ "CPU" or "GPU"; empty if unknown."""
        return self.device.partition(":")[0]

    @property
    def origin(self) -> str:
        """How the time is known, for people.

        Example:
            >>> step = StepOfOneDevice(
            ...     step_seconds=1.0, batch_size=8, gradient_bytes=(), source="measured", spread=0.02, device="GPU:0"
            ... )
            >>> step.origin
            'measured on GPU:0, spread 2%'
        """
        where = f" on {self.device}" if self.device else ""
        model = f" ({self.device_model})" if self.device and self.device_model else ""
        return f"{self.source}{where}{model}" + ("" if self.spread is None else f", spread {self.spread:.0%}")

    def seconds_for(self, replica_batch_size: int) -> float:
        """The time of a step with another batch size: the fixed part, and the rest in proportion.

        Example:
            >>> step = StepOfOneDevice(step_seconds=1.0, fixed_seconds=0.5, batch_size=8, gradient_bytes=(4,))
            >>> step.seconds_for(8), step.seconds_for(4)
            (1.0, 0.75)
        """
        return self.fixed_seconds + (self.step_seconds - self.fixed_seconds) * replica_batch_size / self.batch_size
