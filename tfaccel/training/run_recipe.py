"""Runs a recipe: builds the workload, trains it, and shows the result."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfaccel.data.epochs import check_one_batch
from tfaccel.errors import PlanError
from tfaccel.files import write_json
from tfaccel.hardware.detect import detect_hardware
from tfaccel.hardware.hardware import Cluster
from tfaccel.keras_file import check_members, check_no_code
from tfaccel.planning.candidates import default_plan, taken_fields
from tfaccel.planning.load_workload import RECIPES_PACKAGE
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload
from tfaccel.training.run.result import TrainResult
from tfaccel.training.run.shown_run import PROGRESS, ShownRun
from tfaccel.training.train import train
from tfaccel.training.verdict.baseline_scores import BaselineScores

logger = logging.getLogger("tfaccel")

_OF_TRAIN = (
    "epochs",
    "seed",
    "resume",
    "checkpoint_interval",
    "keep_checkpoints",
    "callbacks",
    "verbose",
    "learning_rate_scaling",
    "scaling_warm_up",
    "on_nonfinite",
)


def run_recipe(
    make_workload: Callable[..., Workload],
    *,
    run_dir: str | os.PathLike[str],
    plan: Plan | None = None,
    **options: Any,
) -> TrainResult:
    """Trains a recipe's workload, and shows the result on the chief.

    Args:
        make_workload: the recipe's `workload`.
        run_dir, plan: as in `tfaccel.train`.
        options: `epochs`, `seed`, `resume`, `checkpoint_interval`, `keep_checkpoints`, `callbacks`, `verbose`,
            `learning_rate_scaling`, `scaling_warm_up` and `on_nonfinite` of `tfaccel.train`; fields of the plan, if
            there is none; all others are passed to the workload.

    Raises:
        PlanError: for fields of a plan beside a plan, except the same `global_batch_size`.
    """
    of_train = {name: options.pop(name) for name in _OF_TRAIN if name in options}
    batch_size = options.pop("global_batch_size", None)
    fixed = taken_fields(options, plan)
    workload = make_workload(**options)
    if plan is not None and batch_size not in (None, plan.global_batch_size):
        raise PlanError(
            f"The plan has a global_batch_size of {plan.global_batch_size}. Received: global_batch_size={batch_size!r}"
            ". Leave it out, or change the plan."
        )
    if plan is None:
        resized = workload if batch_size is None else replace(workload, global_batch_size=batch_size)
        plan = default_plan(detect_hardware(), resized, **fixed)
    check_one_batch(workload.num_train_examples, plan.global_batch_size // plan.accumulation_steps)
    verbose = of_train.pop("verbose", 1)
    result = train(workload, plan, run_dir=run_dir, verbose=verbose and PROGRESS, **of_train)
    result = show_on_chief(workload, result)
    cluster = result.hardware["cluster"]
    ShownRun(verbose, None if cluster is None else Cluster.from_json(cluster)).result(result)
    return result


def show_on_chief(workload: Workload, result: TrainResult) -> TrainResult:
    """Calls `workload.show_result`, if there is one; with several workers, on the chief only.

    Returns:
        The result with the baselines that `workload.show_result` returned, which are also written to `result.json`.

    Raises:
        ExportError: if the model in the run directory is refused; see `tfaccel.keras_file`.
    """
    if workload.show_result is None:
        return result
    cluster = result.hardware["cluster"]
    if result.plan.num_workers > 1 and cluster is not None and not Cluster.from_json(cluster).is_chief:
        return result
    is_bundled = str(getattr(workload.show_result, "__module__", "")).startswith(f"{RECIPES_PACKAGE}.")
    # A complete run that is shown again may come from anywhere. An own workload decides what its model may hold.
    (check_no_code if is_bundled else check_members)(Path(result.run_dir) / "model.keras")
    baselines: BaselineScores | None = workload.show_result(workload, result)
    if baselines is None:
        return result
    result = replace(result, baselines=baselines)
    write_json(Path(result.run_dir) / "result.json", result.to_json())
    logger.info("%s", baselines.beside())
    return result
