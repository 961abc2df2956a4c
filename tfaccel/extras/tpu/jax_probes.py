"""The child process that asks JAX: whether it can use the TPU here, and to compile programs with the TPU compiler.

`preflight` starts it, since an incompatible TPU library kills the process or hangs. `readiness` starts it if the extra
`tpu-aot` is installed: libtpu contains the compiler, JAX calls it, and neither needs a TPU.
"""

import sys
from functools import cache
from typing import Any

from tfaccel.extras.tpu.graph_findings import padding_waste
from tfaccel.extras.tpu.private_jax import compile_program
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


def probe_compiler() -> dict[str, Any]:
    """Loads the compiler."""
    return {"generation": _device("v5e:2x2").device_kind}


def probe_compile(path: str, topology: str) -> dict[str, Any]:
    """Compiles the program in a file for one core of a TPU.

    Returns:
        A dict with "peak_bytes", "argument_bytes", "code_bytes", "flops", "bytes_accessed" and "padding_waste"; or, if
        compilation fails, with the compiler's error as "out_of_memory" or "refusal".
    """
    compiled, message = compile_program(path, _device(topology))
    if compiled is None:
        return {"out_of_memory" if "RESOURCE_EXHAUSTED" in message else "refusal": message}
    memory, costs = compiled.get_compiled_memory_stats(), compiled.cost_analysis()
    costs = costs[0] if isinstance(costs, list) else costs
    return {
        "peak_bytes": int(memory.peak_memory_in_bytes),
        "argument_bytes": int(memory.argument_size_in_bytes),
        "code_bytes": int(memory.generated_code_size_in_bytes),
        "flops": float(costs.get("flops", 0.0)),
        "bytes_accessed": float(costs.get("bytes accessed", 0.0)),
        "padding_waste": padding_waste(compiled.hlo_modules()[0].to_string()),
    }


@cache
def _device(topology: str) -> Any:
    """One core of a TPU topology, without the hardware."""
    from jax.experimental import topologies

    return topologies.get_topology_desc(platform="tpu", topology_name=topology).devices[0]


if __name__ == "__main__":
    serve_probes(sys.argv, {"matmul": probe_matmul, "compiler": probe_compiler, "compile": probe_compile})
