"""What a run was asked for: its options, the steps to profile, its config, and its plan if none is given."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from tfaccel.errors import PlanError, RunDirError, TfaccelError, WorkloadError
from tfaccel.hardware.hardware import Cluster, Hardware
from tfaccel.planning.candidates import checked_fields, default_plan
from tfaccel.planning.option_checks import ROLLBACK, check_fractions
from tfaccel.planning.plan import Plan
from tfaccel.planning.plan_cache import cached_plan
from tfaccel.planning.run_length import LearningRateScaling, scaling_advice
from tfaccel.planning.workload import Workload
from tfaccel.processes.launched import whole_group_size
from tfaccel.training.run.remote_run import run_folder
from tfaccel.training.run.run_dir import RunDir
from tfaccel.training.run.stop_signals import StopSignals
from tfaccel.training.run.time_limit import TimeLimit
from tfaccel.training.runtime import Runtime, without_unavailable

logger = logging.getLogger("tfaccel")

CONTINUE, STRETCH, NEW = EXTEND_SCHEDULE = ("continue", "stretch", "new")  # see `train`


def plan_and_origin(
    hardware: Hardware,
    workload: Workload,
    run_dir: str | os.PathLike[str],
    *,
    resume: str,
    can_restart: bool = False,
    measured: Plan | None = None,
    **fixed: Any,
) -> tuple[Plan, str]:
    """Chooses the plan of a run, and says in a few words where it comes from.

    A run that is resumed on the same devices keeps its plan, so that it ends with the same weights as without an
    interruption, whatever has been measured in between. With several workers, which must all have the same plan and may
    not see each other's files, it is always that of the rules.

    Args:
        can_restart: whether settings that this process cannot take any more stay in a measured plan.
        measured: a plan that was measured just now, which counts as a kept one, whether or not it could be kept.
    """
    fixed = checked_fields(_as_for_whole_group(hardware, workload, fixed), hardware)
    if hardware.cluster is not None and hardware.cluster.num_workers > 1:
        return default_plan(hardware, workload, **fixed), "by rules, as always with several workers"
    if resume != "never":
        rules = default_plan(hardware, workload, **fixed)
        file = run_folder(run_dir) / "plan.json"
        saved = _saved_plan(file)
        if saved is not None:
            places = [(plan.strategy, plan.devices, plan.num_workers) for plan in (saved, rules)]
            fits = all(getattr(saved, name) == value for name, value in fixed.items())
            fits &= not _recommends_another_batch(saved, rules)
            if fits and places[0] == places[1]:
                return saved, f"the run's own, {file}"
            return rules, f"by rules; that of the run, {file}, has other devices or settings than those asked for"
    known = cached_plan(hardware, workload, fixed)
    if measured is not None and (known is None or known.plan != measured):
        plan, origin = measured, "measured now, but not kept"
    elif known is not None:
        plan, origin = known.plan, known.origin
        logger.info(f"Using the plan {origin}")
    else:
        return default_plan(hardware, workload, **fixed), "by rules; --autotune measures"
    return (plan if can_restart else without_unavailable(plan, fixed)), origin


def _recommends_another_batch(saved: Plan, rules: Plan) -> bool:
    """Whether the batch size of a saved plan was chosen for the same reason as another one now."""
    why = [dict(plan.reasons).get("global_batch_size") for plan in (saved, rules)]
    return saved.global_batch_size != rules.global_batch_size and why[0] == why[1]


def _as_for_whole_group(hardware: Hardware, workload: Workload, fixed: dict[str, Any]) -> dict[str, Any]:
    """The fixed fields, with the whole group's global batch if a launcher lets fewer workers train."""
    size = whole_group_size()
    here = 1 if hardware.cluster is None else hardware.cluster.num_workers
    if size is None or size <= here or "global_batch_size" in fixed:
        return fixed
    whole = Cluster(source="tf_config", num_workers=size, task_index=0)
    plan = default_plan(replace(hardware, cluster=whole), workload, **fixed)
    return {**fixed, "global_batch_size": plan.global_batch_size}


def _saved_plan(file: Path) -> Plan | None:
    """The plan in a run directory; None if there is none, or none that can be read."""
    try:
        return Plan.load(file)
    except (OSError, TfaccelError):
        return None


@dataclass(frozen=True)
class StepRange:
    """Some consecutive optimizer steps of a run, counted from 1.

    Example:
        >>> StepRange.of("10:12")
        StepRange(first=10, last=12)
    """

    first: int
    last: int

    def __post_init__(self) -> None:
        if type(self.first) is not int or type(self.last) is not int or not 1 <= self.first <= self.last:
            raise WorkloadError(
                "profile must be two optimizer steps, counted from 1, with the first one not after the last one, such "
                f"as 10:12. Received: {self.first}:{self.last}."
            )

    @classmethod
    def of(cls, text: str) -> Self:
        """The steps from a text such as "10:12"."""
        found = re.fullmatch(r"(\d{1,12}):(\d{1,12})", text) if isinstance(text, str) else None
        if found is None:
            raise WorkloadError(f"profile must be two optimizer steps, such as 10:12. Received: {text!r:.80}.")
        return cls(int(found[1]), int(found[2]))

    def check_length(self, num_steps: int | None) -> None:
        """Raises WorkloadError if a run of so many optimizer steps (None: unknown) does not have these steps."""
        if num_steps is not None and self.last > num_steps:
            raise WorkloadError(
                f"profile must be within the run, which has {num_steps} optimizer steps. Received: "
                f"{self.first}:{self.last}."
            )


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run of `train`: what is trained, where to, under which runtime, and how it was asked for.

    Args:
        runtime: the plan's, entered.
        signals: what asks to stop.
        scaling: how to scale the learning rate; None to leave it as it is.
        limit: of the time, which decides `epochs` and `last_steps` (see `Session`); None for none.
        validate_on: the device of a `ValidationBeside`; None to validate between the epochs.
        others: as in `train`.
    """

    workload: Workload
    directory: RunDir
    runtime: Runtime
    hardware: Hardware
    signals: StopSignals
    epochs: int
    seed: int
    checkpoint_interval: int | None
    keep_checkpoints: int
    callbacks: Sequence[Any]
    verbose: int | str
    scaling: LearningRateScaling | None
    profile: StepRange | None
    on_nonfinite: str
    extend_schedule: str | None = None
    limit: TimeLimit | None = None
    last_steps: int | None = None
    validate_on: str | None = None


def check_validate_on(device: str | None, workload: Workload, plan: Plan, limit: TimeLimit | None) -> None:
    """Raises WorkloadError or PlanError if the workload cannot be validated on a device beside its training."""
    if device is None:
        return
    if not isinstance(device, str) or not re.fullmatch(r"(CPU|GPU):\d{1,3}", device):
        raise WorkloadError(f'validate_on must be a device, such as "GPU:1" or "CPU:0". Received: {device!r:.80}.')
    if workload.validation_data is None:
        raise WorkloadError(f"validate_on={device!r} needs validation data, and workload {workload.name!r} has none.")
    if limit is not None:
        raise WorkloadError("validate_on and max_seconds cannot be combined. Leave out one of them.")
    if plan.num_workers > 1 or plan.strategy == "tpu":
        raise PlanError(
            f"validate_on needs a plan for one process, on CPUs or GPUs. Received: strategy={plan.strategy!r}."
        )


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
            f"The run in {directory.shown} cannot be resumed exactly. {reason}, and start over in another directory."
        )
    if reason:
        logger.warning(f"This run cannot be resumed if it is stopped. {reason}.")
    elif getattr(workload.train_data, "runs_python", False):
        logger.info(
            "The dataset runs Python code, which must yield the same batches again if the run is to be resumed. The "
            "first batch after resuming is compared with the one that was due."
        )
