"""`DeviceComparison`: how long training takes on a CPU and on a GPU, and from which data size on the GPU pays."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfaccel.errors import HardwareError, PlanError
from tfaccel.hardware.hardware import Device
from tfaccel.records import Record
from tfaccel.short_repr import noun


@noun(error=PlanError)
class GpuAssumptions:
    """What the estimate of a GPU's step assumes. The defaults are round numbers, not measurements.

    Args:
        reached_fraction: of the peak rate of arithmetic.
        reached_bandwidth_fraction: of the bandwidths of memory and PCIe.
        kernel_seconds: time that the host needs to launch one operation.
        start_seconds: time to initialize CUDA and load its libraries, beyond what the CPU needs to start.

    Raises:
        PlanError: if a fraction is not in (0, 1], or a time is negative.
    """

    reached_fraction: float = 0.3
    reached_bandwidth_fraction: float = 0.7
    kernel_seconds: float = 8e-6
    start_seconds: float = 10.0

    def __post_init__(self) -> None:
        for name in ("reached_fraction", "reached_bandwidth_fraction"):
            if not 0 < (value := getattr(self, name)) <= 1:
                raise PlanError(f"{name} must be above 0, and at most 1. Received: {name}={value}.")
        for name in ("kernel_seconds", "start_seconds"):
            if not 0 <= (value := getattr(self, name)) < math.inf:
                raise PlanError(f"{name} must be at least 0. Received: {name}={value}.")


@noun
class DeviceTime(Record):
    """How long training takes on one kind of device.

    Args:
        kind: "cpu" or "gpu".
        device: its model.
        source: "measured", "estimated" or "given".
        batch_size: examples per step.
        step_seconds: of one training step.
        start_seconds: before the first step at full speed.
        parts: what an estimated step consists of: name -> seconds.
        notes: what the times rest on.
    """

    _ignores_others = True

    kind: str
    device: str
    source: str
    batch_size: int
    step_seconds: float
    start_seconds: float
    parts: Mapping[str, float] | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.step_seconds < math.inf:
            raise PlanError(f"step_seconds must be positive. Received: step_seconds={self.step_seconds}.")

    @property
    def example_seconds(self) -> float:
        """Time per example."""
        return self.step_seconds / self.batch_size

    def total_seconds(self, num_examples: int, epochs: int) -> float:
        """Start and training."""
        return self.start_seconds + epochs * num_examples * self.example_seconds


@noun
class DeviceComparison(Record):
    """The times of a workload on a CPU and on a GPU.

    Args:
        workload: its name.
        epochs: passes over the data.
        num_examples: examples in an epoch; None if unknown.
        cpu, gpu: the times.

    Example:
        >>> def time(kind, step_seconds, start_seconds):
        ...     return DeviceTime(
        ...         kind=kind, device="", source="given", batch_size=1, step_seconds=step_seconds,
        ...         start_seconds=start_seconds,
        ...     )
        >>> def compared(cpu, gpu):
        ...     return DeviceComparison(workload="made_up", epochs=1, num_examples=None, cpu=cpu, gpu=gpu)
        >>> compared(time("cpu", 3.0, 0.0), time("gpu", 1.0, 10.0)).break_even_examples
        6
        >>> compared(time("cpu", 1.0, 0.0), time("gpu", 1.0, 10.0)).break_even_examples is None
        True
        >>> compared(time("cpu", 1.0, 5.0), time("gpu", 2.0, 0.0)).max_gpu_examples
        4
    """

    _ignores_others = True

    workload: str
    epochs: int
    num_examples: int | None
    cpu: DeviceTime
    gpu: DeviceTime

    @property
    def break_even_examples(self) -> int | None:
        """The number of examples in an epoch from which on the GPU takes less time in all; None if there is none."""
        gained = self.epochs * (self.cpu.example_seconds - self.gpu.example_seconds)  # by each example
        lost = self.gpu.start_seconds - self.cpu.start_seconds
        if lost < 0 and gained >= 0:
            return 1
        return None if gained <= 0 else max(1, math.floor(lost / gained) + 1)

    @property
    def max_gpu_examples(self) -> int | None:
        """The largest number of examples in an epoch for which a GPU that starts sooner, but takes longer per example,
        takes less time in all; None if there is none.
        """
        lost = self.epochs * (self.gpu.example_seconds - self.cpu.example_seconds)  # by each example
        gained = self.cpu.start_seconds - self.gpu.start_seconds
        if lost <= 0 or gained <= 0:
            return None
        return math.ceil(gained / lost) - 1 or None

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values, and what follows from them."""
        rows = {}
        for one in (self.cpu, self.gpu):
            known = self.num_examples is not None
            rows[one.kind] = {
                **one.to_json(),
                "examples_per_second": 1 / one.example_seconds,
                "epoch_seconds": one.example_seconds * (self.num_examples or 0) if known else None,
                "total_seconds": one.total_seconds(self.num_examples or 0, self.epochs) if known else None,
            }
        return {
            "workload": self.workload,
            "epochs": self.epochs,
            "num_examples": self.num_examples,
            **rows,
            "break_even_examples": self.break_even_examples,
            "max_gpu_examples": self.max_gpu_examples,
            "gpu_pays": None if self.num_examples is None else self.gpu_pays,
        }

    @property
    def gpu_pays(self) -> bool:
        """Whether the GPU takes less time in all for the workload's own number of examples."""
        size = self.num_examples or 0
        return self.gpu.total_seconds(size, self.epochs) < self.cpu.total_seconds(size, self.epochs)


def gpu_step(
    peaks: GpuPeaks, assume: GpuAssumptions, *, dtype_policy: str, operations: int, counts: Mapping[str, int]
) -> dict[str, float]:
    """What a training step on a GPU consists of: name -> seconds; "step" is what they amount to.

    The host launches operations while the GPU computes, so that the longer of the two counts. The batch is copied
    before. Memory traffic counts as if no operations were fused, in addition to the arithmetic.

    Args:
        peaks: of the GPU.
        assume: what is assumed.
        dtype_policy: of the plan.
        operations: floating-point operations of the step.
        counts: "num_kernels", "moved_bytes" and "batch_bytes" of the step.

    Example:
        >>> peaks = GpuPeaks("a GPU", (8, 0), 1e12, None, 2e12, 1e9, 1e9)
        >>> assume = GpuAssumptions(reached_fraction=0.5, reached_bandwidth_fraction=1.0, kernel_seconds=1e-3)
        >>> counts = {"num_kernels": 100, "moved_bytes": 10**9, "batch_bytes": 5 * 10**8}
        >>> gpu_step(peaks, assume, dtype_policy="float32", operations=10**12, counts=counts)
        {'arithmetic': 2.0, 'memory': 1.0, 'launches': 0.1, 'transfer': 0.5, 'step': 3.5}
    """
    arithmetic = operations / (assume.reached_fraction * peaks.operations_per_second(dtype_policy))
    memory = counts["moved_bytes"] / (assume.reached_bandwidth_fraction * peaks.memory)
    launches = counts["num_kernels"] * assume.kernel_seconds
    transfer = counts["batch_bytes"] / (assume.reached_bandwidth_fraction * peaks.pcie)
    return {
        "arithmetic": arithmetic,
        "memory": memory,
        "launches": launches,
        "transfer": transfer,
        "step": max(arithmetic + memory, launches) + transfer,
    }


# Published peak rates of NVIDIA GPUs.

_TERA, _GIGA = 1e12, 1e9
_BFLOAT16_FROM = (8, 0)


@dataclass(frozen=True)
class GpuPeaks:
    """Peak rates of a GPU.

    Args:
        name: the product.
        compute_capability: NVIDIA's.
        float32: floating-point operations per second in float32, without TensorFloat-32.
        tensor_float32: the same with TensorFloat-32, which TensorFlow uses for float32 where the GPU has it; None if
            it does not.
        half: in float16, and in bfloat16 from compute capability 8.0 on.
        memory: bytes per second of the GPU's memory.
        pcie: bytes per second from the host, one direction.
    """

    name: str
    compute_capability: tuple[int, int]
    float32: float
    tensor_float32: float | None
    half: float
    memory: float
    pcie: float

    def operations_per_second(self, dtype_policy: str) -> float:
        """The peak for matrix products under a dtype policy: float32's for bfloat16 where the GPU has none.

        Example:
            >>> peaks = known_gpu("A100")
            >>> peaks.operations_per_second("float32"), peaks.operations_per_second("mixed_bfloat16")
            (156000000000000.0, 312000000000000.0)
        """
        has_bfloat16 = self.compute_capability >= _BFLOAT16_FROM
        is_half = dtype_policy == "mixed_float16" or (dtype_policy == "mixed_bfloat16" and has_bfloat16)
        return self.half if is_half else self.tensor_float32 or self.float32


def _gpu(
    name: str, capability: tuple[int, int], tera: tuple[float, float | None, float], memory: float, pcie: float
) -> GpuPeaks:
    float32, tensor_float32, half = tera
    tf32 = None if tensor_float32 is None else _TERA * tensor_float32
    return GpuPeaks(name, capability, _TERA * float32, tf32, _TERA * half, _GIGA * memory, _GIGA * pcie)


# The first that matches a model's name is taken: longer names first. "V100" and "A100" alone are the SXM cards, "P100"
# the PCIe card. The first of a compute capability that `_STANDS_FOR` names stands for models that are not here.
GPUS: tuple[GpuPeaks, ...] = (
    _gpu("P100 SXM2", (6, 0), (10.6, None, 21.2), 732, 16),
    _gpu("P100", (6, 0), (9.3, None, 18.7), 732, 16),
    _gpu("V100 PCIe", (7, 0), (14, None, 112), 900, 16),
    _gpu("V100", (7, 0), (15.7, None, 125), 900, 16),
    _gpu("T4", (7, 5), (8.1, None, 65), 320, 16),
    _gpu("A100 80GB PCIe", (8, 0), (19.5, 156, 312), 1935, 32),
    _gpu("A100 80GB", (8, 0), (19.5, 156, 312), 2039, 32),
    _gpu("A100", (8, 0), (19.5, 156, 312), 1555, 32),
    _gpu("A30", (8, 0), (10.3, 82, 165), 933, 32),
    _gpu("A10G", (8, 6), (35, 35, 70), 600, 32),
    _gpu("A10", (8, 6), (31.2, 62.5, 125), 600, 32),
    _gpu("A40", (8, 6), (37.4, 74.8, 149.7), 696, 32),
    _gpu("RTX 3090 Ti", (8, 6), (40, 40, 80), 1008, 32),
    _gpu("RTX 3090", (8, 6), (35.6, 35.6, 71), 936, 32),
    _gpu("L40S", (8, 9), (91.6, 183, 362), 864, 32),
    _gpu("L4", (8, 9), (30.3, 60, 121), 300, 32),
    _gpu("RTX 4090", (8, 9), (82.6, 82.6, 165.2), 1008, 32),
    _gpu("H200 NVL", (9, 0), (60, 417.5, 835.5), 4800, 64),
    _gpu("H200", (9, 0), (67, 494.5, 989.5), 4800, 64),
    _gpu("H100 NVL", (9, 0), (60, 417.5, 835.5), 3900, 64),
    _gpu("H100 PCIe", (9, 0), (51, 378, 756), 2000, 64),
    _gpu("H100", (9, 0), (67, 494.5, 989.5), 3350, 64),
)
_STANDS_FOR = {
    (6, 0): "P100",
    (7, 0): "V100",
    (7, 5): "T4",
    (8, 0): "A100",
    (8, 6): "A10",
    (8, 9): "L4",
    (9, 0): "H100",
}


def known_gpu(model: str) -> GpuPeaks | None:
    """The figures of a model by its name, as NVIDIA's driver gives it; None if it is not in the table.

    Example:
        >>> known_gpu("NVIDIA H100 80GB HBM3").name, known_gpu("NVIDIA L40S").name, known_gpu("Radeon") is None
        ('H100', 'L40S', True)
    """
    words = _words(model)
    if "laptop" in words:  # with the name of a desktop card, and about half of its speed
        return None
    return next((gpu for gpu in GPUS if set(_words(gpu.name)) <= set(words)), None)


def gpu_peaks(device: Device) -> tuple[GpuPeaks, str]:
    """The figures of a GPU, and how they were found: by its model, or by its compute capability.

    Example:
        >>> gpu_peaks(Device(kind="GPU", index=0, model="Tesla T4"))[1]
        'data sheet of T4'
        >>> gpu_peaks(Device(kind="GPU", index=0, model="new", compute_capability=(9, 0)))[1]
        'data sheet of H100, which has the same compute capability 9.0'
    """
    found = known_gpu(device.model)
    if found is not None:
        return found, f"data sheet of {found.name}"
    name = _STANDS_FOR.get(device.compute_capability or (0, 0))
    if name is None:
        raise HardwareError(
            f"The peak rates of {device.name} are not known. Received: model={device.model!r}, compute_capability="
            f"{device.compute_capability}. Known models: {', '.join(gpu.name for gpu in GPUS)}. Give the time of a "
            "training step on it (--gpu_step_seconds), or a model or compute capability of this table."
        )
    stand_in = next(gpu for gpu in GPUS if gpu.name == name)
    capability = ".".join(map(str, stand_in.compute_capability))
    return stand_in, f"data sheet of {name}, which has the same compute capability {capability}"


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.lower().replace("-", " "))
