"""`Session`: a workload under a plan, put together and checked: its batches, number of steps, model and engine.

The model is built and compiled as the plan says, with scaled learning rates if asked for.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any

import keras
import tensorflow as tf

from tfaccel.data.feeds import ResumedPlace
from tfaccel.data.hub_presets import prepares_data
from tfaccel.data.sources import IteratorSource
from tfaccel.errors import WorkloadError, in_one_line
from tfaccel.known_names import hint_of_keras_error
from tfaccel.planning.compile_arguments import CompiledByModel
from tfaccel.planning.own_model import RebuiltModel
from tfaccel.planning.plan import SETTINGS, Plan
from tfaccel.planning.run_length import LearningRateScaling, compile_arguments, num_optimizer_steps
from tfaccel.planning.workload import Workload, call_own
from tfaccel.records import quoted
from tfaccel.training.epochs import Span, Validation, run_epochs
from tfaccel.training.evaluate import make_callbacks
from tfaccel.training.front import refuse_own_methods
from tfaccel.training.private import private_api, private_models
from tfaccel.training.private.private_workers import broadcast_at_once
from tfaccel.training.run.workload_source import WorkloadSource, with_plan
from tfaccel.training.schedules import LaterStart, ScaledRate, accumulate
from tfaccel.training.stages.staged_model import built_on_host
from tfaccel.training.steps.batch_statistics import batch_norm_layers, synchronize_batch_norm
from tfaccel.training.steps.embeddings import tables_created_on_host
from tfaccel.training.steps.engine import Engine, EngineOptions, get_engine
from tfaccel.training.steps.model_parts import get_optimizers, has_own_train_step, stepping_optimizers
from tfaccel.training.steps.overrides import replaces
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.steps.step_errors import NO_TARGETS, failure_of_one_device, needs_targets

logger = logging.getLogger("tfaccel")

_STEPS = ("__call__", "call", "train_step", "test_step")  # one of one's own may take batches of any structure
_NUM_SAMPLES = 33  # of a schedule, to find its peak
_SETTERS = (keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau)


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
        differs = _parts_of_rows(source.batch_spec) != _parts_of_rows(self.source.batch_spec)
        if differs and self.plan.devices_per_replica == 1 and not self.model.run_eagerly:
            failure = failure_of_one_device(self.model, Replicas(self.strategy), "test", source.batch_spec)
            if failure is not None:
                raise _not_taken("validation_data", self.workload, source.batch_spec, failure) from failure
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
        raise _not_taken("train_data", workload, batch_spec, error) from error


def _not_taken(data: str, workload: Workload, batch_spec: Any, error: Exception) -> WorkloadError:
    text = in_one_line(error)
    cause = NO_TARGETS if needs_targets(error) else f"{text:.600}{hint_of_keras_error(text)}"
    return WorkloadError(
        f"The model, loss or metrics of workload {workload.name!r} do not take the batches that {data} "
        f"returns, which hold {described(batch_spec)}: {cause}"
    )


def _parts_of_rows(batch_spec: Any) -> Any:
    """The shape of a row in each part of a batch."""
    return keras.tree.map_structure(lambda spec: str(getattr(spec, "shape", "")[1:]), batch_spec)


def check_batches(model: keras.Model, batch_spec: Any, of: str) -> None:
    """Raises WorkloadError for examples that are not batched, or inputs whose shapes the model does not accept.

    Args:
        model: the model; the inputs of a subclassed model are unknown before it is called.
        of: the source of the batches, for the message.
    """
    if isinstance(batch_spec, tuple) and len(batch_spec) > 3:
        raise WorkloadError(
            f"{of} must return batches of x, (x, y) or (x, y, sample_weight). Received tuples of {len(batch_spec)}. "
            "Several inputs are a tuple of their own: ((a, b), y)."
        )
    shapes = [getattr(spec, "shape", None) for spec in keras.tree.flatten(batch_spec)]
    if any(shape is not None and shape.rank == 0 for shape in shapes):
        raise WorkloadError(
            f"{of} must return batches whose components all have a first axis of examples. Received elements of "
            f"{described(batch_spec)}. Call `.batch(global_batch_size)`."
        )
    x = keras.utils.unpack_x_y_sample_weight(batch_spec)[0]
    given, wanted = keras.tree.flatten(x), keras.tree.flatten(getattr(model, "inputs", None) or [])
    names = [tensor.name for tensor in wanted]
    by_name = isinstance(x, dict) and not isinstance(getattr(model, "input", None), dict)
    kind = next(one for one in type(model).__mro__ if one.__module__.split(".")[0] == "keras")
    if by_name and not {*names} <= x.keys() and not any(replaces(model, kind, one) for one in _STEPS):
        raise WorkloadError(
            f"{of} returns a dictionary of {quoted([*x])}, but the model's inputs are named {quoted(names)}. Name the "
            "keys as the inputs, or pass the arrays without a dictionary."
        )
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
