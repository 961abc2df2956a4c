"""Training for some steps and nothing else, to be timed: the model is thrown away."""

from __future__ import annotations

import math
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import tensorflow as tf

from tfaccel.costs.graph_costs import layer_seconds
from tfaccel.costs.model_cost import StepCost
from tfaccel.costs.private_graphs import trace_events
from tfaccel.data.feeds import Feed
from tfaccel.hardware.gpu import GpuMeter, visible_gpu_ids
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload
from tfaccel.training.kernels.fused_kernels import kernels_need_float32
from tfaccel.training.proof.micro_batches import what_depends_on_micro_batches
from tfaccel.training.run.changed_run import why_epochs_differ
from tfaccel.training.run.performance import TimedWindow
from tfaccel.training.run.session import Session, engine_options
from tfaccel.training.steps.marked_layers import layer_names, optimizer_names, train_step_cost
from tfaccel.training.steps.windows import WindowLength

_MANY_EPOCHS = 1000
# All operations; by default, those that TensorFlow thinks to be cheap are left out.
_TRACED = tf.profiler.experimental.ProfilerOptions(host_tracer_level=3, python_tracer_level=0)


class TimedSteps:
    """A workload's training under a plan, in timed windows. Each instance has a model of its own.

    Args:
        epochs: of the run that is planned, for learning-rate schedules; None for the workload's recommendation.
        marks_layers: mark the layers' operations, for `layer_seconds`.
    """

    def __init__(
        self,
        workload: Workload,
        plan: Plan,
        strategy: tf.distribute.Strategy,
        *,
        seed: int,
        epochs: int | None = None,
        marks_layers: bool = False,
    ) -> None:
        self._workload, self._plan = workload, plan
        self._session = Session(
            workload,
            plan,
            strategy,
            seed=seed,
            epochs=_MANY_EPOCHS,  # prepared ahead, as in a long run
            planned_epochs=epochs,
            options=replace(engine_options(plan), marks_layers=marks_layers),
        )
        self._source, self._engine = self._session.source, self._session.engine
        self._length = WindowLength(self._engine, "train", [])
        self._batches_per_step = plan.accumulation_steps
        self._feed: Feed | None = None
        self._meter = GpuMeter(visible_gpu_ids(plan.devices))

    def what_depends_on_micro_batches(self) -> str:
        """What micro-batches of another size would change, as the start of a sentence; empty if nothing is found."""
        workload, plan = self._workload, self._plan
        size = plan.global_batch_size // plan.accumulation_steps
        batch = next(iter(workload.train_data(size, seed=0, epoch=0).take(1)))
        replicas, summed = self._engine.replicas, plan.sum_duplicate_indices
        found = what_depends_on_micro_batches(self._engine.model, replicas, batch, sums_duplicates=summed)
        whole = replace(plan, accumulation_steps=1)
        return found or why_epochs_differ(workload, whole) or ""

    @property
    def kernels_need_float32(self) -> bool:
        """Whether the model's fused kernels are for float32 only, as those of LSTM and GRU are."""
        return kernels_need_float32(self._engine.model)

    @property
    def vocabulary_size(self) -> int:
        """The number of logits of each token; 0 if the model returns none, or if that is not known beforehand."""
        outputs = getattr(self._engine.model, "outputs", None) or []
        return max((one.shape[-1] or 0 for one in outputs if len(one.shape) > 2), default=0)

    @property
    def num_parameters(self) -> int:
        """How many numbers the optimizer updates."""
        return sum(math.prod(variable.shape) for variable in self._engine.model.trainable_variables)

    def window(self, num_steps: int) -> TimedWindow:
        """Trains for so many optimizer steps, through several epochs if need be."""
        self._meter.reset()
        started, cpu_started, waited_before = time.perf_counter(), time.process_time(), self._engine.waited_seconds
        left, total, before_epochs = num_steps * self._batches_per_step, 0.0, 0.0
        loss: float | None = None
        while left > 0 and loss is None:
            if self._feed is None or self._feed.exhausted:
                begun = time.perf_counter()
                self._feed = self._source.feed()
                before_epochs += time.perf_counter() - begun
            self._engine.model.reset_metrics()
            count = min(left, self._length.next(0, None)) if self._length.is_fixed else left
            result = self._engine.run("train", self._feed, count, loop=self._length.loops)
            total += float(np.asarray(result.logs["loss"])) * result.num_steps  # waits for the device
            left -= result.num_steps
            loss = None if result.loss_is_finite else float("nan")
            self._meter.sample()
        waited = self._engine.waited_seconds
        return TimedWindow(
            seconds=time.perf_counter() - started,
            num_steps=num_steps - left // self._batches_per_step,
            loss=total / (num_steps * self._batches_per_step) if loss is None else loss,
            waited_seconds=None if waited is None else waited - (waited_before or 0.0) + before_epochs,
            cpu_seconds=time.process_time() - cpu_started,
            gpu_utilization=self._meter.mean(),
        )

    def cost(self) -> StepCost:
        """What one optimizer step computes on all replicas; see `train_step_cost`."""
        source, num_batches = self._source, self._batches_per_step
        return train_step_cost(self._engine, source.batch_spec, rows=source.batch_size, batches_per_step=num_batches)

    def layer_seconds(self, num_steps: int) -> dict[str, float]:
        """The mean time of a step, divided among its layers, "optimizer", "loss", "other" and "host".

        The layers must have been marked. Empty where single operations cannot be told apart: on other devices than
        CPUs, and where XLA compiles them.
        """
        if self._plan.jit_compile or not self._plan.devices[0].startswith("CPU"):
            return {}
        with tempfile.TemporaryDirectory(prefix="tfaccel-") as folder:
            with tf.profiler.experimental.Profile(folder, _TRACED):
                window = self.window(num_steps)
            waited = window.waited_seconds or 0.0
            found = layer_seconds(
                ((name, start, end) for _, name, start, end in trace_events(Path(folder))),
                layer_names(self._engine.model),
                optimizers=optimizer_names(self._engine.model),
                total_seconds=window.seconds - waited,
            )
        return {name: seconds / window.num_steps for name, seconds in found.items()}

    def close(self) -> None:
        """Lets the input pipeline go."""
        self._feed = None
        self._session.close()
