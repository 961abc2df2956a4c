"""The model of a workload, compiled as a plan says."""

from __future__ import annotations

import keras

from tfaccel.errors import WorkloadError
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload
from tfaccel.training.accumulation import accumulate
from tfaccel.training.engine import EngineOptions
from tfaccel.training.own_methods import refuse_own_methods


def compiled_model(workload: Workload, plan: Plan) -> keras.Model:
    """A fresh model of a workload, to be called inside the scope of the plan's strategy.

    Raises:
        WorkloadError: if `build_model` returns something else than a Keras 3 model.
    """
    model = workload.build_model()
    if not isinstance(model, keras.Model):
        raise WorkloadError(
            f"build_model of workload {workload.name!r} must return a Keras 3 model. Received: {model!r:.200}"
        )
    refuse_own_methods(model, workload.name)
    arguments = dict(workload.compile_args())
    optimizer = keras.optimizers.get(arguments.get("optimizer", "rmsprop"))
    if plan.accumulation_steps > 1:
        accumulate(optimizer, plan.accumulation_steps)
    arguments |= {"optimizer": optimizer, "jit_compile": plan.jit_compile}
    arguments["steps_per_execution"] = plan.steps_per_execution * plan.accumulation_steps
    model.compile(**arguments)
    return model


def engine_options(plan: Plan) -> EngineOptions:
    """The options of the engine that trains as a plan says."""
    return EngineOptions(
        sum_duplicate_indices=plan.sum_duplicate_indices, bytes_per_pack=plan.bytes_per_pack,
        stop_at_non_finite_loss=True,
    )  # fmt: skip
