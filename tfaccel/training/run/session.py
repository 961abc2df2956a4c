"""`Session`: a workload under a plan, put together: its batches, number of steps, model and engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any

import keras
import tensorflow as tf

from tfaccel.data.iterator_feed import ResumedPlace
from tfaccel.data.sources import IteratorSource
from tfaccel.planning.plan import Plan
from tfaccel.planning.run_length import num_optimizer_steps
from tfaccel.planning.workload import Workload
from tfaccel.planning.workload_calls import call_own
from tfaccel.training.epochs import make_callbacks, run_epochs
from tfaccel.training.run.compiled_model import compiled_model, engine_options
from tfaccel.training.run.planned_datasets import with_plan
from tfaccel.training.run.workload_fit import build_for, check_batches
from tfaccel.training.run.workload_source import WorkloadSource
from tfaccel.training.stages.staged_model import built_on_host
from tfaccel.training.steps.engine import Engine, EngineOptions, get_engine
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.validation import Validation


@dataclass(frozen=True, eq=False)
class Session:
    """A workload's training under a plan. Each part is made when it is first used; `close` releases the data.

    Args:
        workload, plan: what is trained, and how.
        strategy: the plan's, in its runtime.
        seed: determines the data.
        epochs: total number of epochs; no batches of more are prepared.
        planned_epochs: number of epochs that `num_steps` is computed for; None for the workload's recommendation.
        start_epoch, start: the first epoch, and where in it to start.
        options: of the engine; None for those of the plan.
        make_model: `make_model(workload, plan, num_steps=...)` returns the compiled model, called in the strategy's
            scope.

    Raises:
        WorkloadError, PlanError: by a part, if model, data and plan do not fit.

    Example:
        >>> from tfaccel.recipes import tabular_classification
        >>> plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=32)
        >>> session = Session(tabular_classification.workload(), plan, tf.distribute.get_strategy(), seed=0)
        >>> sorted(session.train([]).history)[-1], session.model.built
        ('val_loss', True)
        >>> session.close()
    """

    workload: Workload
    plan: Plan
    strategy: tf.distribute.Strategy
    _: KW_ONLY
    seed: int
    epochs: int = 1
    planned_epochs: int | None = None
    start_epoch: int = 0
    start: ResumedPlace = field(default_factory=ResumedPlace)
    options: EngineOptions | None = None
    make_model: Callable[..., keras.Model] = compiled_model

    @cached_property
    def source(self) -> WorkloadSource:
        """The batches."""
        place: dict[str, Any] = {"epochs": self.epochs, "start_epoch": self.start_epoch, "start": self.start}
        return WorkloadSource(self.workload, self.plan, Replicas(self.strategy), seed=self.seed, **place)

    @cached_property
    def num_steps(self) -> int | None:
        """The number of optimizer steps of the planned epochs; None if it is unknown."""
        num_batches = self.source.num_batches
        return num_optimizer_steps(self.workload, self.plan, epochs=self.planned_epochs, num_batches=num_batches)

    @cached_property
    def unbuilt_model(self) -> keras.Model:
        """The model as `make_model` returns it; without a known shape of its inputs, it has no variables yet."""
        num_steps = self.num_steps
        with built_on_host(self.plan.devices_per_replica), self.strategy.scope():
            return self.make_model(self.workload, self.plan, num_steps=num_steps)

    @cached_property
    def model(self) -> keras.Model:
        """The model, with variables for weights, optimizer and metrics."""
        model = self.unbuilt_model
        with built_on_host(self.plan.devices_per_replica):
            build_for(model, self.source.batch_spec, self.workload)
        return model

    @cached_property
    def engine(self) -> Engine:
        """The engine that runs the model's steps."""
        return get_engine(self.model, self.options or engine_options(self.plan))

    @cached_property
    def validation(self) -> Validation | None:
        """Validation after each epoch, with one iterator for all passes; None without validation data."""
        if self.workload.validation_data is None:
            return None
        of = f"validation_data of workload {self.workload.name!r}"
        dataset = with_plan(
            call_own(of, self.workload.validation_data, self.source.batch_size), self.plan, "validation_data"
        )
        length, num_passes = int(dataset.cardinality()), self.epochs - self.start_epoch + 1  # one for final metrics
        source = IteratorSource(dataset, num_batches=length if length > 0 else None, num_epochs=num_passes)
        check_batches(self.model, source.batch_spec, of)
        return Validation(source)

    def train(self, callbacks: Sequence[Any] | keras.callbacks.CallbackList) -> keras.callbacks.History:
        """Trains from the start to the end of the last epoch, and evaluates after each one."""
        engine, source, validation = self.engine, self.source, self.validation
        container = make_callbacks(callbacks, engine, source, verbose=0, epochs=self.epochs)
        place = {"initial_epoch": self.start_epoch, "first_step": self.start.step}
        return run_epochs(engine, source, container, validation, epochs=self.epochs, **place)

    def close(self) -> None:
        """Releases the data."""
        made = vars(self)
        for part in (made.get("source"), made.get("validation")):
            if part is not None:
                part.close()


def built_model(workload: Workload, plan: Plan, batch_spec: Any) -> keras.Model:
    """A workload's compiled and built model for batches of other specs than its data's, to trace one step of it."""
    model = compiled_model(workload, plan, num_steps=1)
    build_for(model, batch_spec, workload)
    return model
