"""`Session`: a workload under a plan, put together and checked: its batches, number of steps, model and engine.

The model is built and compiled as the plan says, with scaled learning rates if asked for.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any

import keras
import tensorflow as tf

from tfaccel.data.feeds import ResumedPlace
from tfaccel.data.hub_presets import prepares_data
from tfaccel.data.sources import IteratorSource
from tfaccel.errors import WorkloadError
from tfaccel.planning.compile_arguments import CompiledByModel
from tfaccel.planning.own_model import RebuiltModel
from tfaccel.planning.plan import SETTINGS, Plan
from tfaccel.planning.run_length import compile_arguments, num_optimizer_steps
from tfaccel.planning.workload import Workload, call_own
from tfaccel.training.epochs import Span, Validation, run_epochs
from tfaccel.training.evaluate import make_callbacks
from tfaccel.training.front import refuse_own_methods
from tfaccel.training.private import private_models
from tfaccel.training.private.private_workers import broadcast_at_once
from tfaccel.training.run.batch_checks import check_batches, not_taken, parts_of_rows
from tfaccel.training.run.workload_source import WorkloadSource, with_plan
from tfaccel.training.schedules import LaterRates, ScaledRates, accumulate
from tfaccel.training.stages.staged_model import built_on_host
from tfaccel.training.steps.batch_statistics import batch_norm_layers, synchronize_batch_norm
from tfaccel.training.steps.embeddings import tables_created_on_host
from tfaccel.training.steps.engine import Engine, EngineOptions, get_engine
from tfaccel.training.steps.model_parts import get_optimizers, has_own_train_step
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.steps.step_errors import failure_of_one_device

logger = logging.getLogger("tfaccel")


def compiled_model(
    workload: Workload, plan: Plan, *, num_steps: int | None, rates: ScaledRates | LaterRates | None = None
) -> keras.Model:
    """Builds and compiles a new model of a workload; call it inside the scope of the plan's strategy.

    Args:
        num_steps: number of optimizer steps of the whole run, for `compile_args`; None if unknown.
        rates: scales the learning rates, or moves their schedules; None to leave them as they are.
    """
    with building_for(plan):
        model = call_own(f"build_model of workload {workload.name!r}", workload.build_model)
    if not isinstance(model, keras.Model):
        raise WorkloadError(
            f"build_model of workload {workload.name!r} must return a Keras 3 model. Received: {model!r:.200}"
        )
    if not (isinstance(workload.build_model, RebuiltModel) and prepares_data(model)):  # its data are prepared already
        refuse_own_methods(model, f"build_model of workload {workload.name!r}")
    if isinstance(workload.build_model, RebuiltModel):
        workload.build_model.check_dtype_policy(plan.dtype_policy)
    if isinstance(workload.compile_args, CompiledByModel):
        _check_compiled(model, workload)
        if rates is not None:
            rates.scale(get_optimizers(model).values())
        return as_planned(model, plan)
    if model.compiled and not isinstance(workload.build_model, RebuiltModel):  # whose class may compile it
        raise WorkloadError(
            f"build_model of workload {workload.name!r} must return a model that is not compiled. Omit "
            "`compile`, and return its arguments from compile_args; or omit compile_args. If the constructor of "
            f"{type(model).__name__} compiles it, call its `compile` in build_model, and omit compile_args."
        )
    arguments = compile_arguments(workload, num_steps=num_steps)
    text = f"`Model.compile` with what compile_args of workload {workload.name!r} returned"
    call_own(text, _compile, model, arguments, plan, rates)
    _normalize_as_planned(model, plan)
    return model


@contextlib.contextmanager
def building_for(plan: Plan) -> Iterator[None]:
    """In the scope of a plan's strategy: a context that puts the variables of a model where the plan wants them."""
    places = tables_created_on_host() if plan.embeddings_on == "host" else contextlib.nullcontext()
    with places, broadcast_at_once():
        yield


def _compile(model: keras.Model, arguments: dict[str, Any], plan: Plan, rates: ScaledRates | LaterRates | None) -> None:
    optimizer = keras.optimizers.get(arguments.get("optimizer", "rmsprop"))
    if rates is not None and optimizer is not None:
        rates.scale([optimizer])
    if plan.accumulation_steps > 1:
        accumulate(optimizer, plan.accumulation_steps)
    arguments |= {"optimizer": optimizer, "jit_compile": plan.jit_compile}
    if plan.steps_per_execution is not None:
        arguments["steps_per_execution"] = plan.steps_per_execution * plan.accumulation_steps
    model.compile(**arguments)
    if rates is not None:
        rates.scale(get_optimizers(model).values())  # those of a custom `compile`, as in a GAN


def _check_compiled(model: keras.Model, workload: Workload) -> None:
    """Raises WorkloadError unless the function that builds the model has compiled it for training."""
    what = "is not compiled" if not model.compiled else "was compiled without an optimizer"
    if not model.compiled or (model.optimizer is None and not has_own_train_step(model)):
        raise WorkloadError(
            f"build_model of workload {workload.name!r} returns a model that {what}. Call "
            "`model.compile(optimizer=..., loss=...)` in it, or give optimizer, loss and metrics beside the data."
        )


def as_planned(model: keras.Model, plan: Plan) -> keras.Model:
    """Applies a plan to a model that was built and compiled by the user; call it before the first step."""
    _normalize_as_planned(model, plan)
    if plan.accumulation_steps > 1:
        accumulate(model.optimizer, plan.accumulation_steps)
    model.jit_compile = plan.jit_compile
    if plan.steps_per_execution is not None:
        model.steps_per_execution = plan.steps_per_execution * plan.accumulation_steps
    return model


def _normalize_as_planned(model: keras.Model, plan: Plan) -> None:
    if plan.synchronize_batch_norm:
        synchronize_batch_norm(model)
    _say_if_accumulated(model, plan.accumulation_steps)


def logical_devices(plan: Plan) -> tuple[str, ...]:
    """A plan's devices as TensorFlow numbers them: it sees the plan's GPUs only, in the plan's order."""
    return tuple(f"GPU:{i}" if device.startswith("GPU") else device for i, device in enumerate(plan.devices))


def engine_options(plan: Plan) -> EngineOptions:
    """The engine's options for a plan: its fields of the same names, and what follows from others."""
    return EngineOptions(
        **{name: getattr(plan, name) for name, setting in SETTINGS.items() if setting.in_engine},
        stop_at_non_finite_loss=True,
        single_steps=plan.steps_per_execution == 1,
        batches_per_step=plan.accumulation_steps,
        times_input=True,
        stage_devices=logical_devices(plan) if plan.devices_per_replica > 1 else (),
    )


@dataclass(frozen=True, eq=False)
class Session:
    """A workload's training under a plan. Each part is made when it is first used; `close` releases the data.

    Args:
        epochs: total number of epochs; no batches of more are prepared.
        planned_epochs: number of epochs that `num_steps` is computed for; None for the workload's recommendation.
        last_steps: number of batches in the last epoch; None for all of them.
        start_epoch, start: the first epoch, and where in it to start.
        options: of the engine; None for those of the plan.
        make_model: `make_model(workload, plan, num_steps=...)` returns the compiled model, called in the strategy's
            scope.

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
    last_steps: int | None = None
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
        whole = num_optimizer_steps(self.workload, self.plan, epochs=self.planned_epochs, num_batches=num_batches)
        if whole is None or num_batches is None or self.last_steps is None:
            return whole
        return (self.epochs * num_batches - num_batches + self.last_steps) // self.plan.accumulation_steps

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
        differs = parts_of_rows(source.batch_spec) != parts_of_rows(self.source.batch_spec)
        if differs and self.plan.devices_per_replica == 1 and not self.model.run_eagerly:
            failure = failure_of_one_device(self.model, Replicas(self.strategy), "test", source.batch_spec)
            if failure is not None:
                raise not_taken("validation_data", self.workload, source.batch_spec, failure) from failure
        return Validation(source)

    @property
    def span(self) -> Span:
        """Where `run_epochs` begins and ends."""
        return Span(self.epochs, self.start_epoch, self.start.step, self.last_steps)

    def train(self, callbacks: Sequence[Any] | keras.callbacks.CallbackList) -> keras.callbacks.History:
        """Trains from the start to the end of the last epoch, and evaluates after each one."""
        engine, source, validation = self.engine, self.source, self.validation
        container = make_callbacks(callbacks, engine, source, verbose=0, epochs=self.epochs)
        return run_epochs(engine, source, container, validation, self.span)

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
    """Builds the model, loss and metrics of a workload for its batches."""
    check_batches(model, batch_spec, f"train_data of workload {workload.name!r}")
    try:
        private_models.build_model(model, batch_spec)
    except (ValueError, TypeError) as error:
        raise not_taken("train_data", workload, batch_spec, error) from error


def callbacks_of_workload(workload: Workload) -> list[keras.callbacks.Callback]:
    """New callbacks of a workload."""
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


def _say_if_accumulated(model: keras.Model, accumulation_steps: int) -> None:
    """Logs that batch normalization sees one micro-batch at a time, if gradients are accumulated."""
    names = batch_norm_layers(model)
    if accumulation_steps > 1 and names:
        logger.warning(
            "Gradients are accumulated over %d micro-batches, and batch normalization (%s) takes its statistics over "
            "one micro-batch at a time: results differ from those with accumulation_steps=1.",
            accumulation_steps,
            ", ".join(names),
        )
