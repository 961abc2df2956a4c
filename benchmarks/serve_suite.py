"""The server's benchmark: the gain from batching, the latency, and whether a hot reload drops requests."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel.benchmarks.figure import Figure
from tfaccel.benchmarks.http_load import closed_loop, open_loop, post
from tfaccel.benchmarks.report import Report
from tfaccel.benchmarks.served_model import ServedModel
from tfaccel.benchmarks.suite_options import SuiteOptions
from tfaccel.errors import ServeError
from tfaccel.processes.child import ProcessError, run_program

NUM_CLIENTS = 32
MIN_GAIN = 3.0  # throughput with batching / without
NUM_ROWS, NUM_ROW_CLIENTS = 32, 64  # for requests with several rows
MIN_SHARE = 0.8  # rows per second of such requests / of the model itself with the same batch size
WINDOW_SECONDS, WARM_UP_SECONDS = 6.0, 1.0
SOAK_SECONDS, NUM_SOAK_CLIENTS = 60.0, 8
_VERSION_SECONDS = 30.0  # time limit until the next version is served
_NUM_BODIES = 64  # distinct requests
# The served models: a recipe, and the flags to train it briefly.
_RECIPES = {
    "image_classification": ("--epochs=1",),
    "text_classification": ("--epochs=1", "--model=lstm"),
}
SERVE_FIGURES = (*_RECIPES, "soak")


def run_serve_suite(figures: Sequence[str], options: SuiteOptions) -> Report:
    """Measures the named figures: throughput and latency of a recipe's model, or the soak test.

    Args:
        figures: names in `SERVE_FIGURES`.
        options: `scale` multiplies the seconds of each window.
    """
    found: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="tfaccel-serve-suite-") as folder:
        for name in figures:
            recipe = "image_classification" if name == "soak" else name
            model = _exported(recipe, Path(folder, recipe), options.progress)
            found += (_soak if name == "soak" else _throughput)(name, model, options)
    return Report(suite="serve", machine=options.machine(), measurements={}, figures=tuple(found))


def _throughput(name: str, model: Path, options: SuiteOptions) -> list[Figure]:
    """Requests per second with and without batching, interleaved; then the latency at half of the highest load."""
    seconds = WINDOW_SECONDS * options.scale
    rates: dict[str, list[float]] = {"with": [], "without": []}
    batched, alone = ServedModel(model / "saved_model"), ServedModel(model / "saved_model", "--max_batch_size=1")
    with batched, alone:
        requests = _requests(model, batched.name)
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
        shares = _share_of_the_model(name, model, batched, options)
    gains = tuple(a / b for a, b in zip(rates["with"], rates["without"], strict=True))
    figures = [
        Figure(
            name=name,
            quantity=f"throughput at {NUM_CLIENTS} clients with batching / without",
            values=gains,
            at_least=MIN_GAIN,
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


def _share_of_the_model(name: str, model: Path, server: ServedModel, options: SuiteOptions) -> list[Figure]:
    """Rows per second of requests with several rows, and of the model called directly, interleaved."""
    import tensorflow as tf

    seconds = WINDOW_SECONDS * options.scale
    requests, shape = _requests(model, server.name, num_rows=NUM_ROWS), json.loads((model / "input.json").read_text())
    loaded = tf.saved_model.load(str(model / "saved_model" / "1"))
    function = loaded.signatures["serving_default"]
    ((key, spec),) = function.structured_input_signature[1].items()
    rows = np.random.default_rng(0).integers(0, 256, (NUM_ROWS, *shape)).astype(spec.dtype.as_numpy_dtype)
    served, alone = [], []
    for repetition in range(options.repetitions):
        options.progress(f"{name}: {NUM_ROWS} rows per request, {repetition + 1} of {options.repetitions}")
        load = closed_loop(
            server.port,
            requests,
            num_clients=NUM_ROW_CLIENTS,
            seconds=seconds,
            warm_up_seconds=WARM_UP_SECONDS * options.scale,
        )
        _check(load.num_failed, name)
        served.append(NUM_ROWS * load.per_second)
        alone.append(NUM_ROWS * _calls_a_second(lambda: function(**{key: tf.constant(rows)}), seconds / 2))
    shares = tuple(a / b for a, b in zip(served, alone, strict=True))
    return [
        Figure(
            name=name,
            quantity=f"{NUM_ROWS} rows per request: rows per second, served / the model itself",
            values=shares,
            at_least=MIN_SHARE,
        ),
        Figure(name=name, quantity=f"{NUM_ROWS} rows per request: rows per second, served", values=tuple(served)),
        Figure(name=name, quantity=f"batches of {NUM_ROWS}: rows per second, the model itself", values=tuple(alone)),
    ]


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
    shutil.copytree(model / "saved_model" / "1", versions / "1")
    shutil.copytree(model / "saved_model" / "1", model / "next")

    def next_version() -> None:
        os.replace(model / "next", versions / "2")

    seconds = SOAK_SECONDS * options.scale
    options.progress(f"{name}: {seconds:.0f} s")
    with ServedModel(versions, "--poll_seconds=0.5") as server:
        requests = _requests(model, server.name)
        load = closed_loop(server.port, requests, num_clients=NUM_SOAK_CLIENTS, seconds=seconds, at_half=next_version)
        answers = _num_versions(server, at_least=2)
    return [
        Figure(
            name=name,
            quantity=f"failed requests of {sum(load.statuses.values()):,} in {load.seconds:.0f} s",
            values=(float(load.num_failed),),
            at_most=0,
        ),
        Figure(name=name, quantity="versions that answered at the end", values=(float(answers),), at_least=2),
        Figure(name=name, quantity="p99 in ms", values=(1000 * load.percentile(99),)),
        Figure(name=name, quantity="longest in ms", values=(1000 * max(load.latencies),)),
    ]


def _num_versions(server: ServedModel, *, at_least: int) -> int:
    """The number of served versions; waits for `at_least`, since short runs end before."""
    import urllib.request

    deadline = time.monotonic() + _VERSION_SECONDS
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/v1/models/{server.name}") as answer:
            states = json.load(answer)["model_version_status"]
        found = sum(state["state"] == "AVAILABLE" for state in states)
        if found >= at_least or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


def _requests(model: Path, name: str, *, num_rows: int = 1) -> list[bytes]:
    """Requests in row format."""
    rng = np.random.default_rng(0)
    shape = json.loads((model / "input.json").read_text())
    values = rng.integers(0, 256, (_NUM_BODIES, num_rows, *shape))  # pixels, or token ids of common words
    bodies = [json.dumps({"instances": rows}, separators=(",", ":")).encode() for rows in values.tolist()]
    return [post(f"/v1/models/{name}:predict", body) for body in bodies]


def _exported(recipe: str, folder: Path, progress: Callable[[str], None]) -> Path:
    """A recipe's model, briefly trained and exported in child processes; once for each folder."""
    if folder.exists():
        return folder
    progress(f"{recipe}: training and exporting a model")
    _run("train", f"--recipe={recipe}", f"--run_dir={folder}-run", "--quiet", *_RECIPES[recipe])
    _run("export", f"--run_dir={folder}-run", "--formats=saved_model", f"--out={folder}", "--quiet")
    with ServedModel(folder / "saved_model") as server:
        described = _metadata(server)
    shape = [int(dim["size"]) for dim in described["tensor_shape"]["dim"][1:]]
    (folder / "input.json").write_text(json.dumps(shape))
    return folder


def _metadata(server: ServedModel) -> Any:
    import urllib.request

    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/v1/models/{server.name}/metadata") as answer:
        signatures = json.load(answer)["metadata"]["signature_def"]["signature_def"]
    return next(iter(signatures["serving_default"]["inputs"].values()))


def _run(*arguments: str) -> None:
    code = "import sys; from tfaccel.scripts.main import main; sys.exit(main(['tfaccel', *sys.argv[1:]]))"
    try:
        run_program([sys.executable, "-c", code, *arguments])
    except ProcessError as error:
        raise ServeError(f"tfaccel {arguments[0]} failed: {error}") from error


def _check(num_failed: int, name: str) -> None:
    if num_failed:
        raise ServeError(f"{name}: {num_failed} requests failed while the throughput was measured.")
