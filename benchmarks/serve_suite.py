"""The server's benchmark: batching's gain, the share of the model's own rate, latency, and what reloads cost."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel.benchmarks.figure import Figure
from tfaccel.benchmarks.http_load import closed_loop, open_loop
from tfaccel.benchmarks.report import Report
from tfaccel.benchmarks.serve_reloads import measure_reloads
from tfaccel.benchmarks.served_files import LARGE, RECIPES, add_version, exported, predict_requests, row_shape
from tfaccel.benchmarks.served_model import ServedModel
from tfaccel.benchmarks.suite_options import SuiteOptions
from tfaccel.errors import ServeError

NUM_CLIENTS = 32
MIN_GAIN = 3.0  # throughput with batching / without
BATCH_SIZE = 32  # rows of a full batch
LOADS = ((1, 1), (1, 8), (1, 64), (32, 1), (32, 8), (32, 64))  # rows of a request, clients
MIN_SHARE = 0.9  # rows per second of full batches from several clients / of the model itself
WINDOW_SECONDS, SHARE_SECONDS, WARM_UP_SECONDS = 6.0, 3.0, 1.0
_LARGE_WINDOWS, _LARGE_WARM_UP = 2, 8  # times as long for the large model, which needs 8 s for 64 full batches
SOAK_SECONDS, NUM_SOAK_CLIENTS = 60.0, 8
_SOAKED = "image_classification"
_RELOADED = (_SOAKED, LARGE)
SERVE_FIGURES = (*RECIPES, LARGE, "soak", "reloads")


def run_serve_suite(figures: Sequence[str], options: SuiteOptions) -> Report:
    """Measures the named figures: throughput and latency of a model, the soak test, or memory after reloads.

    Args:
        figures: names in `SERVE_FIGURES`.
        options: `scale` multiplies the seconds of each window, and the number of reloads.
    """
    found: list[Figure] = []
    raw: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="tfaccel-serve-suite-") as folder:

        def model(name: str) -> Path:
            return exported(name, Path(folder, name), options.progress)

        for name in figures:
            if name == "soak":
                found += _soak(name, model(_SOAKED), options)
            elif name == "reloads":
                for reloaded in _RELOADED:
                    memory, raw[reloaded] = measure_reloads(f"{name}, {reloaded}", model(reloaded), options)
                    found += memory
            else:
                found += _throughput(name, model(name), options)
    return Report(suite="serve", machine=options.machine(), measurements={}, figures=tuple(found), raw=raw)


def _throughput(name: str, model: Path, options: SuiteOptions) -> list[Figure]:
    """Requests per second with and without batching, interleaved; then the latency at half of the highest load."""
    seconds = WINDOW_SECONDS * options.scale
    rates: dict[str, list[float]] = {"with": [], "without": []}
    batched, alone = ServedModel(model / "saved_model"), ServedModel(model / "saved_model", "--max_batch_size=1")
    with batched, alone:
        requests = predict_requests(model, batched)
        for repetition in range(options.repetitions):
            for way, server in (("with", batched), ("without", alone)):
                options.progress(f"{name}: {way} batching, {repetition + 1} of {options.repetitions}")
                load = closed_loop(
                    server.port,
                    requests,
                    num_clients=NUM_CLIENTS,
                    seconds=seconds,
                    warm_up_seconds=WARM_UP_SECONDS * options.scale,
                )
                _check(load.num_failed, name)
                rates[way].append(load.per_second)
        half = max(rates["with"]) / 2
        options.progress(f"{name}: latency at half of the highest load")
        loads = [
            open_loop(batched.port, requests, per_second=half, num_clients=4 * NUM_CLIENTS, seconds=2 * seconds)
            for _ in range(options.repetitions)
        ]
        shares = _shares_of_the_model(name, model, batched, options)
    gains = tuple(a / b for a, b in zip(rates["with"], rates["without"], strict=True))
    figures = [
        Figure(
            name=name,
            quantity=f"throughput at {NUM_CLIENTS} clients with batching / without",
            values=gains,
            at_least=None if name == LARGE else MIN_GAIN,
        )
    ]
    figures += [
        Figure(name=name, quantity=f"requests per second, {way} batching", values=tuple(values))
        for way, values in rates.items()
    ]
    for percent in (50, 99):
        values = tuple(1000 * load.percentile(percent) for load in loads)
        figures.append(
            Figure(name=name, quantity=f"p{percent} in ms at {half:,.0f} requests per second", values=values)
        )
    failed = tuple(float(load.num_failed) for load in loads)
    return [*figures, Figure(name=name, quantity="failed requests at that load", values=failed, at_most=0), *shares]


def _shares_of_the_model(name: str, model: Path, server: ServedModel, options: SuiteOptions) -> list[Figure]:
    """Rows per second by rows of a request and by clients, and of the model called directly, interleaved.

    The model is called with as many rows as the clients have under way, and at most with a full batch.
    """
    own_rate = _own_rate(model)
    requests = {
        num_rows: predict_requests(model, server, num_rows=num_rows) for num_rows in {rows for rows, _ in LOADS}
    }
    served: dict[tuple[int, int], list[float]] = {load: [] for load in LOADS}
    alone: dict[tuple[int, int], list[float]] = {load: [] for load in LOADS}
    seconds, warm_up_seconds = SHARE_SECONDS * options.scale, WARM_UP_SECONDS * options.scale
    if name == LARGE:
        seconds, warm_up_seconds = _LARGE_WINDOWS * seconds, _LARGE_WARM_UP * warm_up_seconds
    for repetition in range(options.repetitions):
        options.progress(f"{name}: share of the model's own rate, {repetition + 1} of {options.repetitions}")
        for num_rows, num_clients in LOADS:
            load = closed_loop(
                server.port,
                requests[num_rows],
                num_clients=num_clients,
                seconds=seconds,
                warm_up_seconds=warm_up_seconds,
            )
            _check(load.num_failed, name)
            served[num_rows, num_clients].append(num_rows * load.per_second)
            alone[num_rows, num_clients].append(own_rate(min(BATCH_SIZE, num_rows * num_clients), seconds / 2))
    figures = []
    for (num_rows, num_clients), rates in served.items():
        own = alone[num_rows, num_clients]
        load_name = f"{num_rows} row{'s' * (num_rows > 1)} a request, {num_clients} client{'s' * (num_clients > 1)}"
        figures += [
            Figure(
                name=name,
                quantity=f"{load_name}: rows per second, served / the model itself",
                values=tuple(a / b for a, b in zip(rates, own, strict=True)),
                at_least=MIN_SHARE if num_rows == BATCH_SIZE and num_clients > 1 else None,
            ),
            Figure(name=name, quantity=f"{load_name}: rows per second, served", values=tuple(rates)),
            Figure(name=name, quantity=f"{load_name}: rows per second, the model itself", values=tuple(own)),
        ]
    return figures


def _own_rate(model: Path) -> Callable[[int, float], float]:
    """Rows per second of an exported model in this process: a function of the rows of a call and of seconds."""
    import tensorflow as tf

    loaded = tf.saved_model.load(str(model / "saved_model" / "1"))
    ((key, spec),) = loaded.signatures["serving_default"].structured_input_signature[1].items()
    rows = np.random.default_rng(0).integers(0, 256, (BATCH_SIZE, *row_shape(model))).astype(spec.dtype.as_numpy_dtype)

    def rate(num_rows: int, seconds: float) -> float:
        function, given = loaded.signatures["serving_default"], rows[:num_rows]
        return num_rows * _calls_a_second(lambda: function(**{key: tf.constant(given)}), seconds)

    return rate


def _calls_a_second(call: Callable[[], object], seconds: float) -> float:
    call()
    start, num_calls = time.perf_counter(), 0
    while time.perf_counter() < start + seconds:
        call()
        num_calls += 1
    return num_calls / (time.perf_counter() - start)


def _soak(name: str, model: Path, options: SuiteOptions) -> list[Figure]:
    """Clients that never pause, while a new version is deployed halfway through."""
    versions = model / "soak"
    versions.mkdir()
    add_version(model, versions, 1)

    def next_version() -> None:
        add_version(model, versions, 2)

    seconds = SOAK_SECONDS * options.scale
    options.progress(f"{name}: {seconds:.0f} s")
    with ServedModel(versions, "--poll_seconds=0.5") as server:
        requests = predict_requests(model, server)
        load = closed_loop(server.port, requests, num_clients=NUM_SOAK_CLIENTS, seconds=seconds, at_half=next_version)
        server.wait_for([1, 2])
        num_versions = len(server.versions())
    return [
        Figure(
            name=name,
            quantity=f"failed requests of {sum(load.statuses.values()):,} in {load.seconds:.0f} s",
            values=(float(load.num_failed),),
            at_most=0,
        ),
        Figure(name=name, quantity="versions that answered at the end", values=(float(num_versions),), at_least=2),
        Figure(name=name, quantity="p99 in ms", values=(1000 * load.percentile(99),)),
        Figure(name=name, quantity="longest in ms", values=(1000 * max(load.latencies),)),
    ]


def _check(num_failed: int, name: str) -> None:
    if num_failed:
        raise ServeError(f"{name}: {num_failed} requests failed while the throughput was measured.")
