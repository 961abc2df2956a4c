"""The child process that checks whether JAX can use the TPU here.

`preflight` starts it, since an incompatible TPU library kills the process or hangs.
"""

import sys
from typing import Any

from tfaccel.hardware.doctor_probes import serve_probes


def probe_matmul() -> dict[str, Any]:
    """Multiplies two matrices of ones on the first TPU core."""
    import jax

    core = jax.devices("tpu")[0]
    ones = jax.device_put(jax.numpy.ones((128, 128), "bfloat16"), core)
    total = float((ones @ ones).sum().astype("float32"))
    if total != 128.0**3:
        raise ArithmeticError(f"a product of all-ones matrices sums to {total:g}, not {128**3}")
    return {"kind": core.device_kind, "num_devices": jax.device_count("tpu")}


if __name__ == "__main__":
    serve_probes(sys.argv, {"matmul": probe_matmul})
