"""The program of a child process that compiles XLA programs with the real TPU compiler; no TPU is needed.

`compile_ahead` starts it where the extra `tpu-aot` is installed. libtpu holds the compiler, JAX reaches it. The parts
of JAX used here are private, so their versions are pinned and the caller takes every failure for a missing answer.
"""

import sys
from functools import cache
from pathlib import Path
from typing import Any

from tfaccel.hardware.doctor_probes import serve_probes
from tfaccel.tpu.hlo_text import padding_waste


def probe_compiler() -> dict[str, Any]:
    """Whether the compiler can be loaded."""
    return {"generation": _device("v5e:2x2").device_kind}


def probe_compile(path: str, topology: str) -> dict[str, Any]:
    """Compiles the program in a file for one core of a TPU.

    Returns:
        A dict with "peak_bytes", "argument_bytes", "code_bytes", "flops", "bytes_accessed" and "padding_waste"; or,
        where it cannot be compiled, with the compiler's words as "out_of_memory" or "refusal".
    """
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax._src.lib.mlir import ir

    device = _device(topology)
    with mlir.make_ir_context():
        module = ir.Module.parse(_stable_hlo(path))
        try:
            devices, options = xla_client.DeviceList((device,)), xla_client.CompileOptions()
            compiled = device.client.compile(module, devices, options)
        except xla_client.XlaRuntimeError as error:
            message = " ".join(str(error).split())[:400]
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


def _stable_hlo(path: str) -> str:
    """The program as JAX's compiler takes it: TensorFlow marks returned variables by a copy that is unknown there."""
    from jax._src.lib import _jax, xla_client

    computation = xla_client.XlaComputation(Path(path).read_bytes())
    text = _jax.mlir.xla_computation_to_mlir_module(computation)
    text = text.decode() if isinstance(text, bytes) else text
    return text.replace("mhlo.copy", "stablehlo.optimization_barrier")


@cache
def _device(topology: str) -> Any:
    """One core of a TPU that is described, not there."""
    from jax.experimental import topologies

    return topologies.get_topology_desc(platform="tpu", topology_name=topology).devices[0]


if __name__ == "__main__":
    serve_probes(sys.argv, {"compiler": probe_compiler, "compile": probe_compile})
