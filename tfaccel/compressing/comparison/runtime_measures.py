"""Latency and memory of model files in their own runtimes, measured in child processes.

As a program, this module is the child. It reads JSON from standard input: {"files", "inputs" (an .npz file with one
example), "num_threads", "seconds" (per file), "memory" (of the first file instead of times)}, and for Keras models
"imports" (modules with their layers), "path" (where those are) and "nest" (the input structure, with names in place of
arrays). It writes JSON: a list of seconds for each file, or the number of bytes.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel.compressing.variant import Latency, Variant
from tfaccel.errors import CompressionError
from tfaccel.graph_function import graph_function
from tfaccel.processes.child import ProcessError, run_program

_PROGRAM = "tfaccel.compressing.comparison.runtime_measures"
_TIME_LIMIT_SECONDS = 900.0
_MIN_CALLS, _MAX_CALLS, _CALLS_AT_ONCE = 20, 3000, 10
_WARM_UP_CALLS = 5


def latencies(
    variants: Sequence[Variant],
    row: Mapping[str, np.ndarray],
    *,
    num_threads: Sequence[int],
    seconds: float,
    loading: Mapping[str, Any] | None = None,
) -> list[tuple[Latency, ...]]:
    """The latency of one example in each file, for each thread count.

    The files are timed in one process, interleaved, so that a temporary slowdown affects all of them.

    Args:
        variants: the files, all of one runtime.
        row: one example: arrays by name, of shape (1, ...).
        num_threads: thread counts to try.
        seconds: how long to time each file with each thread count.
        loading: how to load Keras models; see `CompressSource.loading`.
    """
    found: list[list[Latency]] = [[] for _ in variants]
    task = {"files": [variant.path for variant in variants], "seconds": seconds, "memory": False}
    for threads in num_threads if variants else ():
        for one, times in zip(found, _answer(task, row, threads, loading), strict=True):
            one.append(_latency(times, threads))
    return [tuple(one) for one in found]


def peak_memory_bytes(
    variant: Variant, row: Mapping[str, np.ndarray], *, loading: Mapping[str, Any] | None = None
) -> int:
    """The peak memory added by loading and running a file, over having only imported the runtime."""
    task = {"files": [variant.path], "seconds": 0.0, "memory": True}
    return int(_answer(task, row, 1, loading))


def default_num_threads() -> tuple[int, ...]:
    """One thread, and as many as there are usable cores."""
    return tuple(sorted({1, len(os.sched_getaffinity(0))}))


def _latency(seconds: list[float], num_threads: int) -> Latency:
    ordered = sorted(seconds)
    return Latency(
        num_threads=num_threads,
        p50_seconds=statistics.median(ordered),
        p95_seconds=ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))],
        num_calls=len(ordered),
    )


def _answer(
    task: dict[str, Any], row: Mapping[str, np.ndarray], num_threads: int, loading: Mapping[str, Any] | None
) -> Any:
    """The child program's answer."""
    environment = {
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_NUM_INTRAOP_THREADS": str(num_threads),
    }
    with tempfile.TemporaryDirectory(prefix="tfaccel-probe-") as folder:
        inputs = Path(folder) / "inputs.npz"
        np.savez(inputs, **row)  # type: ignore[arg-type]
        asked = {**task, "inputs": str(inputs), "num_threads": num_threads, **(loading or {})}
        try:
            answer = run_program(
                [sys.executable, "-m", _PROGRAM],
                given=json.dumps(asked),
                environment=environment,
                time_limit_seconds=_TIME_LIMIT_SECONDS,
            )
        except ProcessError as error:
            raise CompressionError(f"Measuring {', '.join(task['files'])} failed: {error}") from error
    return json.loads(answer.strip().splitlines()[-1])


def main() -> None:
    """Runs the task read from standard input."""
    task = json.loads(sys.stdin.read())
    with np.load(task["inputs"]) as arrays:
        inputs = dict(arrays)
    answer: Any
    if task["memory"]:
        answer = _peak_bytes(task["files"][0], inputs, task)
    else:
        calls = [_loaded(file, inputs, task) for file in task["files"]]
        answer = _times(calls, seconds=task["seconds"])
    sys.stdout.write(json.dumps(answer) + "\n")


def _loaded(file: str, inputs: dict[str, np.ndarray], task: dict[str, Any]) -> Callable[[], None]:
    """A function that runs a model once."""
    if Path(file).suffix == ".keras":
        return _loaded_keras(file, inputs, task)
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=file, num_threads=task["num_threads"])
    interpreter.allocate_tensors()
    runner = interpreter.get_signature_runner("serving_default")
    places = {name: detail["index"] for name, detail in runner.get_input_details().items()}
    outputs = [detail["index"] for detail in runner.get_output_details().values()]

    def call() -> None:
        for name, index in places.items():
            interpreter.set_tensor(index, inputs[name])
        interpreter.invoke()
        for index in outputs:
            interpreter.get_tensor(index)

    return call


def _loaded_keras(file: str, inputs: dict[str, np.ndarray], task: dict[str, Any]) -> Callable[[], None]:
    sys.path += [folder for folder in task.get("path", ()) if folder not in sys.path]
    for module in task.get("imports", ()):
        import_module(module)
    import keras

    model = keras.models.load_model(file, compile=False, safe_mode=False)
    x = keras.tree.map_structure(lambda name: inputs[name], task.get("nest", next(iter(inputs))))
    function = graph_function(lambda values: model(values, training=False))

    def call() -> None:
        keras.tree.map_structure(np.asarray, function(x))

    return call


def _times(calls: list[Callable[[], None]], *, seconds: float) -> list[list[float]]:
    """Seconds of each call, the models interleaved in random order."""
    found: list[list[float]] = [[] for _ in calls]
    for call in calls:
        for _ in range(_WARM_UP_CALLS):
            call()
    order = list(range(len(calls)))
    generator = random.Random(0)
    while any(_wants_more(times, seconds) for times in found):
        generator.shuffle(order)
        for number in order:
            if _wants_more(found[number], seconds):
                found[number] += _timed(calls[number])
    return found


def _wants_more(times: list[float], seconds: float) -> bool:
    return len(times) < _MIN_CALLS or (sum(times) < seconds and len(times) < _MAX_CALLS)


def _timed(call: Callable[[], None]) -> list[float]:
    call()  # Warm-up: another model has filled the processor's caches.
    times = []
    for _ in range(_CALLS_AT_ONCE):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return times


def _peak_bytes(file: str, inputs: dict[str, np.ndarray], task: dict[str, Any]) -> int:
    """The peak memory that loading and running a model adds to this process."""
    if Path(file).suffix == ".keras":
        import keras  # noqa: F401  The library itself is not counted.
    else:
        import ai_edge_litert.interpreter  # noqa: F401
    before = _status_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # Resets the peak.
    call = _loaded(file, inputs, task)
    for _ in range(_WARM_UP_CALLS):
        call()
    return max(0, _status_bytes("VmHWM") - before)


def _status_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])


if __name__ == "__main__":
    main()
