"""The program of the doctor's child processes: runs probes in order and reports each.

TensorFlow and NumPy, which may be broken itself, are imported only by the probes that need them.

The computations that every device must support are compared with NumPy's float64. Sums of 72 to 128 products stay
within the tolerances on any device that computes in the given dtype; wrong kernels and wrong layouts do not. A
tolerance is relative to the largest value of the result. By default GPUs round the factors of float32 products to
TensorFloat-32, which keeps ten bits and has errors of about 5e-4 here.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from tfaccel.errors import in_one_line
from tfaccel.processes.child import connect_to_parent

if TYPE_CHECKING:
    import numpy as np

_TOLERANCES = {"float32": 2e-3, "float16": 1e-2, "bfloat16": 5e-2}


def serve_probes(argv: list[str], probes: Mapping[str, Callable[..., dict[str, Any]]]) -> NoReturn:
    """Runs probes until the caller terminates the process; after a failure, which is reported, the next one runs.

    Args:
        argv: the command line of a `ConnectedChild`.
        probes: the function of each probe, by name; it returns a dict of JSON values.
    """
    parent = connect_to_parent(argv)
    while True:
        name, *arguments = parent.recv()
        try:
            report = {"ok": True, "data": probes[name](*arguments)}
        except Exception as error:
            report = {"ok": False, "cause": f"{type(error).__name__}: {in_one_line(error)}"}
        sys.stdout.flush()
        sys.stderr.flush()
        parent.send(report)


def probe_import(module: str) -> dict[str, Any]:
    """Imports a module."""
    imported = import_module(module)
    return {"version": str(getattr(imported, "__version__", ""))}


def probe_tensorflow_devices() -> dict[str, Any]:
    """The GPUs that TensorFlow sees, and its build."""
    import tensorflow as tf

    build = tf.sysconfig.get_build_info()
    plain = {name: value for name, value in build.items() if isinstance(value, (str, bool, list))}
    return {"num_gpus": len(tf.config.list_physical_devices("GPU")), "build": plain}


def probe_library(name: str, *paths: str) -> dict[str, Any]:
    """Loads a shared library as TensorFlow does: by name, else from one of the given paths."""
    for path in (name, *paths):
        try:
            ctypes.CDLL(path)
            return {"path": path}
        except OSError as error:
            last_error = error
    raise last_error


def probe_compute(device: str, computation: str) -> dict[str, Any]:
    """Computes on a device and compares with NumPy."""
    if device.startswith("TPU"):
        start_tpu()
    return compare_with_numpy(device, COMPUTATIONS[computation])


def probe_tpu(tpu: str) -> dict[str, Any]:
    """Initializes the TPU of that name or address, or "local"; the data has "num_devices"."""
    return {"num_devices": start_tpu(tpu)}


def start_tpu(tpu: str = "local") -> int:
    """Initializes a TPU once in this process; returns its number of devices."""
    import tensorflow as tf

    if not tf.config.list_logical_devices("TPU"):
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=tpu)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    return len(tf.config.list_logical_devices("TPU"))


@dataclass(frozen=True, kw_only=True)
class Computation:
    """`run(dtype)` computes with TensorFlow and returns pairs of a tensor and its expected value from NumPy."""

    run: Callable[[str], list[tuple[Any, np.ndarray]]]
    dtype: str = "float32"


def compare_with_numpy(device: str, computation: Computation) -> dict[str, Any]:
    """Runs the computation on the device.

    Args:
        device: TensorFlow's short name, such as "GPU:0".
        computation: one of `COMPUTATIONS`.

    Returns:
        A dict with "max_relative_error" and "tolerance".
    """
    import numpy as np
    import tensorflow as tf

    with tf.device(f"/{device}"):
        results = computation.run(computation.dtype)
    errors = []
    for tensor, expected in results:
        if not tensor.device.endswith(device):
            raise ArithmeticError(f"ran on {tensor.device or 'no device'} instead of {device}")
        difference = np.abs(tf.cast(tensor, tf.float64).numpy() - expected).max() / np.abs(expected).max()
        errors.append(float(difference))
    worst, tolerance = float(np.max(errors)), _TOLERANCES[computation.dtype]
    if not worst <= tolerance:  # NaN is not
        raise ArithmeticError(f"differs from numpy by {worst:.1e} relative; at most {tolerance:g} was expected")
    return {"max_relative_error": worst, "tolerance": tolerance}


def matmul(dtype: str) -> list[tuple[Any, np.ndarray]]:
    """A matrix product."""
    import tensorflow as tf

    (a, exact_a), (b, exact_b) = _random(dtype, (64, 128), seed=1), _random(dtype, (128, 96), seed=2)
    return [(tf.linalg.matmul(a, b), exact_a @ exact_b)]


def convolution(dtype: str) -> list[tuple[Any, np.ndarray]]:
    """A 3x3 convolution of images, channels last."""
    import numpy as np
    import tensorflow as tf

    (x, exact_x), (k, exact_k) = _random(dtype, (2, 12, 12, 8), seed=3), _random(dtype, (3, 3, 8, 16), seed=4)
    shifted = [(exact_x[:, i : i + 10, j : j + 10, :], exact_k[i, j]) for i in range(3) for j in range(3)]
    expected = sum((part @ weights for part, weights in shifted), start=np.zeros((2, 10, 10, 16)))
    return [(tf.nn.conv2d(x, k, strides=1, padding="VALID"), expected)]


def matmul_and_convolution(dtype: str) -> list[tuple[Any, np.ndarray]]:
    """Both computations."""
    return matmul(dtype) + convolution(dtype)


def xla_step(dtype: str) -> list[tuple[Any, np.ndarray]]:
    """Three training steps of a linear model, compiled by XLA: loss, gradient, update of a variable."""
    import numpy as np
    import tensorflow as tf

    (x, exact_x), (y, exact_y) = _random(dtype, (32, 16), seed=5), _random(dtype, (32, 4), seed=6)
    weights, exact_weights = tf.Variable(tf.zeros((16, 4), dtype)), np.zeros((16, 4))

    @tf.function(jit_compile=True)
    def step(inputs: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matmul(inputs, weights) - targets) ** 2)
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        return loss

    for _ in range(3):
        loss = step(x, y)
        residual = exact_x @ exact_weights - exact_y
        exact_loss = np.mean(residual**2)
        exact_weights = exact_weights - 0.1 * 2 / residual.size * exact_x.T @ residual
    return [(loss, exact_loss), (weights.read_value(), exact_weights)]


def _random(dtype: str, shape: tuple[int, ...], *, seed: int) -> tuple[Any, np.ndarray]:
    """Normal random values rounded to the dtype: as a tensor, and exactly the same values in float64."""
    import numpy as np
    import tensorflow as tf

    tensor = tf.cast(np.random.default_rng(seed).normal(size=shape).astype(np.float32), dtype)
    return tensor, tf.cast(tensor, tf.float64).numpy()


COMPUTATIONS = {
    "matmul": Computation(run=matmul),
    "convolution": Computation(run=convolution),
    "float16": Computation(run=matmul_and_convolution, dtype="float16"),
    "bfloat16": Computation(run=matmul_and_convolution, dtype="bfloat16"),
    "XLA step": Computation(run=xla_step),
}
PROBES: dict[str, Callable[..., dict[str, Any]]] = {
    "import": probe_import,
    "tensorflow devices": probe_tensorflow_devices,
    "library": probe_library,
    "compute": probe_compute,
    "tpu": probe_tpu,
}


if __name__ == "__main__":
    serve_probes(sys.argv, PROBES)
