"""Private JAX API: its compiler, for programs that TensorFlow has written.

JAX's public API compiles only what JAX has traced. Used in a child process only; the extra `tpu-aot` pins the versions,
and the caller treats every failure as a missing answer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tfaccel.errors import in_one_line


def compile_program(path: str, device: Any) -> tuple[Any, str]:
    """Compiles the program in a file for a device.

    Returns:
        The executable, or None, and the compiler's error.
    """
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax._src.lib.mlir import ir

    with mlir.make_ir_context():
        module = ir.Module.parse(_stable_hlo(path))
        try:
            devices, options = xla_client.DeviceList((device,)), xla_client.CompileOptions()
            return device.client.compile(module, devices, options), ""
        except xla_client.XlaRuntimeError as error:
            return None, in_one_line(error, 400)


def _stable_hlo(path: str) -> str:
    """The program as StableHLO: TensorFlow marks returned variables with a copy operation that JAX does not know."""
    from jax._src.lib import _jax, xla_client

    computation = xla_client.XlaComputation(Path(path).read_bytes())
    text = _jax.mlir.xla_computation_to_mlir_module(computation)
    text = text.decode() if isinstance(text, bytes) else text
    return text.replace("mhlo.copy", "stablehlo.optimization_barrier")
