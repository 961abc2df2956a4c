"""What tfaccel needs of the private parts of JAX: its compiler for a program that TensorFlow has written.

JAX's public API compiles what JAX has traced. In a child process only; the extra `tpu-aot` pins the versions, and the
caller takes every failure for a missing answer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any


def compile_program(path: str, device: Any) -> tuple[Any, str]:
    """Compiles the program in a file for a device.

    Returns:
        The executable; or None, and why the compiler refuses the program.
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
            return None, " ".join(str(error).split())[:400]


def _stable_hlo(path: str) -> str:
    """The program as JAX's compiler takes it: TensorFlow marks returned variables by a copy that is unknown there."""
    from jax._src.lib import _jax, xla_client

    computation = xla_client.XlaComputation(Path(path).read_bytes())
    text = _jax.mlir.xla_computation_to_mlir_module(computation)
    text = text.decode() if isinstance(text, bytes) else text
    return text.replace("mhlo.copy", "stablehlo.optimization_barrier")
