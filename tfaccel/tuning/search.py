"""`search`: hyperparameter search with parallel trials."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel.argument_types import checks_types
from tfaccel.data.epochs import check_one_batch
from tfaccel.errors import RunDirError, SearchError
from tfaccel.files import write_json
from tfaccel.local_path import local_path
from tfaccel.planning.candidates import taken_fields
from tfaccel.planning.load_workload import load_recipe
from tfaccel.planning.option_checks import check_callbacks
from tfaccel.planning.workload import Workload
from tfaccel.reporting.charts import save_importance_picture, save_parallel_coordinates
from tfaccel.training.run.run_dir import RunDir, RunIdentity
from tfaccel.training.run.run_lock import RunLock
from tfaccel.tuning.objective import DEFAULT_NAME, Objective, checked_objective
from tfaccel.tuning.options import SearchOptions, check_keras_tuner, takes_search_options
from tfaccel.tuning.search_processes import processes_on
from tfaccel.tuning.search_result import OnRow, SearchResult, best_row, read_hyperparameters, read_rows
from tfaccel.tuning.source import SearchSource
from tfaccel.tuning.supervisor import Supervisor

MIN_TRIALS = 6  # fewer do not tell how important a hyperparameter is
_NUM_TREES, _NUM_SHUFFLES = 200, 20


@checks_types(SearchError)
@takes_search_options
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
    engine: str | None = None,
    engine_options: Mapping[str, Any] | None = None,
    **options: Any,
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
            default space of the workload's function; see `tfaccel.tuning.source`. Data come from the workload. A
            subclass of `keras_tuner.Tuner` counts as a `tuner` without a space.
        run_dir: a new or empty directory, or with `resume="auto"` the one of the search to continue.
        resume: "never" or "auto". `max_trials`, `parallel` and time limits may be changed.
        on_row: called with each finished trial.
        tuner: a subclass of `keras_tuner.Tuner` whose `run_trial` runs the trials, or its import path.
        callbacks: a list of Keras callbacks (each trial gets a copy), or a function that returns one.
        optimizer, loss, metrics: override those that `build(hp)` compiles the model with.
        engine: "ray" to run the trials on the nodes of a Ray cluster (extra `ray`), which share the disk of `run_dir`;
            None or "local" for this machine.
        engine_options: for "ray": `address` (default: `RAY_ADDRESS`, or a cluster on this machine), `cores_per_worker`
            (1), `gpus_per_worker` (0), `wait_seconds` for free cores and GPUs (300), `connect_seconds` (15).
        **options: the fields of `tfaccel.options.SearchOptions`: `algorithm` (None for that of the `tuner`, or random)
            and its settings, `max_trials`, `objective`, `parallel`, `seed`, `epochs`, the early stopping of trials,
            limits, fixed `workload_options` and `plan_fields` (or these by their names, such as `devices=2` and
            `precision="bf16"`), and which models to keep. For an argument of Keras
            Tuner, the error names its counterpart here.

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
    started = time.perf_counter()
    check_keras_tuner()
    _check_alone()
    if callbacks is not None and not callable(callbacks):
        check_callbacks(callbacks)
    training = {"callbacks": callbacks, "optimizer": optimizer, "loss": loss, "metrics": metrics}
    training = {name: value for name, value in training.items() if value is not None}
    source = SearchSource.of(workload, space, tuner=tuner, training=training)
    if options.get("algorithm") is None:
        options["algorithm"] = _like_keras_tuner(tuner or space)
    named = taken_fields(options)
    if named:
        options["plan_fields"] = {**(options.get("plan_fields") or {}), **named}
    chosen = SearchOptions.of(options)
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
        **_flat(chosen.identity()),
    }
    directory = RunDir(local_path(run_dir, SearchError), config, resume=resume)
    with (
        processes_on(engine, chosen.parallel, engine_options) as processes,
        Supervisor(source, chosen, processes, on_row or (lambda row: None)) as supervisor,
    ):
        found = supervisor.discovered()
        objective = _checked(found, chosen)
        with _held(directory, found["space"]):
            held = RunIdentity(directory.path.resolve(), directory.identity.run_id if directory.identity else None)
            supervisor.run(held, objective, found)
            rows = sorted(read_rows(directory.path / "trials.jsonl"), key=lambda row: row.trial_id)
            best, known = best_row(rows, objective), {"algorithm": chosen.algorithm}
            if chosen.retrain and best is not None:
                known |= supervisor.retrain(read_hyperparameters(directory.path, best.trial_id))
            seconds = round(time.perf_counter() - started, 3)
            result = SearchResult.of(directory.path, rows, objective, wall_seconds=seconds, **known)
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


def _like_keras_tuner(space: Any) -> str | None:
    """The algorithm of a subclass of one of Keras Tuner's tuners."""
    kinds = {"RandomSearch": "random", "GridSearch": "grid", "BayesianOptimization": "bayesian"}
    bases = (kind for kind in getattr(space, "__mro__", ()) if kind.__module__.startswith("keras_tuner."))
    return next((kinds[kind.__name__] for kind in bases if kind.__name__ in kinds), None)


def _written(given: Any) -> Any:
    """Names the training arguments, which must be unchanged to resume a search."""
    if isinstance(given, list | tuple):
        return [_written(part) for part in given]
    if isinstance(given, dict):
        return {str(name): _written(part) for name, part in given.items()}
    return given if isinstance(given, str) else getattr(given, "__qualname__", type(given).__qualname__)


def _flat(identity: dict[str, Any]) -> dict[str, Any]:
    """The options with those of the workload and the plan merged, so that an error can name the one that differs."""
    merged = {**identity.pop("workload_options"), **identity.pop("plan_fields")}
    return {**identity, "options": merged}


@contextlib.contextmanager
def _held(directory: RunDir, space: dict[str, Any]) -> Iterator[None]:
    """Checks that the directory is for this search, writes its config, and locks the directory."""
    file = directory.path / "space.json"
    if file.exists():
        there, here = (_by_name(known["space"]) for known in (json.loads(file.read_text()), space))
        odd = next((name for name in {**there, **here} if there.get(name) != here.get(name)), None)
        if odd is not None:
            raise RunDirError(
                f"The run directory {directory.path} holds a search with another space: the hyperparameter {odd!r} "
                "differs. Choose a new directory."
            )
    directory.make(space=space)
    lock = RunLock(directory.path)
    try:
        yield
    finally:
        lock.release()


def _by_name(entries: list[dict[str, Any]]) -> dict[str, Any]:
    return {entry["config"]["name"]: entry for entry in entries}


def _checked(found: dict[str, Any], options: SearchOptions) -> Objective:
    """Checks that there is something to search; returns the objective."""
    space = found["space"]["space"]
    free = [entry for entry in space if not _is_fixed(entry)]
    for config in (entry["config"] for entry in space):
        if not isinstance(config.get("value", 0), bool | int | float | str):
            raise SearchError(
                f"hp.Fixed must have a bool, int, float or str value. Received: {config['name']}={config['value']!r}."
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


def importances(
    values: Sequence[Mapping[str, Any]],
    scores: Sequence[float],
    *,
    names: Sequence[str],
    logarithmic: Collection[str] = (),
) -> dict[str, float] | None:
    """The relative importance of each hyperparameter for the score, largest first; None for too few trials.

    A random forest is fitted to predict the score from the hyperparameters. The permutation importance of a
    hyperparameter is how much the forest's error grows when its values are shuffled across trials. With few trials,
    treat it as a rough estimate. A missing value counts as a separate one; `logarithmic` ones are sampled on a log
    scale.

    Example:
        >>> trials = [{"a": a, "b": b} for a in (1, 2, 3) for b in (1, 2, 3)]
        >>> shares = importances(trials, [10 * trial["a"] + trial["b"] for trial in trials], names=["a", "b"])
        >>> list(shares), shares["a"] > 0.9
        (['a', 'b'], True)
    """
    if len(scores) < MIN_TRIALS:
        return None
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.inspection import permutation_importance

    columns = np.column_stack([_column([trial.get(name) for trial in values], name in logarithmic) for name in names])
    target = np.asarray(scores)
    forest = RandomForestRegressor(_NUM_TREES, random_state=0).fit(columns, target)
    found = permutation_importance(forest, columns, target, n_repeats=_NUM_SHUFFLES, random_state=0)
    means = np.maximum(found.importances_mean, 0.0)
    total = float(means.sum()) or 1.0
    shares = {name: float(mean) / total for name, mean in zip(names, means, strict=True)}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _column(values: list[Any], logarithmic: bool) -> np.ndarray:
    """Encodes values as numbers: unchanged, as logarithms, or as the index of each string."""
    known = [value for value in values if value is not None]
    if any(isinstance(value, str) for value in known):
        places = {value: place for place, value in enumerate(sorted(map(str, known)))}
        return np.array([-1.0 if value is None else float(places[str(value)]) for value in values])
    numbers = [math.log(value) if logarithmic and value > 0 else float(value) for value in known]
    missing, present = min(numbers, default=0.0) - 1.0, iter(numbers)
    return np.array([missing if value is None else next(present) for value in values])
