"""Steps of the GPU suite about what the GPU does while a step trains: its kernels, and when it stands still."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel.benchmarks.gpu.step import StepRun
from tfaccel.benchmarks.gpu.tasks import workload
from tfaccel.benchmarks.gpu.trial import in_new_process
from tfaccel.planning.candidates import default_plan
from tfaccel.planning.plan import Plan

_Kernel = tuple[float, float, str]  # start and end in seconds, name
_WARM_UP_STEPS, _TRACED_STEPS = 8, 6
_NUM_KERNELS, _NUM_GAPS = 40, 10
_NUM_TIMED, _NUM_PAIRS = 20, 3  # calls, which the device runs one after the other, and pairs of them
_NUM_CHAINED = 4  # attentions in a call, as in a model: launching one takes as long as its kernels
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

    @tf.function(jit_compile=True, autograph=False)
    def compute(query: Any, key: Any, value: Any, upstream: Any, *, is_flash: bool) -> list[Any]:
        found: list[Any] = []
        for _ in range(_NUM_CHAINED):
            found = attention_and_gradients(query, key, value, upstream, is_causal=False, is_flash=is_flash)
            query, upstream = found[0], found[1]
        return found

    def seconds(is_flash: bool) -> float:
        began = time.perf_counter()
        for _ in range(_NUM_TIMED):
            found = compute(*given, is_flash=is_flash)
        float(found[0][0, 0, 0, 0])  # waits for the device
        return time.perf_counter() - began

    alone = tf.function(attention_and_gradients, jit_compile=True, autograph=False)
    keras, flash = (
        [np.asarray(tf.cast(one, tf.float32)) for one in alone(*given, is_causal=False, is_flash=is_flash)]
        for is_flash in (False, has_kernel)
    )
    for is_flash in (False, has_kernel):
        seconds(is_flash)  # the first ones compile
    pairs = [(seconds(False), seconds(has_kernel)) for _ in range(_NUM_PAIRS)]
    differences = [np.abs(one - other).max() / np.abs(other).max() for one, other in zip(flash, keras, strict=True)]
    return {
        "ratios": [one / other for one, other in pairs],
        "milliseconds": [[1e3 * one / _NUM_TIMED / _NUM_CHAINED for one in pair] for pair in pairs],
        "difference": float(max(differences)),
    }


def summary(events: Iterable[tuple[str, str, float, float]], *, num_steps: int) -> dict[str, Any]:
    """The time of each kernel, of gaps between two of them, and of copies between host and device, for one step.

    Args:
        events: stream, name, start and end of each kernel or copy, in seconds.
        num_steps: how many steps were traced.

    Example:
        >>> events = [("Stream #1(Compute)", "gemm", 0.0, 0.5), ("Stream #1(Compute)", "add", 0.75, 1.0)]
        >>> events += [("Stream #1(Compute)", "gemm", 2.0, 2.5), ("Stream #2(MemcpyH2D)", "MemcpyH2D", 0.0, 0.5)]
        >>> found = summary(events, num_steps=2)
        >>> found["busy_seconds"], found["long_gaps_seconds"], found["copies_seconds"], list(found["kernels"])
        (0.75, 0.25, 0.5, ['gemm', 'add'])
        >>> found["gaps"]
        {'gemm | add': {'seconds': 0.25, 'number': 1.0}}
    """
    computing: list[_Kernel] = []
    copies: list[_Kernel] = []
    for stream, name, start, end in events:
        is_copy = "Memcpy" in stream and "Compute" not in stream
        (copies if is_copy else computing).append((start, end, name))
    computing, num_steps = _whole_steps(sorted(computing), num_steps)
    begin, stop = (computing[0][0], computing[-1][1]) if computing else (0.0, 0.0)
    kernels: dict[str, list[float]] = {}
    gaps: dict[str, list[float]] = {}
    last, before = begin, ""
    for start, end, name in computing:
        kernels.setdefault(name, []).append(end - start)
        if start > last:
            gaps.setdefault(f"{before} | {name}", []).append(start - last)
        last, before = max(last, end), name
    every = [gap for some in gaps.values() for gap in some]
    return {
        "busy_seconds": sum(sum(times) for times in kernels.values()) / num_steps,
        "short_gaps_seconds": sum(gap for gap in every if gap < _SMALL_GAP_SECONDS) / num_steps,
        "long_gaps_seconds": sum(gap for gap in every if gap >= _SMALL_GAP_SECONDS) / num_steps,
        "copies_seconds": sum(end - start for start, end, _ in copies if begin <= start < stop) / num_steps,
        "num_kernels": len(computing) / num_steps,
        "kernels": _longest(kernels, _NUM_KERNELS, num_steps),
        "gaps": _longest(gaps, _NUM_GAPS, num_steps),
    }


def _whole_steps(kernels: list[_Kernel], num_steps: int) -> tuple[list[_Kernel], int]:
    """The kernels from one step's first to that of the last step, and the number of steps between them.

    Before the first step, and behind the last one, the GPU waits for the call of TensorFlow that holds them. All
    kernels, if none runs once in each step.
    """
    starts: dict[str, list[int]] = {}
    for place, (_, _, name) in enumerate(kernels):
        starts.setdefault(name, []).append(place)
    once = next((places for places in starts.values() if len(places) == num_steps > 1), None)
    return (kernels, num_steps) if once is None else (kernels[once[0] : once[-1]], num_steps - 1)


def _longest(times: Mapping[str, list[float]], number: int, num_steps: int) -> dict[str, dict[str, float]]:
    """Name -> seconds and number in one step, of those that take longest."""
    by_time = sorted(times, key=lambda name: -sum(times[name]))[:number]
    return {name: {"seconds": sum(times[name]) / num_steps, "number": len(times[name]) / num_steps} for name in by_time}
