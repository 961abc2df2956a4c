"""`roofline`: how close a workload's training step comes to the limits of this machine."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfaccel.argument_types import checks_types
from tfaccel.errors import PlanError, WorkloadError
from tfaccel.hardware.detect import detect_hardware
from tfaccel.hardware.hardware import Hardware
from tfaccel.measuring.candidate import CandidateWindow
from tfaccel.measuring.candidate_child import CandidateChild
from tfaccel.measuring.candidate_servers import CandidateServers
from tfaccel.measuring.ceilings import known_or_measured
from tfaccel.measuring.duel import WINDOW_SECONDS
from tfaccel.measuring.loss_check import CHECKED_STEPS
from tfaccel.measuring.roofline_report import Roofline
from tfaccel.measuring.timed_child import CandidateFailed
from tfaccel.measuring.workload_task import make_task
from tfaccel.planning.candidates import taken_fields
from tfaccel.planning.data_places import data_after_model
from tfaccel.planning.kept_rooflines import keep_roofline
from tfaccel.planning.load_workload import given_workload
from tfaccel.planning.machine_ceilings import MachineCeilings
from tfaccel.planning.option_checks import check_seconds
from tfaccel.planning.plan_cache import chosen_plan
from tfaccel.planning.plan_key import plan_key
from tfaccel.planning.workload import Workload

_NUM_WINDOWS = 5


@data_after_model
@checks_types(WorkloadError)
def roofline(
    workload: Any,
    x: Any = None,
    y: Any = None,
    *,
    measure_again: bool = False,
    limit_seconds: float = 300.0,
    on_progress: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> Roofline:
    """Measures how close a workload's training step comes to the limits of this machine.

    Three measurements in processes of their own: the machine's limits, which are large matrix products in each dtype
    and copies of memory (once for a machine, kept in `TFACCEL_CACHE`, or else ~/.cache/tfaccel); the operations and
    bytes of a step, counted from its graph; and the time of a step, on CPUs without XLA also of its layers. The plan is
    the one that `tfaccel.train` would use. Nothing that is passed in is trained or changed. The result is kept there as
    well: `tfaccel report` shows it for runs of the same workload and plan.

    Args:
        workload: what to train: a `Workload`, a recipe's name, an import path, or a function, as for `tfaccel.train`.
        x, y: data, if `workload` is a model or a function that builds one.
        measure_again: measure the machine's limits even if they are known.
        limit_seconds: time limit for measuring the limits, for building the model, and for each timed window.
        on_progress: called with a line of text for each result.
        **options: plan fields; and whatever `tfaccel.train` takes to make a workload from `workload`, `x` and `y`.

    Returns:
        A `Roofline`.

    Raises:
        PlanError: if the plan cannot run here, several workers would train, or a process fails; the message says why.
        WorkloadError: if the workload cannot be made, or cannot be sent to another process.

    Example:
        >>> import keras, numpy as np, tfaccel
        >>> def build_model():
        ...     return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        >>> x = np.ones((64, 4))
        >>> found = roofline(build_model, x, x[:, :1], loss="mse", batch_size=32)
        >>> found.cost.matrix_flops, 0 < found.mfu < 1
        (512, True)
    """
    check_seconds(limit_seconds=limit_seconds)
    fixed = taken_fields(options)
    made = given_workload(workload, x, y, **options)
    hardware = detect_hardware()
    plan = chosen_plan(hardware, made, **fixed)
    if plan.num_workers > 1 or plan.strategy == "tpu":
        raise PlanError(
            "A roofline is measured on a single machine, with CPUs or GPUs. Received: a plan with "
            f"strategy={plan.strategy!r}, num_workers={plan.num_workers}. Unset TF_CONFIG, or choose --devices."
        )
    task, workload_key = make_task(workload, options, made=made), plan_key(hardware, made, {})
    folder = Path(tempfile.mkdtemp(prefix="tfaccel-"))
    servers = CandidateServers(folder)
    try:
        ceilings = known_or_measured(
            servers, hardware, plan, again=measure_again, limit_seconds=limit_seconds, on_progress=on_progress
        )
        child = CandidateChild(servers.of(plan), task, plan, "roofline", limit_seconds=limit_seconds, marks_layers=True)
        try:
            found = _measured(child, made, hardware, ceilings, on_progress)
            keep_roofline(workload_key, plan, found.to_json())
            return found
        except CandidateFailed as error:
            raise PlanError(f"The step of {made.name!r} could not be measured. {error}") from error
        finally:
            child.end()
    finally:
        servers.close()
        shutil.rmtree(folder, ignore_errors=True)


def _measured(
    child: CandidateChild, workload: Workload, hardware: Hardware, ceilings: MachineCeilings, on_progress: Any
) -> Roofline:
    child.build(CHECKED_STEPS)
    cost = child.step_cost()
    on_progress(f"a step computes {cost.matrix_flops / 1e9:,.3g} GFLOP in matrix products and convolutions")
    probe = child.warm_up(CHECKED_STEPS)
    times = child.layer_seconds()  # now: after some 90 steps, TensorFlow no longer traces cheap operations
    num_steps = max(2, round(WINDOW_SECONDS * probe.num_steps / probe.seconds))
    windows = [child.window(num_steps) for _ in range(_NUM_WINDOWS)]
    step_seconds = statistics.median(window.seconds / window.num_steps for window in windows)
    on_progress(f"a step takes {1e3 * step_seconds:,.3g} ms")
    busy = _mean(windows, lambda one: one.gpu_utilization)
    waits = _mean(windows, lambda one: None if one.waited_seconds is None else one.waited_seconds / one.seconds)
    plan = child.candidate.plan
    if plan.devices[0].startswith("GPU") and waits is not None:  # an upper bound: a GPU that computes does not wait
        waits = None if busy is None else min(waits, 1 - busy)
    computed = step_seconds * (1 - min(1.0, max(0.0, waits or 0.0)))
    traced = sum(times.values())  # the profiler makes steps slower
    cores = max(1, hardware.num_usable_cores)
    return Roofline(
        workload=workload.name,
        plan=plan,
        ceilings=ceilings,
        cost=cost,
        step_seconds=step_seconds,
        layer_seconds={name: seconds * computed / traced for name, seconds in times.items()},
        input_wait_share=None if waits is None else min(1.0, max(0.0, waits)),
        cpu_utilization=(_mean(windows, lambda one: (one.cpu_seconds or 0.0) / one.seconds) or 0.0) / cores,
        gpu_utilization=busy,
    )


def _mean(windows: list[CandidateWindow], value: Callable[[CandidateWindow], float | None]) -> float | None:
    """The mean over the windows, weighted by their time; None if it is unknown for one."""
    found = [(value(window), window.seconds) for window in windows]
    if any(one is None for one, _ in found):
        return None
    return sum((one or 0.0) * seconds for one, seconds in found) / sum(seconds for _, seconds in found)
