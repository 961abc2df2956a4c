"""The child process that compiles XLA programs with the real TPU compiler; it needs no TPU.

`compile_ahead` starts it if the extra `tpu-aot` is installed. libtpu contains the compiler; JAX calls it.
"""

import sys
from functools import cache
from typing import Any

from tfaccel.extras.tpu.hlo_text import padding_waste
from tfaccel.extras.tpu.private_jax import compile_program
from tfaccel.hardware.doctor_probes import serve_probes


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
    serve_probes(sys.argv, {"compiler": probe_compiler, "compile": probe_compile})
