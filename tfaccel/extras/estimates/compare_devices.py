"""`compare_devices`: whether a GPU pays for a workload, measured where the device is here, otherwise estimated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tfaccel.argument_types import checks_types
from tfaccel.errors import HardwareError, PlanError, WorkloadError
from tfaccel.extras.estimates.device_comparison import (
    GPUS,
    DeviceComparison,
    DeviceTime,
    GpuAssumptions,
    gpu_peaks,
    gpu_step,
    known_gpu,
)
from tfaccel.extras.estimates.estimate_scaling import LIMIT_SECONDS, Progress, StepFacts, step_facts
from tfaccel.hardware.detect import detect_hardware
from tfaccel.hardware.hardware import Device, Hardware
from tfaccel.measuring.candidate_child import StepTime, measured_steps
from tfaccel.measuring.workload_task import make_task
from tfaccel.planning.candidates import default_plan, taken_fields
from tfaccel.planning.load_workload import as_workload
from tfaccel.planning.moves import MEASURED
from tfaccel.planning.plan import Plan
from tfaccel.planning.plan_cache import cached_plan
from tfaccel.planning.workload import Workload
from tfaccel.short_repr import noun

_SEED = 0


@noun(error=PlanError)
class ComparisonOptions:
    """What is known already, or fixed.

    Args:
        cpu_step_seconds, gpu_step_seconds: time of a training step; None to measure or estimate it.
        epochs: passes over the data; None for the workload's recommendation, or 1.
        num_examples: examples in an epoch; None for the workload's own.

    Raises:
        PlanError: for a value that is not positive.
    """

    cpu_step_seconds: float | None = None
    gpu_step_seconds: float | None = None
    epochs: int | None = None
    num_examples: int | None = None

    def __post_init__(self) -> None:
        for name in ("cpu_step_seconds", "gpu_step_seconds", "epochs", "num_examples"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise PlanError(f"{name} must be positive. Received: {name}={value}.")


@checks_types(WorkloadError)
def compare_devices(
    workload: Any,
    *,
    hardware: Hardware | None = None,
    assume: GpuAssumptions | None = None,
    given: ComparisonOptions | None = None,
    progress: Progress = lambda text: None,
    **options: Any,
) -> DeviceComparison:
    """Compares training on a CPU and on a GPU: time of an epoch, and the data size from which the GPU pays.

    The CPU's step is measured on this machine, with the plan that `tfaccel.find_fastest` has kept for these fixed
    fields, or with that of the rules. The GPU's is measured if this machine has that GPU. Otherwise it is estimated
    from the operations, bytes and kernels of the traced step and the GPU's published peak rates; see
    `tfaccel.extras.estimates.device_comparison.gpu_step`.

    Args:
        workload: a `Workload`, a recipe's name, an import path, or a function, as for `tfaccel.train`.
        hardware: the machine with the GPU; None for this one.
        assume: what the estimate assumes; None for the defaults.
        given: times that are known already, the number of epochs and of examples.
        progress: called with a line before each measurement.
        **options: plan fields, such as `global_batch_size`; and whatever `tfaccel.train` takes to make a workload.

    Raises:
        HardwareError: if the machine has no GPU, or one whose peak rates are not known.
        PlanError: if a plan field is invalid, or the step cannot be measured.
        WorkloadError: if the model cannot be built, or its operations cannot be counted.

    Example:
        >>> machine = Hardware(devices=(Device(kind="GPU", index=0, model="Tesla T4"),))
        >>> times = ComparisonOptions(cpu_step_seconds=0.01, gpu_step_seconds=0.001, epochs=1)
        >>> compare_devices("image_classification", hardware=machine, given=times).break_even_examples
        71112
    """
    here = replace(detect_hardware(), cluster=None)
    assume, given = assume or GpuAssumptions(), given or ComparisonOptions()
    gpu, is_here = get_gpu(hardware, here)
    fixed = taken_fields(options, hardware=hardware)
    for name in ("strategy", "devices"):
        if name in fixed:
            raise PlanError(f"The comparison chooses {name}. Received: {name}={fixed[name]!r}. Leave it out.")
    made = as_workload(workload, **options)
    cpu_plan, gpu_plan = (plan_on(device, here, made, fixed) for device in (None, gpu))
    task = make_task(workload, options, made=made, seed=_SEED)
    measured = _measured(task, cpu_plan, gpu_plan if is_here else None, given, progress)
    cpu = _cpu_time(cpu_plan, here, measured.get("cpu"), given, hardware)
    if "gpu" in measured:
        gpu_time = _measured_time("gpu", gpu.model, measured["gpu"], _plan_notes(gpu_plan))
    elif given.gpu_step_seconds is not None:
        gpu_time = DeviceTime(
            kind="gpu",
            device=gpu.model,
            source="given",
            batch_size=gpu_plan.global_batch_size,
            step_seconds=given.gpu_step_seconds,
            start_seconds=cpu.start_seconds + assume.start_seconds,
            notes=(_start_note(assume),),
        )
    else:
        gpu_peaks(gpu)  # before the model is built
        progress("counting the operations of the training step")
        facts = step_facts(task, gpu_plan)
        gpu_time = estimated_gpu(gpu, gpu_plan, facts, assume, cpu.start_seconds)
    return DeviceComparison(
        workload=made.name,
        epochs=given.epochs or made.epochs or 1,
        num_examples=given.num_examples or made.num_train_examples,
        cpu=cpu,
        gpu=gpu_time,
    )


def plan_on(gpu: Device | None, here: Hardware, workload: Workload, fixed: Mapping[str, Any]) -> Plan:
    """The plan for one GPU, or for the CPU: the one that `find_fastest` has kept if it is for that, or the rules'."""
    device = "CPU:0" if gpu is None else gpu.name
    known = cached_plan(here, workload, fixed)
    if known is not None and (gpu is None or gpu in here.gpus):
        devices = known.plan.devices
        if devices == (device,) or (gpu is None and devices[0].startswith("CPU")):
            return known.plan
    machine = replace(here, devices=() if gpu is None else (gpu,))
    return default_plan(machine, workload, **fixed, strategy="none", devices=(device,))


def _plan_notes(plan: Plan) -> list[str]:
    """Which plan was measured."""
    is_kept = any(reason.startswith(MEASURED) for _, reason in plan.reasons)
    whose = "the plan that `tfaccel find-fastest` has measured" if is_kept else "the plan of the rules"
    return [f"{whose}, dtype policy {plan.dtype_policy}"]


def estimated_gpu(
    gpu: Device, plan: Plan, facts: StepFacts, assume: GpuAssumptions, cpu_start_seconds: float
) -> DeviceTime:
    """The estimated time on a GPU.

    Raises:
        HardwareError: if its peak rates are not known.
        WorkloadError: if the operations could not be counted.
    """
    peaks, found = gpu_peaks(gpu)
    if facts.operations is None or facts.num_kernels is None or facts.moved_bytes is None:
        raise WorkloadError(
            f"The time on the GPU cannot be estimated. {facts.uncounted} Give the time of a training step on the GPU: "
            "--gpu_step_seconds, or ComparisonOptions(gpu_step_seconds=...)."
        )
    counts = {"num_kernels": facts.num_kernels, "moved_bytes": facts.moved_bytes, "batch_bytes": facts.batch_bytes}
    parts = gpu_step(peaks, assume, dtype_policy=plan.dtype_policy, operations=facts.operations, counts=counts)
    step_seconds = parts.pop("step")
    peak = peaks.operations_per_second(plan.dtype_policy)
    notes = (
        f"{facts.operations:,} floating-point operations per step in {plan.dtype_policy}, at "
        f"{assume.reached_fraction:.0%} of {peak / 1e12:.4g} Tflop/s ({found})",
        f"{facts.moved_bytes:,} bytes of memory traffic if nothing is fused, and {facts.batch_bytes:,} bytes of input "
        f"over PCIe, at {assume.reached_bandwidth_fraction:.0%} of {peaks.memory / 1e9:.4g} and {peaks.pcie / 1e9:.4g} "
        "GB/s",
        f"{facts.num_kernels:,} operations launched by the host, {1e6 * assume.kernel_seconds:.3g} microseconds each; "
        "XLA and fused kernels launch fewer; the estimate does not assume them",
        _start_note(assume),
    )
    return DeviceTime(
        kind="gpu",
        device=gpu.model or peaks.name,
        source="estimated",
        batch_size=plan.global_batch_size,
        step_seconds=step_seconds,
        start_seconds=cpu_start_seconds + assume.start_seconds,
        parts=parts,
        notes=notes,
    )


def get_gpu(hardware: Hardware | None, here: Hardware) -> tuple[Device, bool]:
    """The GPU to compare with, and whether this machine has it."""
    machine = hardware or here
    if not machine.gpus:
        where = "This machine has no GPU" if hardware is None else "The hardware file describes no GPU"
        raise HardwareError(
            f"{where}. Give --hardware=FILE with a GPU, such as "
            '{"devices": [{"kind": "GPU", "index": 0, "model": "NVIDIA T4"}]}. '
            f"Known models: {', '.join(gpu.name for gpu in GPUS)}."
        )
    gpu = machine.gpus[0]
    same = next((one for one in here.gpus if one.model == gpu.model), None)
    if same is not None:
        return same, True
    peaks = known_gpu(gpu.model)
    if peaks is not None and gpu.compute_capability is None:  # which decides about mixed precision
        gpu = replace(gpu, compute_capability=peaks.compute_capability)
    return replace(gpu, index=0), False


def _measured(
    task: Mapping[str, Any], cpu: Plan, gpu: Plan | None, given: ComparisonOptions, progress: Progress
) -> dict[str, StepTime]:
    known = {"cpu": (cpu, given.cpu_step_seconds), "gpu": (gpu, given.gpu_step_seconds)}
    plans = {name: plan for name, (plan, seconds) in known.items() if plan is not None and seconds is None}
    if not plans:
        return {}
    progress(f"measuring the training step ({', '.join(plans)})")
    return measured_steps(task, plans, limit_seconds=LIMIT_SECONDS)


def _cpu_time(
    plan: Plan, here: Hardware, measured: StepTime | None, given: ComparisonOptions, hardware: Hardware | None
) -> DeviceTime:
    if measured is None:
        return DeviceTime(
            kind="cpu",
            device=here.cpu_model,
            source="given",
            batch_size=plan.global_batch_size,
            step_seconds=given.cpu_step_seconds or 0.0,
            start_seconds=0.0,
            notes=("the time to start is not known, and counts as 0",),
        )
    notes = _plan_notes(plan)
    if hardware is not None and hardware.cpu_model not in ("unknown", here.cpu_model):
        notes.append(f"this machine's CPU, not the {hardware.cpu_model} of the hardware file")
    return _measured_time("cpu", here.cpu_model, measured, notes)


def _measured_time(kind: str, model: str, found: StepTime, notes: Any) -> DeviceTime:
    return DeviceTime(
        kind=kind,
        device=model,
        source="measured",
        batch_size=found.batch_size,
        step_seconds=found.seconds,
        start_seconds=found.start_seconds,
        notes=(*notes, f"spread of the windows {found.spread:.0%}"),
    )


def _start_note(assume: GpuAssumptions) -> str:
    return f"{assume.start_seconds:g} s to initialize CUDA and load its libraries, beyond what the CPU needs to start"
