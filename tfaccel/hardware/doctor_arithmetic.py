"""Computations that every device must support, compared with NumPy's float64.

Sums of 72 to 128 products stay within these tolerances on any device that computes in the given dtype; wrong kernels
and wrong layouts do not. The tolerance is relative to the largest value of the result. By default GPUs round the
factors of float32 products to TensorFloat-32, which keeps ten bits and has errors of about 5e-4 here.

Only the doctor's child processes import this module.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

_TOLERANCES = {"float32": 2e-3, "float16": 1e-2, "bfloat16": 5e-2}


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

    Raises:
        ArithmeticError: if a result differs from NumPy's, or was computed on another device.
    """
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
