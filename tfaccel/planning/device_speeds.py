"""How fast GPUs calculate: the maker's peak figures, from which times are good to a factor of a few.

They serve to estimate whether several GPUs are worth while; where a GPU is not in the table, there is no estimate.
"""

import re

from tfaccel.hardware.hardware import Device

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

# Training reaches a fraction of the peak; large language models reach 38 to 43 % (Llama 3.1), smaller models less.
REACHED_FRACTION = 0.3
# A step cannot be shorter than what TensorFlow needs to start its operations: about 150 microseconds were measured
# for the smallest models inside a loop in the graph on a CPU.
SHORTEST_STEP_SECONDS = 150e-6


def peak_of(device: Device, *, half: bool) -> float | None:
    """The peak of a GPU in 10^12 operations per second, in 16 bits or float32; None if it is not known."""
    name = re.sub(r"[^A-Z0-9]", "", device.model.upper())
    for part, full_peak, half_peak in _GPU_PEAK_TERAFLOPS:
        if part in name:
            return half_peak if half else full_peak
    return None
