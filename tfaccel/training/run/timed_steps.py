"""Training for some steps and nothing else, to be timed: the model is thrown away."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from tfaccel.data.feeds import Feed
from tfaccel.planning.plan import Plan
from tfaccel.planning.run_length import num_optimizer_steps
from tfaccel.planning.workload import Workload
from tfaccel.training.run.compiled_model import compiled_model, engine_options
from tfaccel.training.run.workload_fit import build_for
from tfaccel.training.run.workload_source import WorkloadSource
from tfaccel.training.steps.batch_statistics import batch_norm_layers
from tfaccel.training.steps.engine import engine_of
from tfaccel.training.steps.replicas import Replicas


@dataclass(frozen=True)
class TimedWindow:
    """Some training steps in a row.

    Args:
        seconds: wall time of all of them, the wait for their batches included.
        num_steps: how many.
        loss: their mean training loss.
    """

    seconds: float
    num_steps: int
    loss: float


class TimedSteps:
    """A workload's training under a plan, in timed windows. Each instance has a model of its own.

    Args:
        workload, plan: what is trained, and how.
        strategy: the plan's, in its runtime.
        seed: determines the data.
        epochs: of the run that is planned, for learning-rate schedules; None for the workload's recommendation.

    Raises:
        WorkloadError: if the model or the data cannot be trained on.
        PlanError: if the plan cannot train this model.
    """

    def __init__(
        self, workload: Workload, plan: Plan, strategy: tf.distribute.Strategy, *, seed: int, epochs: int | None = None
    ) -> None:
        self._source = WorkloadSource(workload, plan, Replicas(strategy), seed=seed)
        num_steps = num_optimizer_steps(workload, plan, epochs=epochs, num_batches=self._source.num_batches)
        with strategy.scope():
            model = compiled_model(workload, plan, num_steps=num_steps)
        build_for(model, self._source.batch_spec, workload)
        self._engine = engine_of(model, engine_options(plan))
        self._batches_per_step = plan.accumulation_steps
        self._feed: Feed | None = None

    @property
    def batch_norm_layers(self) -> list[str]:
        """Names of the layers whose statistics depend on the size of a micro-batch."""
        return batch_norm_layers(self._engine.model)

    @property
    def num_parameters(self) -> int:
        """How many numbers the optimizer updates."""
        return sum(math.prod(variable.shape) for variable in self._engine.model.trainable_variables)

    def window(self, num_steps: int) -> TimedWindow:
        """Trains for so many optimizer steps, through several epochs if need be."""
        started = time.perf_counter()
        left, total = num_steps * self._batches_per_step, 0.0
        while left > 0:
            if self._feed is None or self._feed.exhausted:
                self._feed = self._source.feed()
            self._engine.model.reset_metrics()
            result = self._engine.run("train", self._feed, left)
            total += float(np.asarray(result.logs["loss"])) * result.num_steps  # waits for the device
            left -= result.num_steps
            if not result.loss_is_finite:
                return TimedWindow(time.perf_counter() - started, num_steps, float("nan"))
        seconds = time.perf_counter() - started
        return TimedWindow(seconds, num_steps, total / (num_steps * self._batches_per_step))

    def close(self) -> None:
        """Lets the input pipeline go."""
        self._feed = None
        self._source.close()
