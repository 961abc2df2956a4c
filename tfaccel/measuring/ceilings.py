"""`measure_ceilings`: how fast this machine multiplies matrices and copies memory, measured in a child process.

A product of two square matrices takes 2 n**3 floating-point operations; n grows until the speed no longer does. The
copy reads and writes arrays much larger than the last-level cache.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from tfaccel.errors import PlanError
from tfaccel.hardware.detect import detect_hardware
from tfaccel.hardware.hardware import Hardware
from tfaccel.measuring.candidate_child import CandidateServers
from tfaccel.measuring.workload_task import answered
from tfaccel.planning.cache import today
from tfaccel.planning.candidates import default_plan
from tfaccel.planning.machine_ceilings import TENSOR_FLOAT_32, MachineCeilings, cached_ceilings, keep_ceilings
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload
from tfaccel.training.runtime import Runtime, use_tensor_float_32

_DISTURBED = (
    "while {} was measured, this process had only {:.0f} % of the CPU: the limit may be too low. It is measured again "
    "next time; run nothing else then"
)
_PROGRAM = "tfaccel.measuring.ceilings"
_CPU_SIZES, _GPU_SIZES = (512, 1024, 2048), (4096, 8192, 16384)
_CPU_COPY_BYTES, _GPU_COPY_BYTES = 256 << 20, 2 << 30
_MIN_SECONDS = 0.2  # of each timed window
_NUM_WINDOWS = 4
_UNDISTURBED_FROM = 0.75  # fraction of the CPU time that products of matrices get if no other program runs
_STILL_FASTER = 1.05  # a larger matrix is tried while the speed grows by more


def ceilings_of_plan(
    fixed: Mapping[str, Any],
    *,
    measure_again: bool = False,
    limit_seconds: float = 300.0,
    on_progress: Callable[[str], None] = lambda text: None,
) -> MachineCeilings:
    """The limits of this machine, measured if they are not known, and kept for later runs.

    Args:
        fixed: plan fields that matter: devices, oneDNN, the memory allocator. The rules choose what is left out.
        measure_again: measure even if they are known.
        limit_seconds: time limit.
        on_progress: called with a line for each result.

    Raises:
        PlanError: if the plan cannot run here, or the measurement fails.
    """
    hardware = detect_hardware()
    nothing = Workload("ceilings", object, dict, lambda *args, **kwargs: None, global_batch_size=1)
    plan = default_plan(hardware, nothing, **fixed)
    with CandidateServers() as servers:
        return known_or_measured(
            servers, hardware, plan, again=measure_again, limit_seconds=limit_seconds, on_progress=on_progress
        )


def known_or_measured(
    servers: CandidateServers,
    hardware: Hardware,
    plan: Plan,
    *,
    again: bool,
    limit_seconds: float,
    on_progress: Callable[[str], None],
) -> MachineCeilings:
    """The kept ceilings of a plan's device; measured and kept if there are none, or with `again`.

    Those that were disturbed are measured again, and do not replace others. Ceilings are of all usable cores, whatever
    the plan's threads: logical CPUs of one thread each share these cores.
    """
    known = cached_ceilings(hardware, plan)
    if known is not None and not known.disturbed and not again:
        return known
    on_progress("measuring the machine's limits, about half a minute; run nothing else meanwhile")
    all_cores = replace(plan, intra_op_threads=hardware.num_usable_cores, inter_op_threads=None)
    found = measure_ceilings(servers, all_cores, limit_seconds=limit_seconds, on_progress=on_progress)
    if known is None or known.disturbed or not found.disturbed:
        keep_ceilings(hardware, plan, found)
    else:
        on_progress("the limits that were measured before stay in use")
    return found


def measure_ceilings(
    servers: CandidateServers,
    plan: Plan,
    *,
    limit_seconds: float,
    on_progress: Callable[[str], None] = lambda text: None,
) -> MachineCeilings:
    """Measures the ceilings of the first device of a plan, with the plan's threads and environment.

    Args:
        servers: they start the process.
        plan: its device, threads and environment are used.
        limit_seconds: time limit.
        on_progress: called with a line for each result.

    Raises:
        PlanError: if the process fails, dies or takes too long.
    """
    server = servers.of(plan)
    child = server.start("ceilings", _PROGRAM, [], {})
    child.send(plan.to_json())
    deadline = time.monotonic() + limit_seconds
    disturbed: list[str] = []
    try:
        while True:
            try:
                message = server.get_message(child, deadline - time.monotonic())
            except TimeoutError:
                text = f"The machine's limits could not be measured within {limit_seconds:g} seconds."
                raise PlanError(text) from None
            if message is None:
                how = f"{child.how_it_ended()}. {server.end_of_log(child)}"
                raise PlanError(f"The machine's limits could not be measured: the process {how}"[:500])
            if message["event"] == "failed":
                raise PlanError(f"The machine's limits could not be measured: {message['cause']}")
            if message["event"] == "measured":
                on_progress(f"matrix products in {message['what']}: {message['value'] / 1e9:,.0f} GFLOP/s")
            elif message["event"] == "disturbed":
                disturbed.append(message["what"])
                on_progress(_DISTURBED.format(message["what"], 100 * message["value"]))
            else:
                on_progress(f"memory: {message['bytes_per_second'] / 1e9:,.1f} GB/s")
                return MachineCeilings(
                    device=plan.devices[0].partition(":")[0],
                    matrix_flops_per_second=message["matrix_flops_per_second"],
                    bytes_per_second=message["bytes_per_second"],
                    measured=today(),
                    disturbed=tuple(disturbed),
                )
    finally:
        if child.status is None:
            server.kill(child)


def main(connection: Connection, arguments: list[str]) -> int:
    """The child process: measures, sends a message for each result, and returns the exit status."""
    return answered(connection, _measure)


def _measure(connection: Connection, order: dict[str, Any]) -> None:
    import tensorflow as tf

    plan = Plan.from_json(order)
    on_gpu = plan.devices[0].startswith("GPU")
    num_threads = plan.intra_op_threads or len(os.sched_getaffinity(0))
    sizes = _GPU_SIZES if on_gpu else _CPU_SIZES
    speeds: dict[str, float] = {}
    with Runtime(plan, seed=0), tf.device("/GPU:0" if on_gpu else "/CPU:0"):
        for name in ("float32", *((TENSOR_FLOAT_32,) if on_gpu else ()), "bfloat16", "float16"):
            use_tensor_float_32(name != "float32")
            started, cpu_started = time.perf_counter(), time.process_time()
            speeds[name] = _best_product(tf.float32 if name == TENSOR_FLOAT_32 else tf.as_dtype(name), sizes)
            connection.send({"event": "measured", "what": name, "value": speeds[name]})
            busy = (time.process_time() - cpu_started) / (time.perf_counter() - started) / num_threads
            if not on_gpu and busy < _UNDISTURBED_FROM:
                connection.send({"event": "disturbed", "what": name, "value": busy})
        bandwidth = _copy_speed(_GPU_COPY_BYTES if on_gpu else _CPU_COPY_BYTES)
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
    return 2 * size**3 / _seconds_of_one(lambda value: tf.linalg.matmul(value, right), left)


def _copy_speed(num_bytes: int) -> float:
    """Bytes read and written per second."""
    import tensorflow as tf

    source = tf.zeros((num_bytes // 4,), tf.float32)
    return 2 * num_bytes / _seconds_of_one(lambda value: tf.raw_ops.DeepCopy(x=value), source)


def _seconds_of_one(operation: Callable[[Any], Any], first: Any) -> float:
    """The least time of one operation on a tensor over several windows, after a warm-up.

    Each needs the result of the one before, so that none is left out or run beside another.
    """
    import tensorflow as tf

    @tf.function(autograph=False)
    def repeated(times: tf.Tensor) -> tf.Tensor:
        def body(step: tf.Tensor, value: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return step + 1, operation(value)

        _, value = tf.while_loop(lambda step, value: step < times, body, (0, first), parallel_iterations=1)
        return value[(0,) * len(value.shape)]

    def get_seconds(times: int) -> float:
        started = time.perf_counter()
        repeated(tf.constant(times)).numpy()  # waits for the device
        return time.perf_counter() - started

    get_seconds(1)
    times = max(2, int(_MIN_SECONDS / max(1e-6, get_seconds(2) / 2)))
    seconds: list[float] = []
    while len(seconds) < _NUM_WINDOWS and sum(seconds) <= _NUM_WINDOWS * 3 * _MIN_SECONDS:
        seconds.append(get_seconds(times))
    return min(seconds) / times
