"""The process that measures the ceilings of a plan's device: matrix products in each dtype, and copies of memory.

A product of two square matrices takes 2 n**3 floating-point operations; n grows until the speed no longer does. The
copy reads and writes arrays much larger than the last-level cache.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from tfaccel.measuring.candidate_program import get_cause
from tfaccel.planning.machine_ceilings import TENSOR_FLOAT_32
from tfaccel.planning.plan import Plan

_CPU_SIZES, _GPU_SIZES = (512, 1024, 2048), (4096, 8192, 16384)
_CPU_COPY_BYTES, _GPU_COPY_BYTES = 256 << 20, 2 << 30
_MIN_SECONDS = 0.2  # of each timed window
_NUM_WINDOWS = 4
_UNDISTURBED_FROM = 0.75  # fraction of the CPU time that products of matrices get if no other program runs
_STILL_FASTER = 1.05  # a larger matrix is tried while the speed grows by more


def main(connection: Connection, arguments: list[str]) -> int:
    """Measures, sends a message for each result, and returns the exit status."""
    plan = Plan.from_json(connection.recv())
    try:
        from tfaccel.training.runtime import Runtime

        with Runtime(plan, seed=0):
            _measure(connection, plan)
    except Exception as error:
        traceback.print_exc()
        connection.send({"event": "failed", "cause": get_cause(error)})
        return 1
    return 0


def _measure(connection: Connection, plan: Plan) -> None:
    import tensorflow as tf

    from tfaccel.training.runtime import use_tensor_float_32

    on_gpu = plan.devices[0].startswith("GPU")
    num_threads = plan.intra_op_threads or len(os.sched_getaffinity(0))
    device = "/GPU:0" if on_gpu else "/CPU:0"
    sizes = _GPU_SIZES if on_gpu else _CPU_SIZES
    speeds: dict[str, float] = {}
    with tf.device(device):
        for name in ("float32", *((TENSOR_FLOAT_32,) if on_gpu else ()), "bfloat16", "float16"):
            use_tensor_float_32(name != "float32")
            started, cpu_started = time.perf_counter(), time.process_time()
            speeds[name] = _best_product(tf.float32 if name == TENSOR_FLOAT_32 else tf.as_dtype(name), sizes)
            connection.send({"event": "measured", "what": name, "value": speeds[name]})
            busy = (time.process_time() - cpu_started) / (time.perf_counter() - started) / num_threads
            if not on_gpu and busy < _UNDISTURBED_FROM:
                connection.send({"event": "disturbed", "what": name, "value": busy})
        num_bytes = _GPU_COPY_BYTES if on_gpu else _CPU_COPY_BYTES
        bandwidth = _copy_speed(num_bytes)
    connection.send({"event": "done", "matrix_flops_per_second": speeds, "bytes_per_second": bandwidth})


def _best_product(dtype: Any, sizes: tuple[int, ...]) -> float:
    """Floating-point operations per second of the fastest of several products."""
    best = 0.0
    for size in sizes:
        speed = _product_speed(dtype, size)
        if speed < best * _STILL_FASTER:
            return max(best, speed)
        best = speed
    return best


def _product_speed(dtype: Any, size: int) -> float:
    import tensorflow as tf

    scale = size**-0.5  # keeps the products in the range of float16
    left, right = (tf.cast(tf.random.stateless_normal((size, size), (0, seed)) * scale, dtype) for seed in (1, 2))

    @tf.function(autograph=False)
    def products(times: tf.Tensor) -> tf.Tensor:
        # Each product needs the one before, so that none is left out or run beside another.
        def body(step: tf.Tensor, value: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return step + 1, tf.linalg.matmul(value, right)

        _, value = tf.while_loop(lambda step, value: step < times, body, (0, left), parallel_iterations=1)
        return value[0, 0]

    return 2 * size**3 / _seconds_of_one(lambda times: products(tf.constant(times)).numpy())


def _copy_speed(num_bytes: int) -> float:
    """Bytes read and written per second."""
    import tensorflow as tf

    source = tf.zeros((num_bytes // 4,), tf.float32)

    @tf.function(autograph=False)
    def copies(times: tf.Tensor) -> tf.Tensor:
        def body(step: tf.Tensor, value: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return step + 1, tf.raw_ops.DeepCopy(x=value)

        _, value = tf.while_loop(lambda step, value: step < times, body, (0, source), parallel_iterations=1)
        return value[0]

    return 2 * num_bytes / _seconds_of_one(lambda times: copies(tf.constant(times)).numpy())


def _seconds_of_one(run: Callable[[int], Any]) -> float:
    """The least time of one repetition over several windows, after a warm-up; `run` waits for the device."""
    run(1)
    started = time.perf_counter()
    run(2)
    times = max(2, int(_MIN_SECONDS / max(1e-6, (time.perf_counter() - started) / 2)))
    seconds = []
    for _ in range(_NUM_WINDOWS):
        started = time.perf_counter()
        run(times)
        seconds.append((time.perf_counter() - started) / times)
        if sum(seconds) * times > _NUM_WINDOWS * 3 * _MIN_SECONDS:
            break
    return min(seconds)
