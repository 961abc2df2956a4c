"""`Session`: a workload under a plan, put together and checked: its batches, number of steps, model and engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any

import keras
import tensorflow as tf

from tfaccel.data.iterator_feed import ResumedPlace
from tfaccel.data.sources import IteratorSource
from tfaccel.errors import WorkloadError
from tfaccel.known_names import hint_of_keras_error
from tfaccel.planning.plan import Plan
from tfaccel.planning.run_length import num_optimizer_steps
from tfaccel.planning.workload import Workload, call_own
from tfaccel.training.epochs import Validation, make_callbacks, run_epochs
from tfaccel.training.private import private_models
from tfaccel.training.run.compiled_model import compiled_model, engine_options
from tfaccel.training.run.workload_source import WorkloadSource, with_plan
from tfaccel.training.stages.staged_model import built_on_host
from tfaccel.training.steps.engine import Engine, EngineOptions, get_engine
from tfaccel.training.steps.replicas import Replicas


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

    @property
    def length(self) -> dict[str, int]:
        """Where `run_epochs` begins and ends."""
        return {"epochs": self.epochs, "initial_epoch": self.start_epoch, "first_step": self.start.step}

    def train(self, callbacks: Sequence[Any] | keras.callbacks.CallbackList) -> keras.callbacks.History:
        """Trains from the start to the end of the last epoch, and evaluates after each one."""
        engine, source, validation = self.engine, self.source, self.validation
        container = make_callbacks(callbacks, engine, source, verbose=0, epochs=self.epochs)
        return run_epochs(engine, source, container, validation, **self.length)

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


def build_for(model: keras.Model, batch_spec: Any, workload: Workload) -> None:
    """Builds the model, loss and metrics of a workload for its batches.

    Raises:
        WorkloadError: if the data are not batched, or the model, loss or metrics do not accept the batches.
    """
    check_batches(model, batch_spec, f"train_data of workload {workload.name!r}")
    try:
        private_models.build_model(model, batch_spec)
    except (ValueError, TypeError) as error:
        text = " ".join(str(error).split())
        raise WorkloadError(
            f"The model, loss or metrics of workload {workload.name!r} do not take the batches that train_data "
            f"returns, which hold {described(batch_spec)}: {text:.600}{hint_of_keras_error(text)}"
        ) from error


def check_batches(model: keras.Model, batch_spec: Any, of: str) -> None:
    """Raises WorkloadError for examples that are not batched, or inputs whose shapes the model does not accept.

    Args:
        model: the model; the inputs of a subclassed model are unknown before it is called.
        batch_spec: specs of `x`, `(x, y)` or `(x, y, sample_weight)`.
        of: the source of the batches, for the message.
    """
    shapes = [getattr(spec, "shape", None) for spec in keras.tree.flatten(batch_spec)]
    if any(shape is not None and shape.rank == 0 for shape in shapes):
        raise WorkloadError(
            f"{of} must return batches whose components all have a first axis of examples. Received elements of "
            f"{described(batch_spec)}. Call `.batch(global_batch_size)`."
        )
    given = keras.tree.flatten(keras.utils.unpack_x_y_sample_weight(batch_spec)[0])
    wanted = keras.tree.flatten(getattr(model, "inputs", None) or [])
    if len(given) != len(wanted):
        return  # Keras reports what is missing
    for spec, tensor in zip(given, wanted, strict=True):
        shape = getattr(spec, "shape", None)
        if shape is None or shape.rank is None or _takes(tensor.shape, tuple(shape)):
            continue
        batched = tensor.shape[1:] == tuple(shape) or len(tensor.shape) == shape.rank + 1
        remedy = "Call `.batch(global_batch_size)`." if batched else "Change the model or the data."
        raise WorkloadError(
            f"{of} returns inputs of shape {tuple(shape)}, but the model takes {tuple(tensor.shape)}. {remedy}"
        )


def _takes(wanted: tuple[int | None, ...], given: tuple[int | None, ...]) -> bool:
    """Whether an input of shape `wanted` accepts shape `given`; Keras adds or drops a last axis of size 1."""
    wanted, given = wanted[1:], given[1:]
    if len(given) != len(wanted):
        longer, shorter = (given, wanted) if len(given) > len(wanted) else (wanted, given)
        return longer[-1:] in ((1,), (None,)) and _sizes_fit(longer[:-1], shorter)
    return _sizes_fit(wanted, given)


def _sizes_fit(some: tuple[int | None, ...], others: tuple[int | None, ...]) -> bool:
    return len(some) == len(others) and all(a is None or b is None or a == b for a, b in zip(some, others, strict=True))


def described(batch_spec: Any) -> str:
    """Describes a batch, such as "x (None, 8, 8, 1) float32, y (None, 10) float32"."""
    parts = keras.utils.unpack_x_y_sample_weight(batch_spec)
    return ", ".join(
        f"{name} {tuple(spec.shape) if spec.shape.rank is not None else 'of any shape'} {spec.dtype.name}"
        for name, part in zip(("x", "y", "sample_weight"), parts, strict=False)
        for spec in keras.tree.flatten(part)
        if getattr(spec, "shape", None) is not None
    )


def callbacks_of_workload(workload: Workload) -> list[keras.callbacks.Callback]:
    """New callbacks of a workload.

    Raises:
        WorkloadError: if they are not Keras callbacks.
    """
    if workload.callbacks is None:
        return []
    found: Any = call_own(f"callbacks of workload {workload.name!r}", workload.callbacks)
    if not isinstance(found, list | tuple) or not all(isinstance(one, keras.callbacks.Callback) for one in found):
        raise WorkloadError(
            f"callbacks of workload {workload.name!r} must return a list of Keras callbacks. Received: {found!r:.200}"
        )
    return list(found)


def refuse_restoring(callbacks: Sequence[keras.callbacks.Callback]) -> None:
    """Raises WorkloadError for a callback that would replace the restored weights when training begins."""
    if any(isinstance(one, keras.callbacks.BackupAndRestore) for one in callbacks):
        raise WorkloadError(
            "`train` and BackupAndRestore both restore the training state. Leave out BackupAndRestore: checkpoints are "
            'in run_dir, and resume="auto" continues from them.'
        )
