"""Builds a workload's model and compiles it according to a plan, with scaled learning rates if asked for."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras

from tfaccel.errors import WorkloadError
from tfaccel.planning.compile_arguments import CompiledByModel
from tfaccel.planning.own_model import RebuiltModel
from tfaccel.planning.plan import SETTINGS, Plan
from tfaccel.planning.run_length import LearningRateScaling, compile_arguments
from tfaccel.planning.workload import Workload, call_own
from tfaccel.training.accumulation import accumulate
from tfaccel.training.front import refuse_own_methods
from tfaccel.training.private import private_api
from tfaccel.training.private.private_workers import broadcast_at_once
from tfaccel.training.schedules import ScaledRate
from tfaccel.training.steps.batch_statistics import say_if_accumulated, synchronize_batch_norm
from tfaccel.training.steps.embeddings import tables_created_on_host
from tfaccel.training.steps.engine import EngineOptions
from tfaccel.training.steps.model_parts import get_optimizers, has_own_train_step, stepping_optimizers


def compiled_model(
    workload: Workload, plan: Plan, *, num_steps: int | None, rates: ScaledRates | None = None
) -> keras.Model:
    """Builds and compiles a new model of a workload; call it inside the scope of the plan's strategy.

    Args:
        workload, plan: the workload to train, and the plan to train it with.
        num_steps: number of optimizer steps of the whole run, for `compile_args`; None if unknown.
        rates: scales the learning rates; None to leave them as they are.

    Raises:
        WorkloadError: if `build_model` does not return a Keras 3 model, which must be compiled if `compile_args` is
            a `CompiledByModel`, and not compiled otherwise; if `compile_args` does not return a dict of arguments of
            `Model.compile`; or if one of them fails.
    """
    with building_for(plan):
        model = call_own(f"build_model of workload {workload.name!r}", workload.build_model)
    if not isinstance(model, keras.Model):
        raise WorkloadError(
            f"build_model of workload {workload.name!r} must return a Keras 3 model. Received: {model!r:.200}"
        )
    refuse_own_methods(model, f"build_model of workload {workload.name!r}")
    if isinstance(workload.build_model, RebuiltModel):
        workload.build_model.check_dtype_policy(plan.dtype_policy)
    if isinstance(workload.compile_args, CompiledByModel):
        _check_compiled(model, workload)
        if rates is not None:
            rates.scale(get_optimizers(model).values())
        return with_plan(model, plan)
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


def _compile(model: keras.Model, arguments: dict[str, Any], plan: Plan, rates: ScaledRates | None) -> None:
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


def with_plan(model: keras.Model, plan: Plan) -> keras.Model:
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
    say_if_accumulated(model, plan.accumulation_steps)


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


logger = logging.getLogger("tfaccel")

_NUM_SAMPLES = 33  # of a schedule, to find its peak
_SETTERS = (keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau)


class ScaledRates:
    """Scales learning rates, and remembers from what to what.

    Args:
        scaling: the rule and the batch sizes.
        num_steps: optimizer steps of the whole run; None if unknown.
    """

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

        Raises:
            WorkloadError: for a learning rate that cannot be scaled.
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
            before, after = ([float(call(step)) for step in steps] for call in _calls(self._rates[0]))
            known |= {
                "warm_up_steps": self._warm_up_steps,
                "learning_rate": max(before),
                "scaled_learning_rate": max(after),
            }
        return known


def _calls(rate: ScaledRate) -> tuple[Any, Any]:
    return rate.unscaled, rate
