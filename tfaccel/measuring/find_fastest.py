"""`find_fastest`: the fastest plan that computes what float32 computes, found by measuring on this machine."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from typing import Any

from tfaccel.errors import PlanError, WorkloadError
from tfaccel.hardware.detect import detect_hardware
from tfaccel.hardware.hardware import Hardware
from tfaccel.known_names import did_you_mean
from tfaccel.measuring.candidate_child import CandidateServers
from tfaccel.measuring.plan_search import PlanSearch
from tfaccel.measuring.report import MeasureOptions, Report, SearchProgress
from tfaccel.measuring.workload_task import make_task
from tfaccel.planning.cache import DAMAGES, say_ignored
from tfaccel.planning.candidates import default_plan, taken_fields
from tfaccel.planning.compile_arguments import data_after_model
from tfaccel.planning.load_workload import given_workload
from tfaccel.planning.moves import PROCESS_AXES
from tfaccel.planning.plan_cache import PLAN_IGNORED, CachedPlan, cached_plan, keep_plan
from tfaccel.planning.plan_environment import train_command
from tfaccel.planning.workload import Workload
from tfaccel.training.runtime import unavailable_settings

logger = logging.getLogger("tfaccel")

_OWN_ARGUMENTS = ("measure", "hardware", "progress")
_CLOSE = 0.8  # a misspelled name agrees so far with its own; below it, the workload's options are nearer
# What `given_workload` says of an option that the workload does not take.
_UNKNOWN = ("There is no option {!r}", "There is no argument {!r}", "takes no options. Received: {}")


@data_after_model
def find_fastest(
    workload: Any,
    x: Any = None,
    y: Any = None,
    *,
    measure: MeasureOptions | None = None,
    hardware: Hardware | None = None,
    progress: SearchProgress | None = None,
    **options: Any,
) -> Report:
    """Measures plans on this machine, and returns the fastest one that computes what float32 computes.

    The search begins with the plan of the rules (`tfaccel.default_plan`) and moves along one axis at a time: precision,
    XLA, oneDNN, fused kernels, devices, threads, input, memory allocators and others (`tfaccel.planning.moves.AXES`).
    Each plan trains in a process of its own, so that running out of memory, a crash or a hang is a recorded result. A
    challenger and the best plan so far run in turn, window by window, so that a temporary slowdown of the machine
    affects both. A plan is rejected if its loss is not finite, or departs from that of float32 without XLA on the same
    batches by more than 5 %. Nothing that is passed in is trained or changed.

    The result is kept in `TFACCEL_CACHE`, or else ~/.cache/tfaccel, where `tfaccel.train` finds it. A search that was
    interrupted (Ctrl-C) continues when it is called again.

    Args:
        workload: what to train: a `Workload`, a recipe's name, an import path, or a function, as for `tfaccel.train`.
        x, y: data, if `workload` is a model or a function that builds one; compile arguments in one piece, a dictionary
            or a function, come before them: `find_fastest(build_model, compile_args, x, y)`. Not a `tf.data.Dataset`,
            which cannot be sent to the processes that measure: pass arrays, the import path of a function that returns
            (build_model, dataset), or a `Workload`, whose `train_data` makes datasets.
        measure: how to measure; None for at most 12 plans in about 30 seconds, or 20 where earlier searches on this
            machine have shown which moves pay: those come first.
        hardware: the machine; None to detect it.
        progress: told about each plan before and after it is measured; see `SearchProgress`.
        **options: plan fields, whose values stay fixed; and whatever `tfaccel.train` takes to make a workload from
            `workload`, `x` and `y`.

    Returns:
        A `Report`; its `plan` can be passed to `tfaccel.train` and `tfaccel.fit`. A kept report is returned if it is of
        a search with the same or wider limits; otherwise that search continues.

    Raises:
        PlanError: if a fixed field cannot run here, this is one of several workers, the budget is too small to compare
            two plans, or no plan could be measured (the message lists the causes).
        WorkloadError: if the workload cannot be made, or cannot be sent to another process.

    Example:
        >>> import keras, numpy as np, tfaccel
        >>> def build_model():
        ...     return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        >>> x = np.ones((64, 4))
        >>> report = find_fastest(build_model, x, x[:, :1], loss="mse", measure=MeasureOptions(max_candidates=1))
        >>> report.plan.dtype_policy
        'float32'
    """
    fixed = taken_fields(options, hardware=hardware)
    made = _get_workload(workload, x, y, options)
    hardware = hardware or detect_hardware()
    _check_one_worker(hardware)
    measure = measure or MeasureOptions()
    key = {**fixed, "tune_batch": True} if measure.tune_batch else fixed
    left_out = () if measure.for_new_process else PROCESS_AXES if "tensorflow" in sys.modules else ("allocator",)
    known = cached_plan(hardware, made, key, tells_what_is_stale=False)
    usable = known if measure.use_cache else None
    earlier = None if usable is None else _read_report(usable)
    elsewhere = usable is not None and not measure.for_new_process and bool(unavailable_settings(usable.plan))
    if elsewhere:
        logger.info("The kept plan needs a new process, so plans are measured again, without what only that can set.")
        earlier = None
    if earlier is not None and earlier.covers(measure, left_out):
        return replace(earlier, from_cache=True, kept_in=str(usable.file) if usable else None)
    progress = progress or SearchProgress()
    search = PlanSearch(made, hardware, fixed, measure, progress=progress, left_out=left_out, earlier=earlier)

    def kept() -> Report:
        report = search.report()
        command = train_command(workload, options, report.plan, rules=default_plan(hardware, made))
        report = replace(report, command=command)
        replaces_complete = known is not None and bool(known.report.get("complete", True))
        is_more = search.has_earlier if earlier is not None else not replaces_complete
        if elsewhere or not (report.complete or is_more):
            return report
        file = keep_plan(hardware, made, key, report.plan, speedup=report.speedup, report=report.to_json())
        return replace(report, kept_in=None if file is None else str(file))

    with CandidateServers() as servers:
        try:
            search.run(servers, make_task(workload, options, made=made, seed=measure.seed, folder=servers.folder))
            return kept()
        except BaseException:
            if search.has_result:
                progress.interrupted(kept())
            raise


def _get_workload(workload: Any, x: Any, y: Any, options: dict[str, Any]) -> Workload:
    """The workload of the arguments; a misspelled argument of `find_fastest` itself is named as such.

    Raises:
        WorkloadError: as `given_workload`.
    """
    try:
        return given_workload(workload, x, y, **options)
    except WorkloadError as error:
        for name in options:
            hint = did_you_mean(name, _OWN_ARGUMENTS, closeness=_CLOSE)
            if hint and any(text.format(name) in str(error) for text in _UNKNOWN):
                raise WorkloadError(f"find_fastest() has no argument {name!r}.{hint}") from error
        raise


def _check_one_worker(hardware: Hardware) -> None:
    cluster = hardware.cluster
    if cluster is not None and cluster.num_workers > 1:
        raise PlanError(
            "Plans are measured on one machine, but all workers must train with the same plan. Received: a cluster of "
            f"{cluster.num_workers} workers ({cluster.source}). Measure where there is no cluster, and pass the fields "
            "that helped to all workers: --dtype_policy=..., --set=fused_kernels=on"
        )


def _read_report(known: CachedPlan) -> Report | None:
    """The report of a kept plan; None, and one line, if it is damaged."""
    try:
        report = Report.from_json(known.report)
        return report if report.plan == known.plan else None
    except DAMAGES as error:
        say_ignored(PLAN_IGNORED.format(known.file), error)
        return None
