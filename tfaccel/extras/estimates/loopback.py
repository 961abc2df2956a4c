"""Latency and bandwidth of TensorFlow's collectives between worker processes on this machine, measured."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfaccel.errors import ClusterError
from tfaccel.extras.estimates.interconnect import Interconnect
from tfaccel.hardware.hardware import Hardware
from tfaccel.planning.cache import cache_file, keep_in_cache, read_from_cache
from tfaccel.processes.local_cluster import WorkerError, run_local_cluster
from tfaccel.training.run.result import installed_versions

NUM_WORKERS = 2
SIZES = (1, 1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 22)  # float32 values
ROUNDS = 7
LIMIT_SECONDS = 180.0
_PROGRAM = "tfaccel.extras.estimates.interconnect_program"
_FLOAT32_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class LinkFit:
    """A latency and a bandwidth that explain measured all-reduces.

    Args:
        latency_seconds, bytes_per_second: of a message between two workers.
        num_bytes: the sizes that were measured.
        measured_seconds: the median time of an all-reduce of each size.
        max_error: the largest relative difference between a measured time and the model's.
    """

    latency_seconds: float
    bytes_per_second: float
    num_bytes: tuple[int, ...]
    measured_seconds: tuple[float, ...]
    max_error: float


def fit_link(num_bytes: Sequence[int], seconds: Sequence[float], num_workers: int) -> LinkFit:
    """Fits latency and bandwidth to the times of ring all-reduces by least squares of the relative errors.

    Args:
        num_bytes: sizes, at least two different ones.
        seconds: the time for each.
        num_workers: in the ring.

    Example:
        >>> link = fit_link([0, 1000, 4000], [2.0, 3.0, 6.0], 2)
        >>> round(link.latency_seconds, 6), round(link.bytes_per_second, 3), round(link.max_error, 6)
        (1.0, 1000.0, 0.0)
    """
    steps = 2 * (num_workers - 1)
    sizes, times = np.asarray(num_bytes, float), np.asarray(seconds, float)
    terms = np.stack([np.full(len(sizes), float(steps)), steps / num_workers * sizes], axis=1)
    scales = terms.max(axis=0)
    (alpha, beta), *_ = np.linalg.lstsq(terms / scales / times[:, None], np.ones(len(times)))
    alpha, beta = alpha / scales[0], beta / scales[1]
    if not beta > 0:
        raise ClusterError(
            f"No bandwidth fits the times of all-reduces of {list(num_bytes)} bytes, {list(seconds)} seconds: larger "
            "ones took no longer. Is the machine busy? Measure again."
        )
    alpha = max(0.0, float(alpha))
    errors = np.abs(terms @ [alpha, beta] / times - 1)
    return LinkFit(
        latency_seconds=alpha,
        bytes_per_second=1 / float(beta),
        num_bytes=tuple(num_bytes),
        measured_seconds=tuple(map(float, seconds)),
        max_error=float(errors.max()),
    )


def measure_link(sizes: Sequence[int] = SIZES, rounds: int = ROUNDS) -> LinkFit:
    """Times ring all-reduces between two worker processes, each on half of the cores, and fits the model."""
    command = [sys.executable, "-m", _PROGRAM, json.dumps({"sizes": list(sizes), "rounds": rounds})]
    try:
        outputs = run_local_cluster(command, num_workers=NUM_WORKERS, time_limit_seconds=LIMIT_SECONDS)
    except WorkerError as error:
        raise ClusterError(f"The network between two local workers could not be measured. {error}") from error
    answer = json.loads(outputs[0].stdout.splitlines()[-1])
    seconds = [statistics.median(found) for found in answer["seconds"]]
    return fit_link([_FLOAT32_BYTES * size for size in sizes], seconds, answer["num_workers"])


def loopback_interconnect(
    hardware: Hardware, *, use_cache: bool = True, progress: Callable[[str], None] = lambda text: None
) -> Interconnect:
    """What connects two worker processes on this machine, measured, or kept from an earlier call.

    Args:
        hardware: this machine; the cache is keyed by its CPU and by the versions of the libraries.
        use_cache: False to measure again.
        progress: called with a line before a measurement.

    Raises:
        ClusterError: as `measure_link`.
    """
    machine = [hardware.cpu_model, hardware.num_usable_cores, installed_versions()]
    file = cache_file("interconnect.json")

    def read(entry: Any) -> Interconnect | None:
        return Interconnect.from_json(entry["interconnect"]) if entry["machine"] == machine else None

    kept = read_from_cache(file, read, "The measured network in {} is ignored") if use_cache else None
    if kept is not None:
        return kept
    progress("measuring all-reduces between two worker processes")
    link = measure_link()
    found = Interconnect(
        name="loopback",
        machine_latency_seconds=link.latency_seconds,
        machine_bytes_per_second=link.bytes_per_second,
        source="measured between two worker processes on this machine (gRPC), each counted as a machine; the model "
        f"is off by at most {link.max_error:.0%} for {link.num_bytes[0]:,} to {link.num_bytes[-1]:,} bytes",
    )
    keep_in_cache(file, {"machine": machine, "interconnect": found.to_json()}, "The measured network was")
    return found
