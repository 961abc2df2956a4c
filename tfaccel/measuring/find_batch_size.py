"""`find_batch_size`: the largest batch that fits into memory, and the one that trains the most examples per second."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfaccel.argument_types import checks_types
from tfaccel.errors import PlanError, WorkloadError
from tfaccel.hardware.cpu import free_memory_bytes
from tfaccel.hardware.detect import detect_hardware
from tfaccel.hardware.hardware import Hardware
from tfaccel.hardware.machine import Machine
from tfaccel.measuring.batch_options import BatchOptions
from tfaccel.measuring.batch_report import BatchReport
from tfaccel.measuring.batch_search import BatchSearch, OnTrial
from tfaccel.measuring.candidate_servers import CandidateServers
from tfaccel.measuring.estimate_memory import device_bytes
from tfaccel.measuring.workload_task import make_task
from tfaccel.planning.candidates import default_plan, taken_fields
from tfaccel.planning.data_places import data_after_model
from tfaccel.planning.load_workload import given_workload
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload


@data_after_model
@checks_types(WorkloadError)
def find_batch_size(
    workload: Any,
    x: Any = None,
    y: Any = None,
    *,
    search: BatchOptions | None = None,
    hardware: Hardware | None = None,
    on_trial: OnTrial = lambda trial: None,
    **options: Any,
) -> BatchReport:
    """Finds the largest replica batch that fits into memory, and the one that trains the most examples per second.

    Each batch size trains for some steps in a process of its own, so that running out of memory is a recorded result:
    first the plan's, then twice as many, until memory or the data end; then the sizes between the largest that fits and
    the smallest that does not. A size that fits and the fastest so far run in turn, window by window, as long as memory
    is enough for both. On CPUs the peak resident size of the process counts, on GPUs TensorFlow's statistics; a CPU
    process that reaches the limit is ended. Nothing that is passed in is trained or changed.

    Args:
        workload: what to train: a `Workload`, a recipe's name, an import path, or a function, as for `tfaccel.train`.
        x, y: data, if `workload` is a model or a function that builds one.
        search: how to search; None for at most five minutes, and all available memory but 10 %.
        hardware: the machine; None to detect it.
        on_trial: called with each batch size once it has been measured.
        **options: plan fields, whose values stay fixed (`global_batch_size` is where the search begins); and whatever
            `tfaccel.train` takes to make a workload from `workload`, `x` and `y`.

    Raises:
        PlanError: if a fixed field cannot run here, an epoch has fewer examples than the smallest batch, or the first
            batch size fails for another reason than memory. If a later one does, the report names it.
        WorkloadError: if the workload cannot be made or sent to another process, or its data come in batches of a fixed
            size.

    Example:
        >>> import keras, numpy as np
        >>> def build_model():
        ...     return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        >>> x = np.ones((64, 4))
        >>> report = find_batch_size(build_model, x, x[:, :1], loss="mse", batch_size=64)
        >>> report.largest
        64
    """
    fixed = taken_fields(options)
    made = given_workload(workload, x, y, **options)
    _check_batches(made)
    hardware = hardware or detect_hardware()
    plan = default_plan(hardware, made, **fixed)
    if plan.num_workers > 1:
        raise PlanError(
            f"The batch size is searched in one process. Received: num_workers={plan.num_workers}. Search on one "
            "worker: its largest replica batch fits on all of the same kind."
        )
    search = search or BatchOptions()
    search = replace(search, memory_limit_bytes=_limit(search, plan, hardware))
    task = make_task(workload, options, made=made, seed=search.seed)
    found = BatchSearch(made.name, plan, search, num_examples=made.num_train_examples, on_trial=on_trial)
    folder = Path(tempfile.mkdtemp(prefix="tfaccel-"))
    servers = CandidateServers(folder)
    try:
        found.run(servers, task)
    except KeyboardInterrupt:
        if not found.report().trials:
            raise
    finally:
        servers.close()
        shutil.rmtree(folder, ignore_errors=True)
    report = found.report()
    if not report.trials:
        raise PlanError(f"budget_seconds={search.budget_seconds:g} is too small to try a batch size.")
    return report


def _check_batches(workload: Workload) -> None:
    """Raises WorkloadError for data whose batches have a fixed size."""
    size = getattr(workload.train_data, "batch_size", None)
    if size is not None:
        what = getattr(workload.train_data, "what", "dataset")
        raise WorkloadError(
            f"The {what} of {workload.name} has batches of {size} rows, which a search cannot change. Give arrays, or "
            "train_data(global_batch_size, *, seed, epoch) that makes batches of any size."
        )


def _limit(search: BatchOptions, plan: Plan, hardware: Hardware) -> int | None:
    """The memory limit: the user's, but never more than is available."""
    if not plan.devices[0].startswith("CPU"):
        known = [search.memory_limit_bytes, plan.gpu_memory_limit_bytes, device_bytes(plan, hardware)]
        return min((one for one in known if one is not None), default=None)
    free = free_memory_bytes(Machine.here())
    known = [search.memory_limit_bytes, hardware.memory_bytes, free]
    return min(one for one in known if one is not None)
