"""Steps of the GPU suite about what the GPU does while a step trains: its kernels, and when it stands still."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel.benchmarks.gpu.step import StepRun
from tfaccel.benchmarks.gpu.tasks import workload
from tfaccel.benchmarks.gpu.trial import in_new_process
from tfaccel.planning.candidates import default_plan
from tfaccel.planning.plan import Plan

_WARM_UP_STEPS, _TRACED_STEPS = 8, 4
_NUM_KERNELS = 40
_NUM_TIMED, _NUM_PAIRS = 50, 3  # calls, which the device runs one after the other, and pairs of them
_SMALL_GAP_SECONDS = 1e-4  # between two kernels of a step; longer ones are waits for the host


def kernels(run: StepRun, task: str) -> None:
    """Traces some steps with the plan of the rules: the times of kernels, of gaps between them, and of copies.

    Args:
        run, task: the step, and the task.
    """
    options = {"task": task, "is_tiny": run.is_rehearsal}
    plan = default_plan(run.hardware, workload(**options), **run.one_device)
    run.record("plan", plan.to_json())
    arguments = {"plan": plan.to_json(), "options": options}
    found = in_new_process(f"{__name__}:traced", arguments, limit_seconds=run.seconds_left)
    run.record("trace", found)
    for part in ("step", "busy", "short_gaps", "long_gaps", "copies"):
        text = f"milliseconds of a step: {part.replace('_', ' ')}"
        run.figure(f"{task}, traced", text, [1e3 * found[f"{part}_seconds"]])


def traced(plan: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Trains some steps under TensorFlow's profiler; runs in a process of its own."""
    import tensorflow as tf

    from tfaccel.costs.private_graphs import CPU_PLANE, GPU_PLANE, trace_events
    from tfaccel.training.run.timed_steps import TimedSteps
    from tfaccel.training.runtime import Runtime

    given = Plan.from_json(plan)
    plane = GPU_PLANE if given.devices[0].startswith("GPU") else CPU_PLANE
    with Runtime(given, seed=0) as runtime, tempfile.TemporaryDirectory(prefix="tfaccel-") as folder:
        steps = TimedSteps(workload(**options), given, runtime.strategy, seed=0)
        steps.window(_WARM_UP_STEPS)
        untraced = [steps.window(_WARM_UP_STEPS) for _ in range(3)]
        with tf.profiler.experimental.Profile(folder):
            steps.window(_TRACED_STEPS)
        events = list(trace_events(Path(folder), plane))
        steps.close()
    step_seconds = statistics.median(one.seconds / one.num_steps for one in untraced)
    return {"step_seconds": step_seconds, **summary(events, num_steps=_TRACED_STEPS)}


def attention(run: StepRun) -> None:
    """Attention with its gradients, by cuDNN's flash kernel and by Keras, with XLA: times, and how they differ.

    A rehearsal computes both by Keras's.
    """
    shapes = [[2, 16, 2, 16]] if run.is_rehearsal else [[16, 512, 12, 64], [4, 2048, 12, 64]]
    for shape in shapes:
        arguments = {"shape": shape, "has_kernel": not run.is_rehearsal}
        found = in_new_process(f"{__name__}:timed_attention", arguments, limit_seconds=run.seconds_left)
        run.record("x".join(map(str, shape)), found)
        name = f"attention of {shape[1]} tokens, batch {shape[0]}"
        run.figure(name, "seconds of Keras's / of the flash kernel", found["ratios"])
        run.figure(name, "largest difference, of the largest value", [found["difference"]], at_most=0.02)


def timed_attention(shape: list[int], has_kernel: bool) -> dict[str, Any]:
    """Times both, in turn; runs in a process of its own."""
    import tensorflow as tf

    from tfaccel.training.kernels.flash_attention import attention_and_gradients

    random = np.random.default_rng(0)
    given = [tf.constant(random.normal(size=shape), tf.bfloat16) for _ in range(4)]
    compute = tf.function(attention_and_gradients, jit_compile=True)

    def run(is_flash: bool, number: int) -> tuple[float, list[np.ndarray]]:
        began = time.perf_counter()
        for _ in range(number):
            found = compute(*given, is_causal=False, is_flash=is_flash)
        values = [np.asarray(tf.cast(one, tf.float32)) for one in found]  # waits for the device
        return time.perf_counter() - began, values

    (_, keras), (_, flash) = (run(is_flash, 1) for is_flash in (False, has_kernel))
    pairs = [(run(False, _NUM_TIMED)[0], run(has_kernel, _NUM_TIMED)[0]) for _ in range(_NUM_PAIRS)]
    differences = [np.abs(one - other).max() / np.abs(other).max() for one, other in zip(flash, keras, strict=True)]
    return {
        "ratios": [one / other for one, other in pairs],
        "milliseconds": [[1e3 * one / _NUM_TIMED for one in pair] for pair in pairs],
        "difference": float(max(differences)),
    }


def summary(events: Iterable[tuple[str, str, float, float]], *, num_steps: int) -> dict[str, Any]:
    """The time of each kernel, of gaps between kernels, and of copies between host and device, for one step.

    Args:
        events: stream, name, start and end of each kernel or copy, in seconds.
        num_steps: how many steps were traced.

    Example:
        >>> events = [("Stream #1(Compute)", "gemm", 0.0, 0.5), ("Stream #1(Compute)", "add", 0.75, 1.0)]
        >>> found = summary([*events, ("Stream #2(MemcpyH2D)", "MemcpyH2D", 0.0, 0.5)], num_steps=1)
        >>> found["busy_seconds"], found["long_gaps_seconds"], found["copies_seconds"], list(found["kernels"])
        (0.75, 0.25, 0.5, ['gemm', 'add'])
    """
    computing, copies = [], 0.0
    for stream, name, start, end in events:
        if "Memcpy" in stream and "Compute" not in stream:
            copies += end - start
        else:
            computing.append((start, end, name))
    computing.sort()
    kernels: dict[str, list[float]] = {}
    gaps, last = [], computing[0][0] if computing else 0.0
    for start, end, name in computing:
        kernels.setdefault(name, []).append(end - start)
        gaps.append(max(0.0, start - last))
        last = max(last, end)
    by_time = sorted(kernels, key=lambda name: -sum(kernels[name]))[:_NUM_KERNELS]
    return {
        "busy_seconds": sum(sum(times) for times in kernels.values()) / num_steps,
        "short_gaps_seconds": sum(gap for gap in gaps if gap < _SMALL_GAP_SECONDS) / num_steps,
        "long_gaps_seconds": sum(gap for gap in gaps if gap >= _SMALL_GAP_SECONDS) / num_steps,
        "copies_seconds": copies / num_steps,
        "num_kernels": len(computing) / num_steps,
        "kernels": {
            name: {"seconds": sum(kernels[name]) / num_steps, "number": len(kernels[name]) / num_steps}
            for name in by_time
        },
    }
