"""Where training batches are augmented: on the host or on the device, by what is measured to be faster."""

from __future__ import annotations

import logging
import statistics
import time
from dataclasses import replace

import numpy as np
import tensorflow as tf

from tfaccel.data.feeds import Feed
from tfaccel.planning.override_flags import override_flag
from tfaccel.planning.plan import Plan
from tfaccel.planning.plan_fields import AUGMENTATION_PLACES
from tfaccel.planning.process_rules import AUGMENT_ON_UNMEASURED
from tfaccel.planning.run_length import num_optimizer_steps
from tfaccel.planning.workload import Workload
from tfaccel.training.private import private_models
from tfaccel.training.run.compiled_model import compiled_model, engine_options
from tfaccel.training.run.run_dir import RunDir
from tfaccel.training.run.workload_source import WorkloadSource
from tfaccel.training.runtime import Runtime
from tfaccel.training.steps.engine import Engine, engine_of
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.workers.strategies import make_strategy

logger = logging.getLogger("tfaccel")

REPETITIONS = 3
WINDOW_SECONDS = 0.5
MIN_STEPS, MAX_STEPS = 4, 64  # in one turn


def is_unplaced(plan: Plan) -> bool:
    """Whether the rules left open where to augment: not so where a user, or a measurement, has decided.

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
    """The plan with the faster `augment_on`, as measured here, and a reason with both times.

    A model of the workload is made and trained for some steps by turns, with batches augmented on the host and on the
    device. Every turn begins with an empty pipeline; the first turns, and the first steps of each, are thrown away.

    Args:
        workload: what is to be trained. Without `augment` there is nothing to place, and the plan comes back as it is.
        plan: how. With several workers nothing is measured, and they augment on the host.
        strategy: that of the plan, in its runtime; None: a new one.
        seed: decides the data.
        epochs: of the run that is planned; None for as many as the workload recommends.
        window_seconds: about how long a turn lasts at the slower place; it has at least 4 steps, and at most 64.

    Raises:
        PlanError: as training with this plan does.

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
        return _with_place(plan, "host", "Not measured: there are several workers, each with a host of its own.")
    trials = _trials(workload, plan, make_strategy(plan) if strategy is None else strategy, seed=seed, epochs=epochs)
    estimates = [trials["host"].step_seconds(1)]
    try:
        estimates.append(trials["device"].step_seconds(1))
    except tf.errors.OpError as error:
        # The device has no kernel for an operation, or too little memory; or XLA, on a TPU, cannot compile it.
        return _with_place(plan, "host", f"The device cannot run `augment`: {_cause(error)}")
    num_steps = min(MAX_STEPS, max(MIN_STEPS, round(window_seconds / max(estimates))))
    seconds: dict[str, list[float]] = {place: [] for place in trials}
    for repetition in range(REPETITIONS):
        for place in trials if repetition % 2 == 0 else reversed(trials):
            seconds[place].append(trials[place].step_seconds(num_steps))
    median = {place: statistics.median(found) for place, found in seconds.items()}
    times = " and ".join(f"{1e3 * found:.3g} ms on the {place}" for place, found in median.items())
    return _with_place(plan, min(median, key=lambda place: median[place]), f"Measured here: a step takes {times}.")


def place_for_run(workload: Workload, plan: Plan, run_dir: RunDir, runtime: Runtime, *, epochs: int) -> Plan:
    """The plan of a run, with augmentation placed where that was left open; the choice is logged.

    A run that goes on stays with the place that it began with. Random generators are as if nothing had been measured.

    Args:
        workload, plan: what is trained, and how.
        run_dir: of this run.
        runtime: of this plan, entered.
        epochs: of the run.
    """
    if workload.augment is None or not is_unplaced(plan):
        return plan
    began_with = run_dir.path / "plan.json"
    if run_dir.resumes and began_with.exists() and plan.num_workers == 1:
        placed = _with_place(plan, Plan.load(began_with).augment_on, "The run began with it.")
    else:
        seed = runtime.seed or 0
        placed = place_augmentation(workload, plan, strategy=runtime.strategy, seed=seed, epochs=epochs)
        runtime.seed_generators()
    reason, flag = dict(placed.reasons)["augment_on"], override_flag("augment_on")
    logger.info("augment_on=%s: %s To decide it yourself: %s", placed.augment_on, reason, flag)
    return placed


class _Trial:
    """Training for a few steps with batches augmented at one place.

    Args:
        engine: of a model that may be trained for nothing.
        source: its data.
    """

    def __init__(self, engine: Engine, source: WorkloadSource) -> None:
        self._engine = engine
        self._source = source

    def step_seconds(self, num_steps: int) -> float:
        """Seconds of one step, the wait for its batch included, over so many steps.

        Untimed steps come first, and trace and compile if need be. The pipeline starts anew and is let go afterwards,
        so that nothing that was prepared ahead counts, and nothing runs beside other turns.
        """
        try:
            feed = self._run(self._source.feed(), max(1, num_steps // 4))
            started = time.perf_counter()
            self._run(feed, num_steps)
            return (time.perf_counter() - started) / num_steps
        finally:
            self._source.close()

    def _run(self, feed: Feed, num_steps: int) -> Feed:
        """Runs steps to their end, through several epochs if need be; returns the feed of the last one."""
        while num_steps > 0:
            if feed.exhausted:
                feed = self._source.feed()
            self._engine.model.reset_metrics()  # a NaN from before would end every window at its first step
            result = self._engine.run("train", feed, num_steps)
            for value in result.logs.values():
                np.asarray(value)  # waits for the device
            num_steps -= result.num_steps
        return feed


def _trials(
    workload: Workload, plan: Plan, strategy: tf.distribute.Strategy, *, seed: int, epochs: int | None
) -> dict[str, _Trial]:
    """Place -> training with batches augmented there, all with one model."""
    replicas = Replicas(strategy)
    sources = {
        place: WorkloadSource(workload, replace(plan, augment_on=place), replicas, seed=seed)
        for place in AUGMENTATION_PLACES
    }
    num_steps = num_optimizer_steps(workload, plan, epochs=epochs, num_batches=sources["host"].num_batches)
    with strategy.scope():
        model = compiled_model(workload, plan, num_steps=num_steps)
    private_models.build_model(model, sources["host"].batch_spec)
    engine = engine_of(model, engine_options(plan))
    return {place: _Trial(engine, source) for place, source in sources.items()}


def _cause(error: tf.errors.OpError) -> str:
    """What went wrong, in one line: the last part of TensorFlow's message, below where in the code it was."""
    return str(error.message).split("\n\n")[-1].strip().partition("\n")[0][:300]


def _with_place(plan: Plan, place: str, reason: str) -> Plan:
    reasons = {**dict(plan.reasons), "augment_on": reason}
    return replace(plan, augment_on=place, reasons=tuple(reasons.items()))
