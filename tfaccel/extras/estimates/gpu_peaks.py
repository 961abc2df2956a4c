"""Published peak rates of NVIDIA GPUs.

Nominal figures of NVIDIA's data sheets: dense arithmetic (without structured sparsity), float16 and bfloat16 with
float32 accumulation on tensor cores, bandwidths in one direction for PCIe.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tfaccel.errors import HardwareError
from tfaccel.hardware.hardware import Device

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

    Raises:
        HardwareError: if neither is in the table.

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
