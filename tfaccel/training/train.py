"""`train`: a workload and a plan in, a run directory and a `TrainResult` out."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tfaccel.hardware.detect import detect_hardware
from tfaccel.hardware.hardware import Hardware
from tfaccel.planning.candidates import default_plan
from tfaccel.planning.option_checks import check_counts, check_seed
from tfaccel.planning.plan import Plan
from tfaccel.planning.run_length import run_epochs_of
from tfaccel.planning.workload import Workload
from tfaccel.training.result import TrainResult, installed_versions
from tfaccel.training.run_dir import RunDir
from tfaccel.training.runtime import Runtime
from tfaccel.training.trivial_scores import trivial_scores

logger = logging.getLogger("tfaccel")

_GO_ON = (
    'Start all workers again with the same command and resume="auto" (--resume=auto): training goes on from the newest '
    "checkpoint in {}."
)


def train(
    workload: Workload,
    plan: Plan | None = None,
    *,
    run_dir: str | os.PathLike[str],
    epochs: int | None = None,
    seed: int = 0,
    resume: str = "never",
    checkpoint_interval: int | None = None,
    callbacks: Sequence[Any] = (),
    verbose: int = 1,
) -> TrainResult:
    """Trains a workload as a plan says, and leaves a run directory.

    The directory holds `config.json`, `plan.json`, `metrics.jsonl` (one line an epoch), `checkpoints/`, `tensorboard/`,
    `model.keras` and `result.json`; `raw_input.json` too, where the workload says what raw inputs are. Files are
    written by the chief only, each whole or not at all.

    Args:
        workload: what to train.
        plan: how; None: `default_plan` for this machine.
        run_dir: a new or empty directory, or with `resume="auto"` one that holds this very run.
        epochs: epochs in all; None for as many as the workload recommends.
        seed: decides initial weights, dropout and the order of the data.
        resume: "never", or "auto": go on from the newest whole checkpoint, to the same weights as without a stop. A
            run that is complete is left as it is.
        checkpoint_interval: optimizer steps between checkpoints; None: one after each epoch, or after several where
            epochs are so short that saving would take more than 2 % of the time.
        callbacks: more Keras callbacks; their numbers and best weights are part of the checkpoints.
        verbose: 1 shows progress on standard error, 0 nothing.

    Returns:
        The `TrainResult`, which is also in `result.json`.

    Raises:
        RunDirError: if the run directory holds another run, or another run is going on in it.
        ClusterError: if another worker does not come or is gone; the message names it.
        WorkloadError: for epochs, a seed or an interval that cannot be, or a model that is too large for this machine.
        PlanError: if the plan cannot run here.
        NonFiniteLossError: if the loss becomes NaN or infinite; the message names the step, and no file is overwritten.

    Example:
        >>> import tempfile, tfaccel
        >>> from tfaccel.recipes import image_classification
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = tfaccel.train(image_classification.workload(), run_dir=folder, epochs=1, verbose=0)
        >>> sorted(result.step_seconds)
        ['median', 'p95']
    """
    started = time.perf_counter()
    epochs = run_epochs_of(workload, epochs)
    check_counts(epochs=epochs)
    check_seed(seed)
    if checkpoint_interval is not None:
        check_counts(checkpoint_interval=checkpoint_interval)
    hardware = detect_hardware()
    plan = plan or default_plan(hardware, workload)
    config = {
        "recipe": workload.name,
        "options": dict(workload.options),
        "epochs": epochs,
        "seed": seed,
        "checkpoint_interval": checkpoint_interval,
        "global_batch_size": plan.global_batch_size,
        "dtype_policy": plan.dtype_policy,
    }
    if not plan.synchronize_batch_norm:
        config["synchronize_batch_norm"] = False
    directory = RunDir(run_dir, config, resume=resume)
    complete = directory.result()
    if complete is not None:
        logger.info("The run in %s is complete; there is nothing to train.", directory.path)
        return TrainResult.from_json({**complete, "run_dir": str(directory.path)})
    with contextlib.ExitStack() as stack:
        stack.enter_context(directory.in_use())
        runtime = stack.enter_context(Runtime(plan, seed=seed, cluster=hardware.cluster))
        from tfaccel.training.augmentation_place import place_for_run
        from tfaccel.training.lost_worker import lost_workers_named
        from tfaccel.training.train_session import TrainSession

        stack.enter_context(lost_workers_named(runtime.strategy, _GO_ON.format(directory.path)))
        plan = place_for_run(workload, plan, directory, runtime, epochs=epochs)
        session = TrainSession(
            workload, plan, directory, epochs=epochs, seed=seed, checkpoint_interval=checkpoint_interval
        )
        outcome = session.run(runtime.strategy, callbacks, hardware=hardware, verbose=verbose)
        baselines = None
        if workload.validation_data is not None and directory.writes:
            baselines = trivial_scores(workload.validation_data(plan.global_batch_size), outcome.final)
        result = _result(workload, plan, hardware, outcome, directory, time.perf_counter() - started)
        result = replace(result, baselines=baselines)
        directory.write_raw_input(workload.raw_input)
        directory.write_result(result.to_json())
    return result


def _result(
    workload: Workload, plan: Plan, hardware: Hardware, outcome: Any, directory: RunDir, wall_seconds: float
) -> TrainResult:
    rate = outcome.times.steps_per_second() * (plan.global_batch_size // plan.accumulation_steps)
    steps = {name: seconds * plan.accumulation_steps for name, seconds in outcome.times.step_seconds().items()}
    return TrainResult(
        recipe=workload.name,
        plan=plan,
        history=outcome.history,
        final=outcome.final,
        examples_per_second=rate,
        step_seconds=steps,
        first_step_seconds=outcome.times.first_seconds,
        wall_seconds=wall_seconds,
        hardware=hardware.to_json(),
        versions=installed_versions(),
        run_dir=str(directory.path),
    )
