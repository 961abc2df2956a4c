"""Steps of the GPU suite with its figures: the chosen plan, plain `Model.fit` and PyTorch, in turn, and choosing."""

from __future__ import annotations

import itertools
import statistics
import time
from dataclasses import replace
from typing import Any

from tfaccel.benchmarks.gpu.racers import CHOSEN, MODEL_FIT, TORCH, TaskRacers
from tfaccel.benchmarks.gpu.step import StepRun
from tfaccel.benchmarks.gpu.tasks import WORKLOAD
from tfaccel.benchmarks.timed_race import ratios
from tfaccel.errors import PlanError
from tfaccel.measuring.find_fastest import find_fastest
from tfaccel.measuring.measure_options import MeasureOptions
from tfaccel.measuring.roofline import roofline
from tfaccel.planning.plan import Plan

MIN_OF_TORCH = 0.9
MAX_CHOICE_SECONDS = 60.0
MIN_MFU = 0.45
MIN_OF_BEST = 0.9
_REGRET_SECONDS, _REGRET_ROUNDS = 390.0, 5
_XLA, _XLA_ALONE, _XLA_BFLOAT16 = "XLA, one replica", "XLA, no strategy", "XLA, one replica, bfloat16"
_KERAS_REPLICA = "Model.fit, one replica"


def choice(run: StepRun, task: str) -> None:
    """Finds the fastest plan for one device, and how long that takes."""
    limits = {"max_candidates": 2, "budget_seconds": 600.0} if run.is_rehearsal else {}
    measure = MeasureOptions(for_new_process=True, use_cache=False, **limits)  # type: ignore[arg-type]
    started = time.perf_counter()
    found = find_fastest(WORKLOAD, measure=measure, task=task, is_tiny=run.is_rehearsal, **run.one_device)
    seconds = time.perf_counter() - started
    run.record("report", replace(found, kept_in=None).to_json())
    run.record("plan", found.plan.to_json())
    run.figure(f"{task}, choosing", "seconds", [seconds], at_most=MAX_CHOICE_SECONDS)
    run.figure(f"{task}, choosing", "plans measured", [float(len(found.candidates))])


def figures(run: StepRun, task: str, at_least: float | None = None) -> None:
    """The chosen plan, `Model.fit` with its defaults, and PyTorch."""
    with TaskRacers(run, task) as racers:
        plan = racers.chosen_plan()
        run.record("plan", plan.to_json())
        racers.add_plan(CHOSEN, plan)
        racers.add_keras()
        racers.add_torch()
        racers.race()
        racers.ratio(task, CHOSEN, MODEL_FIT, **({} if at_least is None else {"at_least": at_least}))
        racers.ratio(task, CHOSEN, TORCH, at_least=MIN_OF_TORCH)


def one_replica_xla(run: StepRun) -> None:
    """XLA under a MirroredStrategy of one replica; plain Keras under the same, which leaves XLA out; and no strategy.

    All in float32; PyTorch is compared with the same in bfloat16.
    """
    device = f"{run.kind}:0"
    with TaskRacers(run, "transformer") as racers:
        fields: dict[str, Any] = {"devices": (device,), "jit_compile": True, "fused_kernels": False}
        for name, strategy, policy in (
            (_XLA, "mirrored", "float32"),
            (_XLA_ALONE, "none", "float32"),
            (_XLA_BFLOAT16, "mirrored", "mixed_bfloat16"),
        ):
            racers.add_plan(name, racers.rules_plan(strategy=strategy, dtype_policy=policy, **fields))
        racers.add_keras(_KERAS_REPLICA, mirrored=(device,))
        racers.add_torch()
        racers.race()
        racers.ratio("XLA, one replica", _XLA, _KERAS_REPLICA, at_least=1.15)
        racers.ratio("XLA, one replica", _XLA, _XLA_ALONE, at_least=0.97)
        racers.ratio("XLA, one replica", _XLA_BFLOAT16, TORCH, at_least=MIN_OF_TORCH)


def fit_with_defaults(run: StepRun) -> None:
    """`tfaccel.fit` and `Model.fit` on the 32-wide MLP, with the defaults of both, in one process."""
    from tfaccel.benchmarks import engine_tasks
    from tfaccel.benchmarks.comparison import PARTS, throughput_ratio
    from tfaccel.benchmarks.training_programs import FitProgram, TrainedModel
    from tfaccel.measuring.interleaved import measure_interleaved

    task = engine_tasks.mlp(steps_per_epoch=40 if run.is_rehearsal else 2000)
    first = TrainedModel(task)
    programs = [
        FitProgram("tfaccel.fit", task, first, is_tfaccel=True),
        FitProgram("Model.fit", task, TrainedModel(task, first.weights), is_tfaccel=False),
    ]
    ours, keras = measure_interleaved(programs, repetitions=2 if run.is_rehearsal else 9, progress=run.progress)
    run.record("measurements", [ours.to_json(), keras.to_json()])
    for part in PARTS:
        found = throughput_ratio("mlp", of=ours, to=keras, part=part)
        run.figure("mlp", found.quantity, found.values, at_least=2.0)
        if not found.losses_agree:
            run.note(f"the losses after the same batches differ by {found.loss_difference:.2g}")


def utilization(run: StepRun) -> None:
    """The fraction of the measured matrix-product ceiling at which the Transformer trains in bfloat16."""
    fields: dict[str, Any] = {**run.one_device, "dtype_policy": "mixed_bfloat16"}
    chosen = run.results_of("transformer_choice").get("plan", {})
    if chosen.get("dtype_policy") == "mixed_bfloat16":
        fields |= {name: chosen[name] for name in ("jit_compile", "fused_kernels", "prefetch_to_device")}
    found = roofline(
        WORKLOAD,
        measure_again=not run.is_rehearsal,
        on_progress=run.progress,
        task="transformer",
        is_tiny=run.is_rehearsal,
        **fields,
    )
    run.record("roofline", found.to_json())
    ceiling = f"{found.matrix_flops_ceiling / 1e12:,.3g} TFLOP/s"
    run.figure("transformer, bfloat16", f"FLOP utilization, of {ceiling} measured", [found.mfu], at_least=MIN_MFU)
    run.figure("transformer, bfloat16", "milliseconds of a step", [1e3 * found.step_seconds])


def regret(run: StepRun, task: str) -> None:
    """The chosen plan against every combination of precision, XLA and fused kernels, one at a time."""
    deadline = time.monotonic() + _REGRET_SECONDS
    against: dict[str, list[float]] = {}
    with TaskRacers(run, task) as racers:
        chosen = racers.chosen_plan()
        racers.add_plan(CHOSEN, chosen)
        others = _combinations(chosen, is_short=run.is_rehearsal)
        run.record("plans", {name: plan.to_json() for name, plan in {CHOSEN: chosen, **others}.items()})
        for name, plan in others.items():
            if time.monotonic() > deadline:
                run.note(f"{name} was not measured: no time was left")
                continue
            if racers.add_plan(name, plan) is not None:
                found = racers.race(num_rounds=_REGRET_ROUNDS)
                if not any(timing.failure for timing in found.values()):
                    against[name] = list(ratios(found[CHOSEN], found[name]))
                    run.record("throughput of the chosen plan relative to others", against)
                racers.leave(name)
    if against:
        best = min(against, key=lambda name: statistics.median(against[name]))
        quantity = f"throughput {CHOSEN} / {best}, the best of {len(against)} others"
        run.figure(f"{task}, regret", quantity, against[best], at_least=MIN_OF_BEST)


def _combinations(chosen: Plan, *, is_short: bool) -> dict[str, Plan]:
    """All plans that differ from the chosen one in precision, XLA and fused kernels."""
    policies = ("mixed_bfloat16", "mixed_float16", "float32")
    plans: dict[str, Plan] = {}
    for policy, compiles, fuses in itertools.product(policies, (True, False), (True, False)):
        name = ", ".join([policy, *(["XLA"] if compiles else []), *(["fused kernels"] if fuses else [])])
        fields = {"dtype_policy": policy, "jit_compile": compiles, "fused_kernels": fuses}
        try:
            plan = replace(chosen, **fields, xla_auto_clustering=False, grappler_bfloat16=False)  # type: ignore[arg-type]
        except PlanError:  # XLA fuses by itself
            continue
        if plan != chosen:
            plans[name] = plan
    return dict(list(plans.items())[:2]) if is_short else plans
