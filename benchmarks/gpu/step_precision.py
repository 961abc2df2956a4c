"""Steps of the GPU suite about precision: 16-bit policies with and without XLA, and float8."""

from __future__ import annotations

import statistics
from typing import Any

from tfaccel.benchmarks.gpu.racers import TaskRacers
from tfaccel.benchmarks.gpu.step import StepRun
from tfaccel.benchmarks.gpu.tasks import task_named
from tfaccel.benchmarks.gpu.trial import TrialFailed, in_new_process
from tfaccel.measuring.candidate_child import CandidateFailed, TimedChild
from tfaccel.measuring.duel import CHECKED_STEPS

POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")
MAX_LOSS_DIFFERENCE = 0.05  # relative, as for a plan that `find_fastest` accepts
MIN_FLOAT8_CAPABILITY = (8, 9)
_NUM_WINDOWS, _WINDOW_STEPS = 3, 30
_FLOAT8_LIMIT_SECONDS = 110.0


def policies(run: StepRun, *, compiles: bool, task: str = "transformer") -> None:
    """Speed and loss of each policy, with XLA or without, one after the other; the first one is the reference."""
    found: dict[str, dict[str, Any]] = {}
    with TaskRacers(run, task) as racers:
        for policy in POLICIES:
            name = f"{policy}, XLA" if compiles else policy
            fields = {"dtype_policy": policy, "jit_compile": compiles, "fused_kernels": False}
            racers.add_plan(name, racers.rules_plan(**fields))
            child = racers.built(name)
            found[name] = _measured(child, small=run.is_rehearsal) if child else {"failure": racers.failures[name]}
            racers.leave(name)
            run.record("policies", found)
    for name, one in found.items():
        if "failure" in one and name not in racers.failures:  # those have a note already
            run.note(f"{name}: {one['failure']}")
    first = "float32, XLA" if compiles else "float32"
    reference = found.get(first, {})
    for name, one in found.items():
        if "loss" in one and "loss" in reference and one is not reference:
            difference = abs(one["loss"] / reference["loss"] - 1)
            run.figure(name, f"difference of the loss from {first}", [difference], at_most=MAX_LOSS_DIFFERENCE)
            speed = reference["step_seconds"] / one["step_seconds"]
            run.figure(name, f"speed / {first}", [speed])


def _measured(child: TimedChild, *, small: bool) -> dict[str, Any]:
    try:
        loss = child.warm_up(CHECKED_STEPS).loss
        windows = [child.window(2 if small else _WINDOW_STEPS) for _ in range(_NUM_WINDOWS)]
    except CandidateFailed as error:  # float16 without a finite loss, for instance
        return {"failure": str(error)}
    seconds = [window.seconds / window.num_steps for window in windows]
    return {
        "loss": loss,
        "step_seconds": statistics.median(seconds),
        "window_step_seconds": seconds,
        "peak_bytes": child.peak_bytes,
    }


def float8(run: StepRun) -> None:
    """`mixed_bfloat16`, and the same quantized to float8, by `tfaccel.fit`, with XLA; losses and speed of both."""
    gpu = next(iter(run.hardware.gpus), None)
    capability = None if gpu is None or run.is_rehearsal else gpu.compute_capability
    if capability is not None and capability < MIN_FLOAT8_CAPABILITY:
        run.note(f"the card has compute capability {capability[0]}.{capability[1]}; float8 needs 8.9")
        return
    found: dict[str, Any] = {}
    for quantizes in (False, True):
        name = "float8" if quantizes else "mixed_bfloat16"
        arguments = {"quantizes": quantizes, "is_tiny": run.is_rehearsal, "compiles": not run.is_rehearsal}
        try:
            found[name] = in_new_process(f"{__name__}:trained", arguments, limit_seconds=_FLOAT8_LIMIT_SECONDS)
        except TrialFailed as error:
            found[name] = {"failure": str(error)}
            run.note(f"{name} could not be trained: {error}")
        run.record("dtypes", found)
    if all("failure" not in one for one in found.values()):
        plain, quantized = found["mixed_bfloat16"], found["float8"]
        difference = abs(quantized["loss"] / plain["loss"] - 1)
        run.figure("float8", "difference of the loss from mixed_bfloat16", [difference], at_most=MAX_LOSS_DIFFERENCE)
        run.figure("float8", "speed / mixed_bfloat16", [plain["step_seconds"] / quantized["step_seconds"]])


def trained(quantizes: bool, is_tiny: bool, compiles: bool) -> dict[str, Any]:
    """Trains the Transformer for two epochs, the second one timed; runs in a process of its own."""
    import time

    import keras

    from tfaccel.training.fit import fit

    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy("mixed_bfloat16")
    task = task_named("transformer", is_tiny=is_tiny)
    model = task.build_model()
    if quantizes:
        model.quantize("float8")
    model.compile(**task.compile_args(), jit_compile=compiles)
    x, y = task.epoch_arrays()
    options = {"batch_size": task.size.global_batch_size, "verbose": 0, "shuffle": False}
    first = fit(model, x, y, **options)
    started = time.perf_counter()
    fit(model, x, y, **options)
    return {
        "loss": float(first.history["loss"][-1]),
        "step_seconds": (time.perf_counter() - started) / task.size.steps_per_epoch,
    }
