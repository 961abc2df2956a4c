"""Latency and memory of model files in their own runtimes, measured in child processes."""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel.compressing.comparison.variant_result import Latency
from tfaccel.compressing.variant import Variant
from tfaccel.errors import CompressionError
from tfaccel.processes.child import ProcessError, run_program

_PROGRAM = "tfaccel.compressing.comparison.runtime_probe"
_TIME_LIMIT_SECONDS = 900.0


def latencies(
    variants: Sequence[Variant],
    row: Mapping[str, np.ndarray],
    *,
    num_threads: Sequence[int],
    seconds: float,
    loading: Mapping[str, Any] | None = None,
) -> list[tuple[Latency, ...]]:
    """The latency of one example in each file, for each thread count.

    Files of one runtime are timed in one process, interleaved, so that a temporary slowdown affects all of them.

    Args:
        variants: the files.
        row: one example: arrays by name, of shape (1, ...).
        num_threads: thread counts to try.
        seconds: how long to time each file with each thread count.
        loading: how to load the Keras models among them; see `CompressSource.loading`.
    """
    found: list[list[Latency]] = [[] for _ in variants]
    for is_litert in (True, False):
        places = [place for place, variant in enumerate(variants) if variant.is_litert == is_litert]
        for threads in num_threads if places else ():
            task = {"files": [variants[place].path for place in places], "seconds": seconds, "memory": False}
            times = _answer(task, row, threads, loading)
            for place, values in zip(places, times, strict=True):
                found[place].append(_latency(values, threads))
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
        marked = {f"={name}": array for name, array in row.items()}  # no name is an argument of `savez`
        np.savez(inputs, **marked)  # type: ignore[arg-type]
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
