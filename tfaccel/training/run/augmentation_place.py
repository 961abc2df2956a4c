"""Decides by measurement whether training batches are augmented on the host or on the device."""

from __future__ import annotations

import logging
import statistics
import time
from dataclasses import replace

import numpy as np
import tensorflow as tf

from tfaccel.data.feeds import Feed
from tfaccel.planning.plan import SETTINGS, Plan, override_flag
from tfaccel.planning.rules import AUGMENT_ON_UNMEASURED
from tfaccel.planning.workload import Workload
from tfaccel.training.run.run_dir import RunDir
from tfaccel.training.run.session import Session
from tfaccel.training.run.workload_source import WorkloadSource
from tfaccel.training.runtime import Runtime
from tfaccel.training.steps.engine import Engine
from tfaccel.training.workers.strategies import make_strategy

logger = logging.getLogger("tfaccel")

REPETITIONS = 3
WINDOW_SECONDS = 0.5
MIN_STEPS, MAX_STEPS = 4, 64  # per turn


def is_unplaced(plan: Plan) -> bool:
    """Whether `augment_on` is still undecided: neither set by the user nor measured.

    Example:
        >>> is_unplaced(Plan(strategy="none", devices=("CPU:0",), global_batch_size=8))
        False
    """
    return dict(plan.reasons).get("augment_on") == AUGMENT_ON_UNMEASURED


def place_augmentation(
    workload: Workload,
    plan: Plan,
    *,
    strategy: tf.distribute.Strategy | None = None,
    seed: int = 0,
    epochs: int | None = None,
    window_seconds: float = WINDOW_SECONDS,
) -> Plan:
    """Returns the plan with the `augment_on` measured to be faster, and both times as its reason.

    A model of the workload is built and trained for a few steps in alternating turns, with batches augmented on the
    host or on the device. Each turn starts with an empty pipeline; the first turn of each place, and the first steps of
    each turn, are discarded.

    Args:
        workload: the workload to train. Without `augment`, the plan is returned unchanged.
        plan: the plan to train with. With several workers nothing is measured, and they augment on the host.
        strategy: the plan's strategy, in its runtime; None for a new one.
        epochs: number of epochs of the planned run; None for the workload's recommendation.
        window_seconds: approximate duration of a turn at the slower place; a turn has 4 to 64 steps.

    Example:
        >>> from tfaccel.recipes import image_classification
        >>> plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=64)
        >>> placed = place_augmentation(image_classification.workload(), plan)
        >>> placed.augment_on in ("host", "device"), dict(placed.reasons)["augment_on"].split(":")[0]
        (True, 'Measured here')
    """
    if workload.augment is None:
        return plan
    if plan.num_workers > 1:
        return _with_place(plan, "host", "Not measured: there are several workers, each with its own host.")
    strategy = make_strategy(plan) if strategy is None else strategy
    sessions = {
        place: Session(workload, replace(plan, augment_on=place), strategy, seed=seed, planned_epochs=epochs)
        for place in SETTINGS["augment_on"].values or ()
    }
    engine = sessions["host"].engine  # of one model, which is thrown away
    estimates = [_step_seconds(engine, sessions["host"].source, 1)]
    try:
        estimates.append(_step_seconds(engine, sessions["device"].source, 1))
    except tf.errors.OpError as error:
        # The device lacks a kernel for an operation, or memory; or, on a TPU, XLA cannot compile it.
        cause = str(error.message).split("\n\n")[-1].strip().partition("\n")[0][:300]  # after the stack trace
        return _with_place(plan, "host", f"The device cannot run `augment`: {cause}")
    num_steps = min(MAX_STEPS, max(MIN_STEPS, round(window_seconds / max(estimates))))
    seconds: dict[str, list[float]] = {place: [] for place in sessions}
    for repetition in range(REPETITIONS):
        for place in sessions if repetition % 2 == 0 else reversed(sessions):
            seconds[place].append(_step_seconds(engine, sessions[place].source, num_steps))
    median = {place: statistics.median(found) for place, found in seconds.items()}
    times = " and ".join(f"{1e3 * found:.3g} ms on the {place}" for place, found in median.items())
    return _with_place(plan, min(median, key=lambda place: median[place]), f"Measured here: a step takes {times}.")


def place_for_run(workload: Workload, plan: Plan, run_dir: RunDir, runtime: Runtime, *, epochs: int) -> Plan:
    """Returns a run's plan with `augment_on` measured if it was undecided, and logs the choice.

    A resumed run keeps its first choice. Random generators end in the same state as without a measurement.
    """
    if workload.augment is None or not is_unplaced(plan):
        return plan
    began_with = run_dir.path / "plan.json"
    if run_dir.resumes and began_with.exists() and plan.num_workers == 1:
        placed = _with_place(plan, Plan.load(began_with).augment_on, "The run started with it.")
    else:
        seed = runtime.seed or 0
        try:
            placed = place_augmentation(workload, plan, strategy=runtime.strategy, seed=seed, epochs=epochs)
        except tf.errors.ResourceExhaustedError:
            placed = _with_place(plan, "host", "Not measured: the batch does not fit into memory.")
        runtime.seed_generators()
    reason, flag = dict(placed.reasons)["augment_on"], override_flag("augment_on")
    logger.info("augment_on=%s: %s To decide it yourself: %s", placed.augment_on, reason, flag)
    return placed


def _step_seconds(engine: Engine, source: WorkloadSource, num_steps: int) -> float:
    """Mean seconds per step over `num_steps`, including the wait for each batch.

    Untimed steps run first; they trace and compile if necessary. The pipeline is created for this turn and closed
    afterwards, so that no batches are prepared before the turn or during another one.
    """

    def run(feed: Feed, num_steps: int) -> Feed:
        while num_steps > 0:
            if feed.exhausted:
                feed = source.feed()
            engine.model.reset_metrics()  # an earlier NaN would end each window at its first step
            result = engine.run("train", feed, num_steps)
            for value in result.logs.values():
                np.asarray(value)  # waits for the device
            num_steps -= result.num_steps
        return feed

    try:
        feed = run(source.feed(), max(1, num_steps // 4))
        started = time.perf_counter()
        run(feed, num_steps)
        return (time.perf_counter() - started) / num_steps
    finally:
        source.close()


def _with_place(plan: Plan, place: str, reason: str) -> Plan:
    return replace(plan, augment_on=place, reasons=tuple({**dict(plan.reasons), "augment_on": reason}.items()))
