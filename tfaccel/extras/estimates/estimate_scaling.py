"""`estimate_scaling`: predicted speed, efficiency and cost on more devices, from the measured step of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tfaccel.argument_types import checks_types
from tfaccel.errors import PlanError, WorkloadError
from tfaccel.extras.estimates.interconnect import Interconnect
from tfaccel.extras.estimates.loopback import loopback_interconnect
from tfaccel.extras.estimates.scaling import ScalingEstimate, ScalingOptions, checked_replicas, scaling_rows
from tfaccel.hardware.detect import detect_hardware
from tfaccel.hardware.hardware import Hardware
from tfaccel.measuring.candidate_child import CandidateServers, measured_steps
from tfaccel.measuring.workload_task import make_task
from tfaccel.planning.candidates import default_plan, taken_fields
from tfaccel.planning.load_workload import as_workload
from tfaccel.planning.option_checks import check_seconds
from tfaccel.planning.plan import Plan
from tfaccel.planning.step_of_one_device import StepOfOneDevice

LIMIT_SECONDS = 120.0
_SMALLER = 4  # how many times smaller the second batch is from which the fixed part of a step is found
_SEED = 0
_PROGRAM = "tfaccel.extras.estimates.step_facts_program"

Progress = Callable[[str], None]


@checks_types(WorkloadError)
def estimate_scaling(
    workload: Any,
    *,
    replicas: Iterable[int] = (1, 2, 4, 8, 16, 32, 64),
    interconnect: Interconnect | None = None,
    step_seconds: float | None = None,
    assume: ScalingOptions | None = None,
    progress: Progress = lambda text: None,
    **options: Any,
) -> ScalingEstimate:
    """Predicts the speed, efficiency and cost of data-parallel training on more devices.

    The time of a step is that of one device, measured here, plus that of an all-reduce of the gradients in the
    latency-bandwidth (alpha-beta) model; see `tfaccel.extras.estimates.interconnect`. Stragglers, slow input and
    congestion are not modelled: expect less than the prediction.

    Args:
        workload: a `Workload`, a recipe's name, an import path, or a function, as for `tfaccel.train`.
        replicas: numbers of devices. Machines are filled one after the other.
        interconnect: what connects them; None to measure it between two worker processes on this machine.
        step_seconds: the time of a step of one device without communication; None to measure it here, on the first
            GPU or on the CPU.
        assume: what the prediction assumes; None for the defaults.
        progress: called with a line before each measurement.
        **options: plan fields, such as `global_batch_size` (of one device, or of all with scaling="strong") and
            `dtype_policy`; and whatever `tfaccel.train` takes to make a workload.

    Raises:
        PlanError: for invalid numbers of replicas, options or plan fields, or if the step cannot be measured.
        WorkloadError: if the model cannot be built.
        ClusterError: if the network between two local workers cannot be measured.

    Example:
        >>> link = Interconnect(name="10 GbE", machine_latency_seconds=5e-5, machine_bytes_per_second=1.25e9)
        >>> estimate = estimate_scaling(
        ...     "image_classification", replicas=[1, 8], interconnect=link, step_seconds=0.01
        ... )
        >>> [f"{row.efficiency:.1%}" for row in estimate.rows]
        ['100.0%', '89.8%']
    """
    numbers, assume = checked_replicas(replicas), assume or ScalingOptions()
    fixed = taken_fields(options)
    made = as_workload(workload, **options)
    hardware = replace(detect_hardware(), cluster=None)
    device = next((one.name for one in hardware.gpus), "CPU:0")
    plan = default_plan(hardware, made, **{"strategy": "none", "devices": (device,), **fixed})
    if plan.num_replicas > 1:
        raise PlanError(
            f"The step of one device is measured. Received: strategy={plan.strategy!r}, devices={list(plan.devices)}, "
            f"num_workers={plan.num_workers}. Leave strategy and devices out, or give one device."
        )
    _check(plan, numbers, step_seconds, assume)
    task = make_task(workload, options, made=made, seed=_SEED)
    progress("building the model")
    facts = step_facts(task, plan)
    step = StepOfOneDevice(
        **_times(task, plan, step_seconds, assume, progress),
        **(_device(plan, hardware) if step_seconds is None else {}),
        batch_size=plan.global_batch_size,
        gradient_bytes=facts.gradient_bytes,
        num_train_examples=made.num_train_examples,
    )
    link = interconnect or loopback_interconnect(hardware, progress=progress)
    rows = scaling_rows(step, link, numbers, assume)
    return ScalingEstimate(workload=made.name, options=assume, step=step, interconnect=link, rows=rows)


def _check(plan: Plan, numbers: Sequence[int], step_seconds: float | None, assume: ScalingOptions) -> None:
    """Raises PlanError for numbers that do not fit, before anything is measured."""
    is_given = step_seconds is not None
    if is_given:
        check_seconds(step_seconds=step_seconds)
    step = StepOfOneDevice(
        step_seconds=step_seconds if step_seconds is not None else 1.0,
        fixed_seconds=(assume.fixed_step_seconds or 0.0) if is_given else 0.0,
        batch_size=plan.global_batch_size,
        gradient_bytes=(),
    )
    scaling_rows(
        step, Interconnect(name="", machine_latency_seconds=0.0, machine_bytes_per_second=1.0), numbers, assume
    )


def _times(
    task: Mapping[str, Any], plan: Plan, given: float | None, assume: ScalingOptions, progress: Progress
) -> dict[str, Any]:
    """The fields of `StepOfOneDevice` about time."""
    fixed = assume.fixed_step_seconds
    if given is not None:
        return {"step_seconds": given, "fixed_seconds": fixed or 0.0}
    plans = {"whole batch": plan}
    small = smaller_batch(plan.global_batch_size, plan.accumulation_steps)
    if assume.scaling == "strong" and fixed is None and small < plan.global_batch_size:
        plans["smaller batch"] = replace(plan, global_batch_size=small)
    progress("measuring the training step")
    found = measured_steps(task, plans, limit_seconds=LIMIT_SECONDS)
    whole = found["whole batch"]
    if "smaller batch" in found:
        fixed = fixed_part(whole.seconds, whole.batch_size, found["smaller batch"].seconds, small)
    return {
        "step_seconds": whole.seconds,
        "fixed_seconds": min(fixed or 0.0, whole.seconds),
        "source": "measured",
        "spread": whole.spread,
    }


def _device(plan: Plan, hardware: Hardware) -> dict[str, Any]:
    """The fields of `StepOfOneDevice` about the device on which it was measured."""
    device = plan.devices[0]
    models = {one.name: one.model for one in hardware.devices}
    model = hardware.cpu_model if device.startswith("CPU") else models.get(device, "")
    return {"device": device, "device_model": model}


def smaller_batch(global_batch_size: int, accumulation_steps: int) -> int:
    """The second batch size: about a quarter of the first one, which the micro-batches divide.

    Example:
        >>> smaller_batch(36, 1), smaller_batch(36, 4), smaller_batch(4, 4)
        (9, 8, 4)
    """
    micro_batch_size = global_batch_size // _SMALLER // accumulation_steps
    return accumulation_steps * max(1, micro_batch_size)


def fixed_part(seconds: float, batch_size: int, smaller_seconds: float, smaller_batch_size: int) -> float:
    """The part of a step's time that does not depend on the batch, from the times with two batch sizes.

    Example:
        >>> fixed_part(1.0, 8, 0.7, 4)
        0.4
    """
    per_example = (seconds - smaller_seconds) / (batch_size - smaller_batch_size)
    return round(min(seconds, max(0.0, seconds - per_example * batch_size)), 12)


@dataclass(frozen=True, kw_only=True)
class StepFacts:
    """What one training step computes and moves.

    Args:
        gradient_bytes: of each gradient, in the order of the trainable weights.
        batch_bytes: of a batch, as it is copied to a device.
        operations: floating-point operations of matrix products and convolutions; None if they cannot be counted.
        num_kernels: operations that a device launches; None as above.
        moved_bytes: bytes that they read and write; None as above.
        uncounted: why they cannot be counted; empty if they can.
    """

    gradient_bytes: tuple[int, ...]
    batch_bytes: int
    operations: int | None = None
    num_kernels: int | None = None
    moved_bytes: int | None = None
    uncounted: str = ""


def step_facts(task: Mapping[str, Any], plan: Plan) -> StepFacts:
    """Builds the model of a task's workload in a child process, and traces its training step.

    Args:
        task: see `tfaccel.measuring.workload_task.make_task`.
        plan: its dtype policy and batch size are used; the step is that of one CPU.
    """
    size = plan.replica_batch_size
    alone = Plan(strategy="none", devices=("CPU:0",), global_batch_size=size, dtype_policy=plan.dtype_policy)
    with CandidateServers() as servers:
        server = servers.of(alone)
        child = server.start("step-facts", _PROGRAM, [], {})
        child.send({**task, "plan": alone.to_json()})
        try:
            answer = server.get_message(child, LIMIT_SECONDS)
        except TimeoutError:
            text = f"The model could not be built: the process took longer than {LIMIT_SECONDS:g} seconds."
            raise WorkloadError(text) from None
        if answer is None:
            how = f"{child.how_it_ended()}. {server.end_of_log(child)}"
            raise WorkloadError(f"The model could not be built: the process {how}"[:500])
        if answer["event"] == "failed":
            raise WorkloadError(f"The model could not be built: {answer['cause']}")
        return StepFacts(**answer["facts"])
