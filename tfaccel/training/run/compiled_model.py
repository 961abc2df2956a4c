"""The model of a workload, compiled as a plan says."""

from __future__ import annotations

from typing import Any

import keras

from tfaccel.errors import PlanError, WorkloadError
from tfaccel.planning.own_model import CompiledByModel, RebuiltModel
from tfaccel.planning.plan import Plan
from tfaccel.planning.run_length import compile_arguments
from tfaccel.planning.workload import Workload
from tfaccel.planning.workload_calls import call_own
from tfaccel.training.accumulation import accumulate
from tfaccel.training.own_methods import refuse_own_methods
from tfaccel.training.steps.batch_statistics import say_if_accumulated, synchronize_batch_norm
from tfaccel.training.steps.engine import EngineOptions
from tfaccel.training.steps.model_parts import has_own_train_step


def compiled_model(workload: Workload, plan: Plan, *, num_steps: int | None) -> keras.Model:
    """A fresh model of a workload, to be called inside the scope of the plan's strategy.

    Args:
        workload, plan: what is trained, and how.
        num_steps: optimizer steps of the whole run, for `compile_args`; None if the number is not known.

    Raises:
        WorkloadError: if `build_model` returns something else than a Keras 3 model, which is compiled if `compile_args`
            is the model's own, and not compiled otherwise; if `compile_args` returns something else than a dict of what
            `Model.compile` takes; or if one of them fails.
    """
    model = call_own(f"build_model of workload {workload.name!r}", workload.build_model)
    if not isinstance(model, keras.Model):
        raise WorkloadError(
            f"build_model of workload {workload.name!r} must return a Keras 3 model. Received: {model!r:.200}"
        )
    refuse_own_methods(model, workload.name)
    if isinstance(workload.build_model, RebuiltModel) and workload.build_model.dtype_policy != plan.dtype_policy:
        raise PlanError(
            f"The model was built with the dtype policy {workload.build_model.dtype_policy}, which the plan cannot "
            f"change. Received: dtype_policy={plan.dtype_policy!r}. Give the function that builds the model."
        )
    if plan.synchronize_batch_norm:
        synchronize_batch_norm(model)
    say_if_accumulated(model, plan.accumulation_steps)
    if isinstance(workload.compile_args, CompiledByModel):
        _check_compiled(model, workload)
        return with_plan(model, plan)
    if model.compiled:
        raise WorkloadError(
            f"build_model of workload {workload.name!r} must return a model that is not compiled. Leave out "
            "`compile`, and let compile_args return its arguments; or leave out those."
        )
    arguments = compile_arguments(workload, num_steps=num_steps)
    text = f"`Model.compile` with what compile_args of workload {workload.name!r} returned"
    call_own(text, _compile, model, arguments, plan)
    return model


def _compile(model: keras.Model, arguments: dict[str, Any], plan: Plan) -> None:
    optimizer = keras.optimizers.get(arguments.get("optimizer", "rmsprop"))
    if plan.accumulation_steps > 1:
        accumulate(optimizer, plan.accumulation_steps)
    arguments |= {"optimizer": optimizer, "jit_compile": plan.jit_compile}
    if plan.steps_per_execution is not None:
        arguments["steps_per_execution"] = plan.steps_per_execution * plan.accumulation_steps
    model.compile(**arguments)


def _check_compiled(model: keras.Model, workload: Workload) -> None:
    """Raises WorkloadError unless a model was compiled by its own function, for training."""
    what = "is not compiled" if not model.compiled else "was compiled without an optimizer"
    if not model.compiled or (model.optimizer is None and not has_own_train_step(model)):
        raise WorkloadError(
            f"build_model of workload {workload.name!r} returns a model that {what}. Call "
            "`model.compile(optimizer=..., loss=...)` in it, or give optimizer, loss and metrics beside the data."
        )


def with_plan(model: keras.Model, plan: Plan) -> keras.Model:
    """A model that was compiled already, to be trained as a plan says; to be called before its first step."""
    if plan.accumulation_steps > 1:
        accumulate(model.optimizer, plan.accumulation_steps)
    model.jit_compile = plan.jit_compile
    if plan.steps_per_execution is not None:
        model.steps_per_execution = plan.steps_per_execution * plan.accumulation_steps
    return model


def engine_options(plan: Plan) -> EngineOptions:
    """The options of the engine that trains as a plan says."""
    return EngineOptions(
        sum_duplicate_indices=plan.sum_duplicate_indices,
        bytes_per_pack=plan.bytes_per_pack,
        stop_at_non_finite_loss=True,
        single_steps=plan.steps_per_execution == 1,
        batches_per_step=plan.accumulation_steps,
    )
