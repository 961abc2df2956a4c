"""Run directories as `train`, `tune` and `compress` leave them, made from the nouns that those write."""

import json
import math

import numpy as np
from PIL import Image

from tfaccel.compressing.compress_result import CompressResult
from tfaccel.compressing.variant import Latency, Variant, VariantResult
from tfaccel.costs.model_cost import LayerCost, StepCost
from tfaccel.files import write_json, write_json_lines
from tfaccel.hardware.hardware import Hardware
from tfaccel.measuring.report import FIRST_PLAN, Candidate, Report
from tfaccel.measuring.roofline import Roofline
from tfaccel.planning.machine_ceilings import MachineCeilings
from tfaccel.planning.plan import Plan
from tfaccel.training.run.performance import TimedWindow
from tfaccel.training.run.result import TrainResult
from tfaccel.tuning.objective import Objective
from tfaccel.tuning.search_result import SearchResult, TrialRow

ATTACK = '</script><img src=x onerror="window.attacked=1"><b>\'&'
HARDWARE = Hardware(cpu_model="A CPU", num_physical_cores=2, num_usable_cores=2, memory_bytes=16 * 2**30).to_json()
PLAN = Plan(
    strategy="none",
    devices=("CPU:0",),
    global_batch_size=32,
    dtype_policy="mixed_bfloat16",
    reasons=[("strategy", "One device needs no strategy."), ("dtype_policy", "Measured on this machine: 1.3 times.")],
)


def write_run(
    path, *, epochs=5, finished=True, extra=None, recipe="digits", metric="accuracy", seed=0, validation=True
):
    """A training run; `extra` holds further fields of each row."""
    path.mkdir(parents=True)
    losses = [1.5 / (epoch + 1) + 0.1 for epoch in range(epochs)]
    columns = {metric: [1 - loss / 4 for loss in losses], "loss": losses}
    if validation:
        columns |= {f"val_{name}": [value * 1.05 for value in values] for name, values in list(columns.items())}
    rows = [
        {"epoch": epoch, "step": 20 * (epoch + 1), "seconds": 2.0 + epoch}
        | {name: values[epoch] for name, values in columns.items()}
        | (extra or {})
        for epoch in range(epochs)
    ]
    options = {"learning_rate": None, "note": recipe, "seed_of_data": seed}
    config = {"recipe": recipe, "options": options, "epochs": 5, "seed": seed, "global_batch_size": 32}
    write_json(path / "config.json", config)
    write_json(path / "plan.json", PLAN.to_json())
    if rows:
        write_json_lines(path / "metrics.jsonl", rows)
    if finished:
        write_json(path / "result.json", result(path, recipe, columns).to_json())
        Image.fromarray(np.arange(60 * 90, dtype="uint32").reshape(60, 90).astype("uint8")).save(path / "shown.png")
    return path


def result(path, recipe, columns):
    return TrainResult(
        recipe=recipe,
        plan=PLAN,
        history=columns,
        final={name.removeprefix("val_"): values[-1] for name, values in columns.items()},  # validation data come last
        examples_per_second=1234.5,
        step_seconds={"median": 0.026, "p95": 0.04},
        first_step_seconds=1.5,
        wall_seconds=9.0,
        hardware=HARDWARE,
        versions={"python": "3.11", "keras": "3.15"},
        run_dir=str(path),
    )


def autotune_report(workload="digits"):
    def candidate(axis, seconds, **fields):
        windows = tuple(TimedWindow(seconds=one, num_steps=10, loss=1.0) for one in seconds)
        plan = fields.pop("plan", Plan(strategy="none", devices=("CPU:0",), global_batch_size=32))
        return Candidate(plan=plan, axis=axis, windows=windows, first_step_seconds=1.0, peak_bytes=2**28, **fields)

    candidates = (
        candidate(FIRST_PLAN, (0.30, 0.31)),
        candidate("precision", (0.20, 0.21), plan=PLAN, speedup=1.5),
        candidate(
            "XLA", (), plan=Plan(strategy="none", devices=("CPU:0",), global_batch_size=32, jit_compile=True),
            failure=f"out of memory {ATTACK}",
        ),
    )  # fmt: skip
    return Report(
        workload=workload,
        candidates=candidates,
        chosen=1,
        gains={"precision": 1.5},
        seconds=12.0,
        hardware=HARDWARE,
        versions={},
        stopped_because="3 plans were measured (max_candidates).",
    )


def roofline_data(*, step_seconds=0.0125):
    """What `tfaccel roofline --report=FILE` writes."""
    ceilings = {"float32": 1e11, "bfloat16": 2e11}
    dense = LayerCost(name="dense", matrix_flops=2_000_000_000, least_bytes=10_000_000)
    return Roofline(
        workload="digits",
        plan=PLAN,
        ceilings=MachineCeilings(device="CPU", matrix_flops_per_second=ceilings, bytes_per_second=2e10),
        cost=StepCost(rows=(dense, LayerCost(name="bias"))),
        step_seconds=step_seconds,
        cpu_utilization=0.9,
    ).to_json()


def keep(report, cache):
    """Keeps a report as `find_fastest` does."""
    (cache / "plans").mkdir(parents=True, exist_ok=True)
    (cache / "plans" / "0.json").write_text(json.dumps({"plan": report.plan.to_json(), "report": report.to_json()}))


def write_search(path, *, objective=(("val_accuracy", "max"),), finished=True):
    path.mkdir(parents=True)
    rows = [
        TrialRow(
            trial_id=f"{number:02}",
            hyperparameters={"learning_rate": 10.0 ** (-1 - number / 2), "optimizer": ("adam", "sgd")[number % 2]},
            status=("completed", "pruned", "failed")[0 if number < 4 else number - 3],
            score=None if number == 5 else 0.9 - number / 100,
            seconds=3.0,
            cause=f"the loss became NaN {ATTACK}" if number == 5 else None,
            metrics={"val_accuracy": 0.9 - number / 100, "model_bytes": 1000.0 + 10 * number},
            epochs=3,
        )
        for number in range(6)
    ]
    found = Objective(tuple(objective))
    write_json(path / "config.json", {"search": "digits", "algorithm": "tpe", "objective": None})
    write_json(path / "space.json", {"space": []})
    write_json_lines(path / "trials.jsonl", [row.to_json() for row in rows])
    if finished:
        whole = SearchResult(
            run_dir=str(path), algorithm="tpe", objective=found, rows=tuple(rows), best=rows[0],
            pareto=(rows[0],), wall_seconds=20.0,
        )  # fmt: skip
        write_json(path / "search.json", whole.to_json())
    return path


def write_comparison(path):
    def variant(name, size, accuracy, seconds, failure=""):
        return VariantResult(
            variant=Variant(name=name, method=name, path=f"{name}.tflite"),
            metrics={} if failure else {"accuracy": accuracy},
            size_bytes=size,
            zipped_bytes=size,
            latencies=()
            if failure
            else (Latency(num_threads=1, p50_seconds=seconds, p95_seconds=seconds, num_calls=9),),
            agreement=math.nan if failure else 0.99,
            failure=failure,
        )

    variants = (
        variant("float32", 300_000, 0.98, 2e-5),
        variant("int8", 80_000, 0.98, 1e-5),
        variant("dynamic", 80_500, 0.5, 1e-5),
        variant("qat", 0, 0.0, 0.0, failure="the layer has no kernel"),
    )
    path.mkdir(parents=True)
    found = CompressResult(metric="accuracy", max_metric_drop=0.01, results=variants, held_out="300 examples")
    write_json(path / "report.json", found.to_json())
    return path
