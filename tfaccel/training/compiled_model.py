"""The model of a workload, compiled as a plan says."""

from __future__ import annotations

from typing import Any

import keras

from tfaccel.errors import WorkloadError
from tfaccel.planning.plan import Plan
from tfaccel.planning.run_length import compile_arguments
from tfaccel.planning.workload import Workload
from tfaccel.planning.workload_calls import call_own
from tfaccel.training.accumulation import accumulate
from tfaccel.training.batch_statistics import say_if_accumulated, synchronize_batch_norm
from tfaccel.training.engine import EngineOptions
from tfaccel.training.own_methods import refuse_own_methods


def compiled_model(workload: Workload, plan: Plan, *, num_steps: int | None) -> keras.Model:
    """A fresh model of a workload, to be called inside the scope of the plan's strategy.

    Args:
        workload, plan: what is trained, and how.
        num_steps: optimizer steps of the whole run, for `compile_args`; None if the number is not known.

    Raises:
        WorkloadError: if `build_model` returns something else than an uncompiled Keras 3 model, `compile_args`
            something else than a dict of what `Model.compile` takes, or one of them fails.
    """
    model = call_own(f"build_model of workload {workload.name!r}", workload.build_model)
    if not isinstance(model, keras.Model):
        raise WorkloadError(
            f"build_model of workload {workload.name!r} must return a Keras 3 model. Received: {model!r:.200}"
        )
    refuse_own_methods(model, workload.name)
    if plan.synchronize_batch_norm:
        synchronize_batch_norm(model)
    say_if_accumulated(model, plan.accumulation_steps)
    if model.compiled:
        raise WorkloadError(
            f"build_model of workload {workload.name!r} must return a model that is not compiled. Leave out "
            "`compile`, and let compile_args return its arguments."
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


def engine_options(plan: Plan) -> EngineOptions:
    """The options of the engine that trains as a plan says."""
    return EngineOptions(
        sum_duplicate_indices=plan.sum_duplicate_indices,
        bytes_per_pack=plan.bytes_per_pack,
        stop_at_non_finite_loss=True,
        single_steps=plan.steps_per_execution == 1,
        batches_per_step=plan.accumulation_steps,
    )
