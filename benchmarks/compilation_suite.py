"""The benchmark of the first call of training: with XLA and its programs on disk or not; and of a small model."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tfaccel.benchmarks.figure import Figure
from tfaccel.benchmarks.gpu.trial import in_new_process
from tfaccel.benchmarks.report import Report
from tfaccel.benchmarks.suite_options import SuiteOptions
from tfaccel.files import CACHE_VARIABLE
from tfaccel.planning.compilation_cache import SWITCH

if TYPE_CHECKING:
    import keras

REPLICAS: Mapping[str, int] = {"one_device": 1, "two_replicas": 2}
SMALL: Mapping[str, tuple[int, int | None, float]] = {  # epochs, steps of each, and what the speed must reach
    "digits": (5, None, 2.5),
    "ten_steps": (1, 10, 1.0),
}
COMPILATION_FIGURES = (*REPLICAS, *SMALL)
_AT_MOST = {"one_device": 0.6, "two_replicas": 0.5}  # of the processor time without the cache
_FILTERS = (16, 16, 32, 32, 64, 64)
_BATCH_SIZE = 16
_NUM_FILLING = 2  # two replicas are traced side by side, so that their programs may come in another order
_LIMIT_SECONDS = 300.0


def run_compilation_suite(names: Sequence[str], options: SuiteOptions) -> Report:
    """Trains in new processes, in turn: six convolutions without and with programs on disk; digits with both `fit`s."""
    figures: list[Figure] = []
    raw: dict[str, Any] = {}
    for name in filter(SMALL.__contains__, names):
        raw[name] = _small_models(name, options)
        pairs = list(zip(raw[name]["tfaccel.fit"], raw[name]["Model.fit"], strict=True))
        figures.append(
            Figure(
                name=name,
                quantity="speed of the whole first call, tfaccel.fit / Model.fit",
                values=tuple(keras["seconds"] / ours["seconds"] for ours, keras in pairs),
                at_least=SMALL[name][2],
                loss_difference=max(abs(ours["loss"] - keras["loss"]) for ours, keras in pairs),
            )
        )
    for name in filter(REPLICAS.__contains__, names):
        folder = tempfile.mkdtemp(prefix="tfaccel-")
        try:
            raw[name] = _measured(name, folder, options)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        pairs = list(zip(raw[name]["filled"], raw[name]["without"], strict=True))
        for kind, what in (("processor", "processor time"), ("wall", "time")):
            ratios = tuple(filled[kind] / without[kind] for filled, without in pairs)
            figures.append(
                Figure(
                    name=name,
                    quantity=f"{what} of the first call, filled cache / none",
                    values=ratios,
                    at_most=_AT_MOST[name] if kind == "processor" else None,
                    loss_difference=max(abs(one["loss"] - other["loss"]) for one, other in pairs),
                    loss_tolerance=0.0,
                )
            )
    return Report(suite="compilation", machine=options.machine(), measurements={}, figures=tuple(figures), raw=raw)


def _measured(name: str, folder: str, options: SuiteOptions) -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = {"empty": [], "without": [], "filled": []}

    def train(way: str, switch: str | None) -> None:
        options.progress(f"{name}, cache: {way}")
        environment = {"TF_XLA_FLAGS": None, CACHE_VARIABLE: folder, SWITCH: switch}
        arguments, function = {"num_replicas": REPLICAS[name]}, f"{__name__}:first_call"
        found[way].append(in_new_process(function, arguments, limit_seconds=_LIMIT_SECONDS, environment=environment))

    for _ in range(_NUM_FILLING):
        train("empty", None)
    for _ in range(options.repetitions):
        train("without", "0")
        train("filled", None)
    return found


def _small_models(name: str, options: SuiteOptions) -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = {"tfaccel.fit": [], "Model.fit": []}
    epochs, steps, _ = SMALL[name]
    for _ in range(options.repetitions):
        for way, results in found.items():
            options.progress(f"{name}, {way}")
            arguments = {"is_tfaccel": way == "tfaccel.fit", "epochs": epochs, "steps": steps}
            function = f"{__name__}:small_first_call"
            results.append(in_new_process(function, arguments, limit_seconds=_LIMIT_SECONDS))
    return found


def small_first_call(is_tfaccel: bool, epochs: int, steps: int | None) -> dict[str, float]:
    """Trains the model of the README on digits; runs in a process of its own. Returns seconds, and the loss."""
    import keras
    from sklearn.datasets import load_digits

    import tfaccel

    keras.utils.set_random_seed(0)
    x, y = load_digits(return_X_y=True)
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    options = {"epochs": epochs, "steps_per_epoch": steps, "shuffle": False, "verbose": 0}
    fit = tfaccel.fit if is_tfaccel else keras.Model.fit
    started = time.perf_counter()
    history = fit(model, x, y, **options).history
    return {"seconds": time.perf_counter() - started, "loss": history["loss"][-1]}


def six_convolutions() -> keras.Model:
    """A network for images of 32 x 32 x 3 and ten classes, compiled for XLA."""
    import keras

    model = keras.Sequential([keras.Input((32, 32, 3))])
    for filters in _FILTERS:
        model.add(keras.layers.Conv2D(filters, 3, padding="same"))
        model.add(keras.layers.LayerNormalization())
        model.add(keras.layers.ReLU())
    model.add(keras.layers.GlobalAveragePooling2D())
    model.add(keras.layers.Dense(10))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, jit_compile=True)
    return model


def first_call(num_replicas: int) -> dict[str, float]:
    """Trains two steps with XLA; runs in a process of its own. Returns its times in seconds, and the loss."""
    from tfaccel.planning.plan import Plan
    from tfaccel.training.runtime import Runtime

    devices = tuple(f"CPU:{i}" for i in range(num_replicas))
    plan = Plan(
        strategy="none" if num_replicas == 1 else "mirrored",
        devices=devices,
        num_logical_cpus=num_replicas,
        global_batch_size=_BATCH_SIZE,
        jit_compile=True,
    )
    with Runtime(plan, seed=0) as runtime:
        import numpy as np

        from tfaccel.training.fit import fit

        with runtime.strategy.scope():
            model = six_convolutions()
        x = np.random.default_rng(0).normal(size=(2 * _BATCH_SIZE, 32, 32, 3)).astype("float32")
        y = np.arange(2 * _BATCH_SIZE) % 10
        wall, processor = time.perf_counter(), time.process_time()
        # Comparing the step with one device's takes time of its own, in which nothing is compiled.
        history = fit(model, x, y, batch_size=_BATCH_SIZE, shuffle=False, verbose=0, check_rows=False).history
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
    return {"wall": wall, "processor": processor, "loss": history["loss"][-1]}
