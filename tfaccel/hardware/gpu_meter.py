"""How busy GPUs are, as NVIDIA's driver reports it; never through TensorFlow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from tfaccel.hardware.gpu import driver_gpus, visible_driver_gpus
from tfaccel.hardware.machine import Machine

_MIN_INTERVAL_SECONDS = 0.5  # the driver averages over about as long


def visible_gpu_ids(devices: Sequence[str], *, machine: Machine | None = None) -> tuple[str, ...]:
    """The driver's identifiers of a plan's GPUs, such as "GPU:0"; empty without GPUs, or if the driver is not found.

    Example:
        >>> visible_gpu_ids(("CPU:0",))
        ()
    """
    indices = [int(device.partition(":")[2]) for device in devices if device.startswith("GPU")]
    if not indices:
        return ()
    machine = machine or Machine.here()
    visible = visible_driver_gpus(driver_gpus(machine), machine.environ.get("CUDA_VISIBLE_DEVICES"))
    ids = [visible[index].uuid if index < len(visible) else "" for index in indices]
    return tuple(ids) if all(ids) else ()


class GpuMeter:
    """The mean utilization of some GPUs since the meter was made, from samples of NVIDIA's driver.

    A GPU counts as busy while at least one kernel runs on it, whatever part of it that kernel uses.

    Args:
        ids: the driver's identifiers; see `visible_gpu_ids`. Without any, nothing is measured.
        machine: whose driver is asked; this one by default.

    Example:
        >>> meter = GpuMeter(())
        >>> meter.sample()
        >>> meter.mean() is None
        True
    """

    def __init__(self, ids: Sequence[str], *, machine: Machine | None = None) -> None:
        self._nvml: Any = (machine or Machine.here()).import_nvml() if ids else None
        self._handles: list[Any] = []
        self._samples: list[float] = []
        self._next_at = 0.0
        if self._nvml is not None:
            try:
                self._nvml.nvmlInit()
                self._handles = [self._nvml.nvmlDeviceGetHandleByUUID(one) for one in ids]
            except self._nvml.NVMLError:
                self._nvml = None

    def sample(self) -> None:
        """Asks the driver, unless it was asked just before."""
        if self._nvml is None or time.monotonic() < self._next_at:
            return
        self._next_at = time.monotonic() + _MIN_INTERVAL_SECONDS
        try:
            rates = [self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100 for handle in self._handles]
        except self._nvml.NVMLError:  # a slice of a GPU does not report it
            self._nvml = None
            return
        self._samples.append(sum(rates) / len(rates))

    def mean(self) -> float | None:
        """The mean of all samples; None without any."""
        return sum(self._samples) / len(self._samples) if self._samples else None

    def reset(self) -> None:
        """Forgets the samples."""
        self._samples = []
