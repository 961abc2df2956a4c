"""How long a training step may take: an estimate from the makers' peak figures, good to a factor of a few.

It serves to choose how many steps go into one call; it never decides what is fastest. Where the device is not in the
table, there is no estimate.
"""

import re

from tfaccel.hardware.hardware import Device
from tfaccel.planning.case import Case

# Dense matrix multiplication, in 10^12 floating-point operations per second: float32 as Keras runs it (TF32 where the
# GPU has it, which TensorFlow uses by default), and 16-bit. The first name found in the device's model counts.
# Source: NVIDIA's data sheet of each GPU, figures "with sparsity" halved.
_GPU_PEAK_TERAFLOPS: tuple[tuple[str, float, float], ...] = (
    ("B200", 1125.0, 2250.0),
    ("H200", 494.5, 989.5),
    ("H100PCIE", 378.0, 756.0),
    ("H100", 494.5, 989.5),
    ("A100", 156.0, 312.0),
    ("L40S", 183.0, 362.0),
    ("L40", 90.5, 181.0),
    ("L4", 60.0, 121.0),
    ("A10", 62.5, 125.0),
    ("V100", 15.7, 125.0),
    ("T4", 8.1, 65.0),
    ("P100", 10.6, 10.6),
)
# Source: Google Cloud's page of each TPU version; per core for v2 and v3, where TensorFlow sees two cores per chip.
# The matrix units multiply in bfloat16; float32 is calculated in several passes, here taken as half the speed.
_TPU_PEAK_TERAFLOPS: tuple[tuple[str, float, float], ...] = (
    ("V6E", 459.0, 918.0),
    ("V5P", 229.5, 459.0),
    ("V5E", 98.5, 197.0),
    ("V5LITE", 98.5, 197.0),
    ("V4", 137.5, 275.0),
    ("V3", 30.8, 61.5),
    ("V2", 11.3, 22.5),
)
# A CPU core with two fused multiply-add units at about 2.5 GHz: 32 (AVX2) or 64 (AVX-512) operations per cycle.
_CORE_TERAFLOPS, _AVX512_CORE_TERAFLOPS = 0.08, 0.16

# Training reaches a fraction of the peak; large language models reach 38 to 43 % (Llama 3.1), smaller models less.
REACHED_FRACTION = 0.3
# A step cannot be shorter than what TensorFlow needs to start its operations: about 150 microseconds were measured
# for the smallest models inside a loop in the graph on a CPU.
SHORTEST_STEP_SECONDS = 150e-6


def peak_teraflops(case: Case) -> float | None:
    """The peak of one replica's device in 10^12 operations per second; None where the device is not known."""
    if case.kind == "CPU":
        wide = any(feature.startswith(("AVX512", "AMX")) for feature in case.hardware.cpu_features)
        cores = min(case.hardware.num_usable_cores, case.hardware.num_physical_cores)
        return (_AVX512_CORE_TERAFLOPS if wide else _CORE_TERAFLOPS) * cores / len(case["devices"])
    half = case["dtype_policy"] != "float32"
    peaks = [peak_of(device, half=half) for device in case.accelerators]
    known = [peak for peak in peaks if peak is not None]
    return min(known) if known and len(known) == len(peaks) else None


def estimated_step_seconds(case: Case) -> float | None:
    """Seconds of one optimizer step; None where the workload's operations or the device's speed are not known."""
    peak = peak_teraflops(case)
    flops = case.workload.flops_per_example
    if peak is None or flops is None:
        return None
    replica_batch_size = case["global_batch_size"] / case.num_replicas
    compute_seconds = flops * replica_batch_size / (peak * 1e12 * REACHED_FRACTION)
    return float(max(compute_seconds, SHORTEST_STEP_SECONDS * case["accumulation_steps"]))


def peak_of(device: Device, *, half: bool) -> float | None:
    """The peak of a GPU or TPU in 10^12 operations per second, in 16 bits or float32; None if it is not known."""
    name = re.sub(r"[^A-Z0-9]", "", device.model.upper())
    table = _GPU_PEAK_TERAFLOPS if device.kind == "GPU" else _TPU_PEAK_TERAFLOPS
    for part, full_peak, half_peak in table:
        if part in name:
            return half_peak if half else full_peak
    return None
