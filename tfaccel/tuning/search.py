"""`search`: hyperparameter search with parallel trials."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from tfaccel.argument_types import checks_types
from tfaccel.data.epochs import check_one_batch
from tfaccel.errors import SearchError
from tfaccel.files import write_json
from tfaccel.known_names import suggests_names
from tfaccel.planning.load_workload import load_recipe
from tfaccel.planning.option_checks import check_callbacks
from tfaccel.planning.workload import Workload
from tfaccel.reporting.charts import save_importance_picture, save_parallel_coordinates
from tfaccel.training.run.run_dir import RunDir, RunIdentity
from tfaccel.tuning.importance import importances
from tfaccel.tuning.keras_tuner_extra import check_keras_tuner
from tfaccel.tuning.objective import DEFAULT_NAME, Objective, checked_objective
from tfaccel.tuning.options import SearchOptions
from tfaccel.tuning.search_directory import flat_config, search_directory
from tfaccel.tuning.search_processes import worker_places
from tfaccel.tuning.search_result import SearchResult
from tfaccel.tuning.source import SearchSource
from tfaccel.tuning.supervisor import Supervisor
from tfaccel.tuning.trial_row import TrialRow, read_hyperparameters, read_rows

logger = logging.getLogger("tfaccel")

OnRow = Callable[[TrialRow], None]
_OPTIONS = {option.name for option in fields(SearchOptions)}
_FILLED = ("algorithm", "workload_options", "plan_fields", "algorithm_options", "pruning_options")  # None: the default


@suggests_names
@checks_types(SearchError)
def search(
    workload: Workload | str | Callable[..., Any] | None,
    space: Any = None,
    *,
    run_dir: str | os.PathLike[str],
    resume: str = "never",
    on_row: OnRow | None = None,
    tuner: Any = None,
    callbacks: Any = None,
    optimizer: Any = None,
    loss: Any = None,
    metrics: Any = None,
    algorithm: str | None = None,
    max_trials: int | None = None,
    objective: Any = None,
    parallel: int = 1,
    seed: int = 1,
    epochs: int | None = None,
    pruning: str = "none",
    early_stopping: int | None = None,
    trial_seconds: float | None = None,
    search_seconds: float | None = None,
    stall_seconds: float = 900.0,
    max_parameters: int | None = None,
    workload_options: Mapping[str, Any] | None = None,
    plan_fields: Mapping[str, Any] | None = None,
    retrain: bool = False,
    num_initial_points: int | None = None,
    algorithm_options: Mapping[str, Any] | None = None,
    pruning_options: Mapping[str, Any] | None = None,
    executions_per_trial: int = 1,
    max_retries_per_trial: int = 0,
    max_consecutive_failed_trials: int | None = None,
    hyperparameters: Any = None,
    tune_new_entries: bool = True,
    allow_new_entries: bool = True,
    keep_models: bool = False,
    engine: str | None = None,
    engine_options: Mapping[str, Any] | None = None,
    **unknown: Any,
) -> SearchResult:
    """Searches for the best hyperparameters with parallel trials, using Keras Tuner's or Optuna's algorithms.

    Each trial runs in one of `parallel` worker processes, each with its own GPUs or its share of the cores, and uses
    the plan's strategy, dtype policy and XLA setting. A trial that raises, crashes, hangs, runs out of memory or gives
    NaN is recorded as failed with its cause, and the search continues. `resume="auto"` continues a killed search; no
    finished trial is lost or run again.

    With the same seed, a random or grid search runs the same trials as Keras Tuner, in the same order, whatever
    `parallel` is. The other algorithms choose a trial based on those finished so far, so with parallel trials the
    choice depends on timing.

    Spaces are written as for Keras Tuner, whichever algorithm is used. A HyperModel with a custom `fit`, or a Tuner
    with a custom `run_trial`, trains on one device unless `plan_fields` say otherwise. It gets the arguments of
    `Model.fit` that it accepts: arrays if it has `y` or `*args`, otherwise a `tf.data.Dataset` as `x`; and `epochs`,
    `batch_size`, `callbacks`, `validation_data` and `verbose`. A `keras_tuner.errors.FatalError` stops the search, a
    `FailedTrialError` only the trial.

    The directory holds `trials.jsonl` (one line per finished trial), `search.json` (the result), `config.json`,
    `space.json`, `parallel_coordinates.png`, `importance.png`, `tensorboard/` (the HParams dashboard), `tuner/` (the
    state of Keras Tuner, or Optuna's `optuna.journal`), `logs/`, and with `retrain=True` `best/`.

    Args:
        workload: a recipe's name, the import path of a function that returns a `Workload` ("package.module:function"),
            such a function, or a `Workload`, which is pickled for the worker processes. None if a `tuner` needs
            no data.
        space: the search space, as a function or its import path: `build(hp)` that returns a compiled model, a
            `keras_tuner.HyperModel`, or `space(hp)` that returns arguments of the workload's function. None: the
            default space of the workload's function; see `tfaccel.tuning.recipe_space`. Data come from the workload. A
            subclass of `keras_tuner.Tuner` counts as a `tuner` without a space.
        run_dir: a new or empty directory, or with `resume="auto"` the one of the search to continue.
        resume: "never" or "auto". `max_trials`, `parallel` and time limits may be changed.
        on_row: called with each finished trial.
        tuner: a subclass of `keras_tuner.Tuner` whose `run_trial` runs the trials, or its import path.
        callbacks: a list of Keras callbacks (each trial gets a copy), or a function that returns one.
        optimizer, loss, metrics: override those that `build(hp)` compiles the model with.
        algorithm: "random", "grid", "bayesian", "hyperband", "tpe", "cmaes" or "nsga2"; None for that of the `tuner`,
            or random. For this argument and those below, see `tfaccel.tuning.options.SearchOptions`.
        max_trials, objective, parallel, seed, epochs: the extent of the search.
        pruning, pruning_options, early_stopping: early stopping of trials.
        trial_seconds, search_seconds, stall_seconds, max_parameters: limits.
        workload_options, plan_fields: fixed arguments of the workload's function, and fixed plan fields.
        num_initial_points, algorithm_options: further settings of the algorithm.
        executions_per_trial, max_retries_per_trial, max_consecutive_failed_trials: as in Keras Tuner.
        hyperparameters, tune_new_entries, allow_new_entries: as in Keras Tuner.
        retrain, keep_models: which models to keep.
        engine: "ray" to run the trials on the nodes of a Ray cluster (extra `ray`), which share the disk of `run_dir`;
            None or "local" for this machine.
        engine_options: for "ray": `address` (default: `RAY_ADDRESS`, or a cluster on this machine), `cores_per_worker`
            (1), `gpus_per_worker` (0), `wait_seconds` for free cores and GPUs (300), `connect_seconds` (15).
        **unknown: refused; for an argument of Keras Tuner, the error names its counterpart here.

    Returns:
        The `SearchResult`, also written to `search.json`.

    Raises:
        VersionError: if Keras Tuner is not installed (the extra `tune`).
        SearchError: for an unknown option, a space with nothing to search, or an unknown objective, before anything is
            written; if the search's processes cannot run, a trial raises a `FatalError`, or
            `max_consecutive_failed_trials` is reached.
        LaunchError: if Ray is not installed, or its cluster does not answer.
        RunDirError: if the directory has other contents.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     found = search("tabular_classification", run_dir=folder, max_trials=2, epochs=1)
        >>> len(found.rows)
        2
    """
    given = {name: value for name, value in locals().items() if name in _OPTIONS}
    given = {name: value for name, value in given.items() if not (value is None and name in _FILLED)}
    started = time.perf_counter()
    check_keras_tuner()
    _check_alone()
    if callbacks is not None and not callable(callbacks):
        check_callbacks(callbacks)
    training = {"callbacks": callbacks, "optimizer": optimizer, "loss": loss, "metrics": metrics}
    training = {name: value for name, value in training.items() if value is not None}
    source = SearchSource.of(workload, space, tuner=tuner, training=training)
    chosen = SearchOptions.of({**_like_keras_tuner(tuner or space), **given, **unknown})
    if isinstance(workload, str) and ":" not in workload:
        own = dict(chosen.workload_options)  # report a wrong name or value right away
        batch_size = own.pop("global_batch_size", None) or chosen.plan_fields.get("global_batch_size")
        made = load_recipe(workload, **own)
        check_one_batch(made.num_train_examples, batch_size or made.global_batch_size)
    config = {
        "search": source.workload.name,
        "space": source.space.name,
        "tuner": source.tuner.name,
        **{name: _written(given) for name, given in training.items()},
        **chosen.identity(),
    }
    directory = RunDir(run_dir, flat_config(config), resume=resume)
    with (
        worker_places(chosen.parallel, engine, engine_options) as places,
        Supervisor(source, chosen, places, on_row or (lambda row: None)) as supervisor,
    ):
        found = supervisor.discovered()
        objective = _checked(found, chosen)
        with search_directory(directory, found["space"]):
            held = RunIdentity(directory.path.resolve(), directory.identity.run_id if directory.identity else None)
            supervisor.run(held, objective, found, epochs=found["epochs"])
            rows = sorted(read_rows(directory.path / "trials.jsonl"), key=lambda row: row.trial_id)
            result = SearchResult.of(
                directory.path, chosen, objective, rows, wall_seconds=time.perf_counter() - started
            )
            if chosen.retrain and result.best is not None:
                best = supervisor.retrain(read_hyperparameters(directory.path, result.best.trial_id))
                result = result.with_best_model(best["run_dir"], best["final"], time.perf_counter() - started)
    directory.check_held()
    write_json(directory.path / "search.json", result.to_json())
    _draw(directory.path, result)
    return result


def _check_alone() -> None:
    """Refuses Keras Tuner's distributed mode, in which chief and workers are started by hand."""
    name = "KERASTUNER_TUNER_ID"
    if name in os.environ:
        raise SearchError(
            f"{name} is set, as for a chief and workers of Keras Tuner that are started by hand, but here each of them "
            "would run its own search. Unset it, and use parallel=NUMBER: one call starts all workers."
        )


def _like_keras_tuner(space: Any) -> dict[str, Any]:
    """The algorithm of a subclass of one of Keras Tuner's tuners."""
    kinds = {"RandomSearch": "random", "GridSearch": "grid", "BayesianOptimization": "bayesian"}
    for kind in getattr(space, "__mro__", ()):
        if kind.__name__ in kinds and kind.__module__.startswith("keras_tuner."):
            return {"algorithm": kinds[kind.__name__]}
    return {}


def _written(given: Any) -> Any:
    """Names the training arguments, which must be unchanged to resume a search."""
    if isinstance(given, list | tuple):
        return [_written(part) for part in given]
    if isinstance(given, dict):
        return {str(name): _written(part) for name, part in given.items()}
    return given if isinstance(given, str) else getattr(given, "__qualname__", type(given).__qualname__)


def _checked(found: dict[str, Any], options: SearchOptions) -> Objective:
    """Checks that there is something to search; returns the objective."""
    space = found["space"]["space"]
    free = [entry for entry in space if not _is_fixed(entry)]
    odd = next(
        (e["config"] for e in space if not isinstance(e["config"].get("value", 0), bool | int | float | str)), None
    )
    if odd is not None:
        raise SearchError(
            f"hp.Fixed must have a bool, int, float or str value. Received: {odd['name']}={odd['value']!r}."
        )
    if options.algorithm == "cmaes":
        _check_numbers(free)
    if not free and found["metrics"] is not None:  # a custom fit may request some
        raise SearchError(
            "The space has no free parameter, so there is nothing to search. Add at least one that has several values, "
            "such as hp.Float('learning_rate', 1e-4, 1e-1, sampling='log')."
        )
    if found["metrics"] is not None:
        return checked_objective(options.objective, found["metrics"])
    return Objective(((DEFAULT_NAME, "min"),)) if options.objective is None else Objective.of(options.objective)


def _check_numbers(free: list[dict[str, Any]]) -> None:
    numbers = [e for e in free if e["class_name"] in ("Int", "Float") and not e["config"]["conditions"]]
    if len(numbers) < 2:
        raise SearchError(
            "CMA-ES needs at least two numeric hyperparameters (hp.Int, hp.Float) that every trial has; all others "
            f"are sampled at random. Received: {', '.join(e['config']['name'] for e in numbers) or 'none'}. Use "
            "algorithm='tpe'."
        )


def _is_fixed(entry: dict[str, Any]) -> bool:
    config = entry["config"]
    values = config.get("values")
    same = "min_value" in config and config["min_value"] == config["max_value"]
    return entry["class_name"] == "Fixed" or same or (values is not None and len(set(values)) == 1)


def _draw(folder: Path, result: SearchResult) -> None:
    """Plots the trials that have a score."""
    scored = [row for row in result.rows if row.has_score]
    if not scored:
        return
    # Read the final space: trials may have added hyperparameters.
    space = json.loads((folder / "tuner" / "oracle.json").read_text())["hyperparameters"]["space"]
    logarithmic = {entry["config"]["name"] for entry in space if entry["config"].get("sampling") == "log"}
    names = list(dict.fromkeys(entry["config"]["name"] for entry in space if not _is_fixed(entry)))
    if not names:
        return
    values = [{name: row.hyperparameters[name] for name in names if name in row.hyperparameters} for row in scored]
    scores = [float(row.score or 0.0) for row in scored]
    save_parallel_coordinates(
        folder / "parallel_coordinates.png",
        values,
        scores,
        names=names,
        logarithmic=logarithmic,
        objective=result.objective.name,
        rising=result.objective.direction == "max",
    )
    shares = importances(values, scores, names=names, logarithmic=logarithmic)
    if shares is not None:
        save_importance_picture(folder / "importance.png", shares, objective=result.objective.name)
