"""The plan of a run if none is given: its own if it is resumed, else a measured one, else that of the rules."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfaccel.errors import RunDirError, TfaccelError
from tfaccel.hardware.hardware import Cluster, Hardware
from tfaccel.local_path import local_path
from tfaccel.planning.candidates import checked_fields, default_plan
from tfaccel.planning.plan import Plan
from tfaccel.planning.plan_cache import cached_plan
from tfaccel.planning.workload import Workload
from tfaccel.processes.launched import whole_group_size
from tfaccel.training.process_settings import without_unavailable

logger = logging.getLogger("tfaccel")


def plan_of_run(
    hardware: Hardware,
    workload: Workload,
    run_dir: str | os.PathLike[str],
    *,
    resume: str,
    can_restart: bool = False,
    **fixed: Any,
) -> Plan:
    """Chooses the plan of a run.

    A run that is resumed on the same devices keeps its plan, so that it ends with the same weights as without an
    interruption, whatever has been measured in between. With several workers, which must all have the same plan and may
    not see each other's files, it is always that of the rules.

    Args:
        hardware, workload: what the plan is for.
        run_dir: the run directory, which need not exist.
        resume: as for `tfaccel.train`.
        can_restart: whether settings that this process cannot take any more stay in a measured plan.
        **fixed: plan fields, whose values stay fixed.

    Raises:
        PlanError: if a fixed field cannot run here.
    """
    chosen: dict[str, Any] = {"can_restart": can_restart, **fixed}
    return plan_and_origin(hardware, workload, run_dir, resume=resume, **chosen)[0]


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
    """The plan of a run as `plan_of_run` chooses it, and a few words on where it comes from.

    Args:
        hardware, workload, run_dir, resume, can_restart, **fixed: as there.
        measured: a plan that was measured just now, which counts as a kept one, whether or not it could be kept.
    """
    fixed = _as_for_whole_group(hardware, workload, fixed)
    if hardware.cluster is not None and hardware.cluster.num_workers > 1:
        return default_plan(hardware, workload, **fixed), "by rules, as always with several workers"
    if resume != "never":
        rules = default_plan(hardware, workload, **fixed)
        file = local_path(run_dir, RunDirError) / "plan.json"
        saved = _saved_plan(file)
        if saved is not None:
            places = [(plan.strategy, plan.devices, plan.num_workers) for plan in (saved, rules)]
            fits = all(getattr(saved, name) == value for name, value in fixed.items())
            if fits and places[0] == places[1]:
                return saved, f"the run's own, {file}"
            return rules, f"by rules; that of the run, {file}, has other devices or settings than those asked for"
    fixed = checked_fields(fixed)
    known = cached_plan(hardware, workload, fixed)
    if measured is not None and (known is None or known.plan != measured):
        plan, origin = measured, "measured now, but not kept"
    elif known is not None:
        plan, origin = known.plan, known.origin
        logger.info(f"Using the plan {origin}")
    else:
        return default_plan(hardware, workload, **fixed), "by rules; --autotune measures"
    return (plan if can_restart else without_unavailable(plan, fixed)), origin


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
