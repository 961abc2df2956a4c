"""The benchmark of the proof: what comparing the first step with one device's adds to the first call of training."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from tfaccel.benchmarks.choice_tasks import FAMILIES
from tfaccel.benchmarks.figure import Figure
from tfaccel.benchmarks.gpu.trial import in_new_process
from tfaccel.benchmarks.report import Report
from tfaccel.benchmarks.suite_options import SuiteOptions

PROOF_FIGURES = tuple(FAMILIES)
MAX_SECONDS, MAX_FRACTION = 2.0, 0.33  # of the first call without it; whichever is more
_LIMIT_SECONDS = 400.0


def run_proof_suite(names: Sequence[str], options: SuiteOptions) -> Report:
    """Trains a step of each family under two replicas, in new processes, with the checks and without, in turn."""
    figures: list[Figure] = []
    raw: dict[str, Any] = {}
    for name in names:
        raw[name] = {"with": [], "without": []}
        for _ in range(options.repetitions):
            for way, checks in (("without", False), ("with", True)):
                options.progress(f"{name}, {way} checks")
                arguments = {"family": name, "checks": checks}
                found = in_new_process(f"{__name__}:first_call", arguments, limit_seconds=_LIMIT_SECONDS)
                raw[name][way].append(found)
        pairs = list(zip(raw[name]["with"], raw[name]["without"], strict=True))
        added = tuple(mine["seconds"] - other["seconds"] for mine, other in pairs)
        firsts = sorted(other["seconds"] for _, other in pairs)
        bound = max(MAX_SECONDS, MAX_FRACTION * firsts[len(firsts) // 2])
        figures.append(Figure(name=name, quantity="seconds that the checks add", values=added, at_most=round(bound, 2)))
        figures.append(Figure(name=name, quantity="seconds of the first call without them", values=tuple(firsts)))
    return Report(suite="proof", machine=options.machine(), measurements={}, figures=tuple(figures), raw=raw)


def first_call(family: str, checks: bool) -> dict[str, Any]:
    """Trains one step under two replicas on two logical CPUs; runs in a process of its own."""
    import keras
    import tensorflow as tf

    from tfaccel.training.fit import fit
    from tfaccel.training.runtime import split_cpu
    from tfaccel.training.steps.engine import get_engine

    split_cpu(2)
    chosen = FAMILIES[family]
    x, y = (array[: chosen.global_batch_size] for array in chosen.arrays())
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = chosen.build_model()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    started = time.perf_counter()
    fit(model, x, y, batch_size=chosen.global_batch_size, verbose=0, check_rows=checks)
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "proof": [str(proof) for proof in get_engine(model).checks.proofs.values()]}
