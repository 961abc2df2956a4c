"""NVIDIA GPUs as the driver reports them, never through TensorFlow: which there are, and how busy."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfaccel.hardware.hardware import Device
from tfaccel.hardware.machine import Machine

# The libraries that TensorFlow for CUDA 12 needs, and the package that provides each.
CUDA_12_LIBRARIES = {
    "libcudart.so.12": "nvidia-cuda-runtime-cu12",
    "libcublas.so.12": "nvidia-cublas-cu12",
    "libcublasLt.so.12": "nvidia-cublas-cu12",
    "libcufft.so.11": "nvidia-cufft-cu12",
    "libcusolver.so.11": "nvidia-cusolver-cu12",
    "libcusparse.so.12": "nvidia-cusparse-cu12",
    "libcudnn.so.9": "nvidia-cudnn-cu12",
}
_QUERY = ("uuid", "name", "memory.total", "driver_version", "compute_cap")
_MIN_INTERVAL_SECONDS = 0.5  # the driver averages over about as long


@dataclass(frozen=True, kw_only=True)
class DriverGpu:
    """A GPU as reported by the driver: the device, numbered in the driver's order, and its identifier."""

    device: Device
    uuid: str = ""


def find_gpus(machine: Machine) -> tuple[Device, ...]:
    """The GPUs that TensorFlow may use: those of the driver, selected and ordered by CUDA_VISIBLE_DEVICES.

    CUDA numbers GPUs of different models fastest first unless CUDA_DEVICE_ORDER is PCI_BUS_ID; here they are in bus
    order.
    """
    return visible_gpus(driver_gpus(machine), machine.environ.get("CUDA_VISIBLE_DEVICES"))


def driver_gpus(machine: Machine) -> tuple[DriverGpu, ...]:
    """All GPUs that the driver reports: through its library, else `nvidia-smi`, else its files under /proc."""
    return next((tuple(found) for ask in (_ask_nvml, _ask_nvidia_smi, _ask_proc) if (found := ask(machine))), ())


def visible_gpus(gpus: Sequence[DriverGpu], selection: str | None) -> tuple[Device, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES names, renumbered.

    As in CUDA, the list ends at the first entry that names no GPU, so "" and "-1" hide all; an identifier may be
    abbreviated. A slice of a GPU ("MIG-...") counts as a device of unknown memory.
    See https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-environment-variables.
    """
    return tuple(gpu.device for gpu in visible_driver_gpus(gpus, selection))


def visible_driver_gpus(gpus: Sequence[DriverGpu], selection: str | None) -> tuple[DriverGpu, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES names, renumbered, with the driver's identifiers; see `visible_gpus`."""
    if selection is None:
        return tuple(gpus)
    chosen: list[DriverGpu] = []
    for entry in (text.strip() for text in selection.split(",")):
        gpu = _named_gpu(gpus, entry)
        if gpu is None:
            break
        chosen.append(dataclasses.replace(gpu, device=dataclasses.replace(gpu.device, index=len(chosen))))
    return tuple(chosen)


def _named_gpu(gpus: Sequence[DriverGpu], entry: str) -> DriverGpu | None:
    if entry.isdigit():
        return gpus[int(entry)] if int(entry) < len(gpus) else None
    if entry.startswith("MIG-") and gpus:
        models = {gpu.device.model for gpu in gpus}
        model = f"{models.pop()} (MIG)" if len(models) == 1 else "MIG"
        return DriverGpu(device=dataclasses.replace(gpus[0].device, model=model, memory_bytes=None), uuid=entry)
    matches = [gpu for gpu in gpus if entry.startswith("GPU-") and gpu.uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None


def _ask_nvml(machine: Machine) -> list[DriverGpu]:
    nvml = machine.import_nvml()
    if nvml is None:
        return []
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return []
    try:
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        return [_nvml_gpu(nvml, index, driver) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError:
        return []
    finally:
        nvml.nvmlShutdown()


def _nvml_gpu(nvml: Any, index: int, driver: str) -> DriverGpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    try:
        memory_bytes = int(nvml.nvmlDeviceGetMemoryInfo(handle).total) or None
    except nvml.NVMLError:  # GPUs that share the machine's memory do not report it
        memory_bytes = None
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    device = Device(
        kind="GPU",
        index=index,
        model=_text(nvml.nvmlDeviceGetName(handle)),
        memory_bytes=memory_bytes,
        compute_capability=(int(major), int(minor)),
        driver_version=driver,
    )
    return DriverGpu(device=device, uuid=_text(nvml.nvmlDeviceGetUUID(handle)))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _ask_nvidia_smi(machine: Machine) -> list[DriverGpu]:
    # Drivers before 2021 do not know compute_cap and reject the whole query.
    for fields in (_QUERY, _QUERY[:-1]):
        text = machine.get_output("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")
        if text is not None:
            rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
            return [_nvidia_smi_gpu(index, row) for index, row in enumerate(rows) if len(row) == len(fields)]
    return []


def _nvidia_smi_gpu(index: int, row: list[str]) -> DriverGpu:
    uuid, model, mebibytes, driver = row[:4]
    capability = re.fullmatch(r"(\d+)\.(\d+)", row[4]) if len(row) > 4 else None
    device = Device(
        kind="GPU",
        index=index,
        model=model,
        memory_bytes=int(mebibytes) * 2**20 if mebibytes.isdigit() and int(mebibytes) else None,
        compute_capability=(int(capability[1]), int(capability[2])) if capability else None,
        driver_version=driver,
    )
    return DriverGpu(device=device, uuid=uuid)


def _ask_proc(machine: Machine) -> list[DriverGpu]:
    version = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", machine.read("/proc/driver/nvidia/version") or "")
    found = []
    for index, path in enumerate(machine.glob("/proc/driver/nvidia/gpus/*/information")):
        pairs = (line.partition(":") for line in (machine.read(path) or "").splitlines())
        fields = {key.strip(): value.strip() for key, _, value in pairs}
        driver = version[0] if version else None
        device = Device(kind="GPU", index=index, model=fields.get("Model", ""), driver_version=driver)
        found.append(DriverGpu(device=device, uuid=fields.get("GPU UUID", "")))
    return found


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
