"""Steps of the GPU suite with its figures: the chosen plan, plain `Model.fit` and PyTorch, in turn, and choosing."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tfaccel.benchmarks.gpu.racers import CHOSEN, MODEL_FIT, RULES, TORCH, TaskRacers
from tfaccel.benchmarks.gpu.step import StepRun
from tfaccel.benchmarks.gpu.tasks import WORKLOAD
from tfaccel.benchmarks.timed_race import ratios
from tfaccel.errors import PlanError
from tfaccel.measuring.ceilings import ceilings_of_plan
from tfaccel.measuring.find_fastest import find_fastest
from tfaccel.measuring.report import MeasureOptions
from tfaccel.measuring.roofline import roofline
from tfaccel.planning.machine_ceilings import compute_dtype
from tfaccel.planning.plan import Plan

MIN_OF_TORCH = 0.9
MAX_CHOICE_SECONDS = 60.0
MIN_OF_BEST, MIN_OF_RULES = 0.9, 0.95
_FIRST_ROUNDS = 3
_REGRET_SECONDS, _REGRET_ROUNDS = 35.0, 3
_XLA, _XLA_ALONE, _XLA_BFLOAT16 = "XLA, one replica", "XLA, no strategy", "XLA, one replica, bfloat16"
_KERAS_REPLICA = "Model.fit, one replica"


def rules(run: StepRun, task: str, at_least: float) -> None:
    """The plan of the rules, without a search; `Model.fit` with its defaults, and PyTorch."""
    with TaskRacers(run, task) as racers:
        plan = racers.rules_plan()
        run.record("plan", plan.to_json())
        racers.add_plan(RULES, plan)
        racers.add_keras()
        racers.add_torch()
        racers.race(num_rounds=_FIRST_ROUNDS)
        racers.ratio(task, RULES, MODEL_FIT, at_least=at_least)
        racers.ratio(task, RULES, TORCH, at_least=MIN_OF_TORCH)
        racers.record_cost(RULES)


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


def figures(run: StepRun, task: str) -> None:
    """The chosen plan, and that of the rules; `Model.fit` and PyTorch if the two plans are the same."""
    with TaskRacers(run, task) as racers:
        plan, rules_plan = racers.chosen_plan(), racers.rules_plan()
        run.record("plan", plan.to_json())
        racers.add_plan(CHOSEN, plan)
        if plan != rules_plan:
            racers.add_plan(RULES, rules_plan)
        else:
            racers.add_keras()
        racers.add_torch()
        racers.race()
        racers.ratio(task, CHOSEN, RULES, at_least=MIN_OF_RULES)
        racers.ratio(task, CHOSEN, MODEL_FIT)
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
    from tfaccel.benchmarks.measurement import measure_interleaved
    from tfaccel.benchmarks.training_programs import FitProgram, TrainedModel

    task = engine_tasks.mlp(steps_per_epoch=40 if run.is_rehearsal else 2000)
    first = TrainedModel(task)
    programs = [
        FitProgram("tfaccel.fit", task, first, is_tfaccel=True),
        FitProgram("Model.fit", task, TrainedModel(task, first.weights), is_tfaccel=False),
    ]
    ours, keras = measure_interleaved(programs, repetitions=2 if run.is_rehearsal else 5, progress=run.progress)
    run.record("measurements", [ours.to_json(), keras.to_json()])
    for part in PARTS:
        found = throughput_ratio("mlp", of=ours, to=keras, part=part)
        run.figure("mlp", found.quantity, found.values, at_least=2.0)
        if not found.losses_agree:
            run.note(f"the losses after the same batches differ by {found.loss_difference:.2g}")


def utilization(run: StepRun, tasks: Mapping[str, float | None]) -> None:
    """The fraction of the measured matrix-product ceiling at which the plans of the rules train.

    Args:
        run: the step.
        tasks: name -> what the fraction must reach, if anything.
    """
    ceilings = ceilings_of_plan(run.one_device, measure_again=not run.is_rehearsal, on_progress=run.progress)
    run.record("ceilings", ceilings.to_json())
    for task, at_least in tasks.items():
        found = run.get_results(f"{task}_rules")
        if "matrix_flops" not in found:
            run.note(f"{task}_rules has no result")
            continue
        plan = Plan.from_json(found["plan"])
        ceiling = ceilings.matrix_flops(compute_dtype(plan))
        steps_per_second = [rate / plan.global_batch_size for rate in found["window_rates"]]
        speeds = [found["matrix_flops"] * steps for steps in steps_per_second]
        name, bound = f"{task}, {plan.dtype_policy}", {} if at_least is None else {"at_least": at_least}
        text = f"FLOP utilization, of {ceiling / 1e12:,.3g} TFLOP/s measured"
        run.figure(name, text, [speed / ceiling for speed in speeds], **bound)
        run.figure(name, "milliseconds of a step", [1e3 / steps for steps in steps_per_second])


def layers(run: StepRun, task: str) -> None:
    """Where a step's time goes, as `tfaccel roofline` shows it."""
    limit = run.seconds_left
    found = roofline(
        WORKLOAD,
        limit_seconds=limit,
        on_progress=run.progress,
        task=task,
        is_tiny=run.is_rehearsal,
        **run.one_device,
    )
    run.record("roofline", found.to_json())
    run.figure(f"{task}, step", "milliseconds", [1e3 * found.step_seconds])


def regret(run: StepRun, task: str, policy: str) -> None:
    """The chosen plan against those with a dtype policy, with XLA, fused kernels and neither, one at a time."""
    against: dict[str, list[float]] = {}
    with TaskRacers(run, task) as racers:
        chosen = racers.chosen_plan()
        racers.add_plan(CHOSEN, chosen)
        others = _combinations(chosen, policy, is_short=run.is_rehearsal)
        run.record("plans", {name: plan.to_json() for name, plan in {CHOSEN: chosen, **others}.items()})
        for name, plan in others.items():
            if run.seconds_left < _REGRET_SECONDS and not run.is_rehearsal:
                run.note(f"{name} was not measured: no time was left")
                continue
            racers.add_plan(name, plan)
            if racers.built(name) is not None:
                found = racers.race(num_rounds=_REGRET_ROUNDS)
                if not any(timing.failure for timing in found.values()):
                    against[name] = list(ratios(found[CHOSEN], found[name]))
                    run.record("throughput of the chosen plan relative to others", against)
                racers.leave(name)
    if against:
        best = min(against, key=lambda name: statistics.median(against[name]))
        quantity = f"throughput {CHOSEN} / {best}, the best of {len(against)} others"
        run.figure(f"{task}, regret", quantity, against[best], at_least=MIN_OF_BEST)


def _combinations(chosen: Plan, policy: str, *, is_short: bool) -> dict[str, Plan]:
    """All plans with a policy that differ from the chosen one in it, in XLA or in fused kernels."""
    plans: dict[str, Plan] = {}
    for compiles, fuses in itertools.product((True, False), (True, False)):
        name = ", ".join([policy, *(["XLA"] if compiles else []), *(["fused kernels"] if fuses else [])])
        fields = {"dtype_policy": policy, "jit_compile": compiles, "fused_kernels": fuses}
        try:
            plan = replace(chosen, **fields, xla_auto_clustering=False, grappler_bfloat16=False)  # type: ignore[arg-type]
        except PlanError:  # XLA fuses by itself
            continue
        if plan != chosen:
            plans[name] = plan
    return dict(list(plans.items())[:1]) if is_short else plans
