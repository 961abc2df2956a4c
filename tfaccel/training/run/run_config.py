"""What must be the same for a run to be resumed, whether it can be, and how its learning rate is scaled."""

from __future__ import annotations

import logging
from typing import Any

from tfaccel.errors import RunDirError, WorkloadError
from tfaccel.planning.learning_rate_scaling import LearningRateScaling, scaling_advice
from tfaccel.planning.non_finite_policy import ROLLBACK
from tfaccel.planning.option_checks import check_fractions
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload
from tfaccel.training.run.run_dir import RunDir

logger = logging.getLogger("tfaccel")


def config_of_run(workload: Workload, plan: Plan, scaling: LearningRateScaling | None) -> dict[str, Any]:
    """What must be the same for a run to be resumed, apart from the arguments of `train`."""
    config: dict[str, Any] = {
        "recipe": workload.name,
        "options": dict(workload.options),
        "global_batch_size": plan.global_batch_size,
        "dtype_policy": plan.dtype_policy,
    }
    if not plan.synchronize_batch_norm:
        config["synchronize_batch_norm"] = False
    if workload.bad_data is not None and workload.bad_data.num_skipped:
        config["bad_data"] = workload.bad_data.digest()
    if scaling is not None:
        config["learning_rate_scaling"] = scaling.rule
        config["scaling_warm_up"] = scaling.warm_up
        config["recommended_batch_size"] = scaling.recommended_batch_size
    return config


def scaling_of_run(workload: Workload, plan: Plan, rule: str | None, warm_up: float) -> LearningRateScaling | None:
    """How to scale the learning rate, or None; then logs that it can be, if the batch size is not the recommended."""
    check_fractions(scaling_warm_up=warm_up)
    if rule is None:
        advice = scaling_advice(workload.global_batch_size, plan.global_batch_size)
        if advice:
            logger.info(advice)
        return None
    return LearningRateScaling(
        rule=rule,
        recommended_batch_size=workload.global_batch_size,
        global_batch_size=plan.global_batch_size,
        warm_up=warm_up,
    )


def check_resumable(workload: Workload, directory: RunDir, on_nonfinite: str) -> None:
    """Warns, or refuses to resume or to roll back, if the order of the data differs between processes."""
    reason = getattr(workload.train_data, "not_resumable", "")
    if reason and on_nonfinite == ROLLBACK:
        raise WorkloadError(f'on_nonfinite="rollback" repeats steps with the same batches. {reason}, or use "skip".')
    if reason and directory.resumes and any(directory.checkpoints.glob("step_*")):
        raise RunDirError(
            f"The run in {directory.path} cannot be resumed exactly. {reason}, and start over in another directory."
        )
    if reason:
        logger.warning(f"This run cannot be resumed if it is stopped. {reason}.")
    elif getattr(workload.train_data, "runs_python", False):
        logger.info(
            "The dataset runs Python code, which must yield the same batches again if the run is to be resumed. The "
            "first batch after resuming is compared with the one that was due."
        )
