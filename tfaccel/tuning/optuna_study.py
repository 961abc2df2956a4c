"""The Optuna study of a search, with its sampler, pruner and storage in the run directory.

Chief and workers open the same file: the chief asks and tells, the workers report the objective of each epoch.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from tfaccel.errors import SearchError
from tfaccel.tuning.objective import Objective
from tfaccel.tuning.options import SearchOptions

STUDY_NAME = "search"
TRIAL_ID = "trial_id"  # the attribute of Optuna's trial that holds Keras Tuner's id
_FILE = "optuna.journal"
_DEFAULT_PERCENTILE = 25.0

# Algorithm -> Optuna's sampler, and its argument for the number of initial random trials.
_SAMPLERS: dict[str, tuple[Callable[..., Any], str]] = {
    "tpe": (optuna.samplers.TPESampler, "n_startup_trials"),
    "cmaes": (optuna.samplers.CmaEsSampler, "n_startup_trials"),
    "nsga2": (optuna.samplers.NSGAIISampler, "population_size"),
}
_PRUNERS: dict[str, Callable[..., Any]] = {
    "none": optuna.pruners.NopPruner,
    "median": optuna.pruners.MedianPruner,
    "percentile": optuna.pruners.PercentilePruner,
    "halving": optuna.pruners.SuccessiveHalvingPruner,
    "hyperband": optuna.pruners.HyperbandPruner,
    "threshold": optuna.pruners.ThresholdPruner,
}


class _FileLock:
    """A lock for Optuna that the operating system releases whenever its process ends."""

    def __init__(self, path: Path) -> None:
        self._path = path.with_suffix(".lock")
        self._file: IO[bytes] | None = None

    def acquire(self) -> bool:
        """Waits for the lock."""
        file = self._path.open("ab")
        fcntl.flock(file, fcntl.LOCK_EX)
        self._file = file
        return True

    def release(self) -> None:
        """Releases the lock."""
        if self._file is not None:
            self._file.close()
            self._file = None


def open_storage(run_dir: Path) -> JournalStorage:
    """Optuna's storage in the run directory of a search."""
    path = run_dir / "tuner" / _FILE
    lock: Any = _FileLock(path)
    return JournalStorage(JournalFileBackend(str(path), lock_obj=lock))


def open_study(
    run_dir: Path, options: SearchOptions, objective: Objective, *, epochs: int, storage: JournalStorage | None = None
) -> optuna.Study:
    """Opens the study of a search; creates it if needed.

    Args:
        run_dir, options, objective: of the search.
        epochs: epochs of the longest trial, for Hyperband's pruner.
        storage: an open storage of the run directory.

    Raises:
        SearchError: for arguments that the sampler or the pruner does not accept.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    directions: list[Any] = [{"min": "minimize", "max": "maximize"}[direction] for _, direction in objective.parts]
    study = optuna.create_study(
        storage=storage or open_storage(run_dir),
        study_name=STUDY_NAME,
        directions=directions,
        load_if_exists=True,
        pruner=make_pruner(options, epochs=epochs),
    )
    study.sampler = make_sampler(options, num_trials=len(study.get_trials(deepcopy=False)))
    return study


def make_sampler(options: SearchOptions, *, num_trials: int = 0) -> Any:
    """Optuna's sampler for the options.

    Args:
        options: of the search.
        num_trials: trials in the study so far; changes the seed, so that a resumed search does not repeat its random
            numbers.

    Raises:
        SearchError: for arguments that it does not take.
    """
    kind, random_start = _SAMPLERS[options.algorithm]
    arguments: dict[str, Any] = {"seed": options.seed + num_trials}
    if options.algorithm == "cmaes":
        arguments["warn_independent_sampling"] = False  # choices and conditional parameters; documented in the options
    if options.num_initial_points is not None:
        arguments[random_start] = options.num_initial_points
    return _made(kind, {**arguments, **options.algorithm_options}, "algorithm_options")


def make_pruner(options: SearchOptions, *, epochs: int) -> Any:
    """Optuna's pruner for the options.

    Raises:
        SearchError: for arguments that it does not take.
    """
    arguments: dict[str, Any] = {}
    if options.pruning == "percentile":
        arguments = {"percentile": _DEFAULT_PERCENTILE}
    elif options.pruning == "hyperband":
        arguments = {"max_resource": epochs}
    return _made(_PRUNERS[options.pruning], {**arguments, **options.pruning_options}, "pruning_options")


def _made(kind: Callable[..., Any], arguments: dict[str, Any], option: str) -> Any:
    try:
        return kind(**arguments)
    except (TypeError, ValueError, ImportError) as error:
        name = getattr(kind, "__name__", "")
        raise SearchError(f"Optuna's {name} cannot be created with {arguments} ({option}): {error}") from error


class EpochReports:
    """Reports each epoch of a trial to the study, from the worker that runs the trial.

    Args:
        run_dir, options, objective: of the search.
        epochs: of its longest trial.
        trial_id: Keras Tuner's.
    """

    def __init__(
        self, run_dir: Path, options: SearchOptions, objective: Objective, *, epochs: int, trial_id: str
    ) -> None:
        self._storage = open_storage(run_dir)
        self._study = open_study(run_dir, options, objective, epochs=epochs, storage=self._storage)
        number = get_number(self._study, trial_id)
        study = self._storage.get_study_id_from_name(STUDY_NAME)
        self._trial = self._storage.get_trial_id_from_study_id_trial_number(study, number)

    def prune_cause(self, epoch: int, value: float) -> str | None:
        """Reports the objective after an epoch; returns the reason to stop the trial, or None to continue."""
        self._storage.set_trial_intermediate_value(self._trial, epoch, value)
        pruner = self._study.pruner
        if not pruner.prune(self._study, self._storage.get_trial(self._trial)):
            return None
        return f"Optuna's {type(pruner).__name__} pruned it at epoch {epoch}, at {value:.6g}."


def get_number(study: optuna.Study, trial_id: str) -> int:
    """Optuna's number of the trial with this Keras Tuner id."""
    trials = study.get_trials(deepcopy=False)
    return max(trial.number for trial in trials if trial.user_attrs.get(TRIAL_ID) == trial_id)


def mend_storage(run_dir: Path) -> None:
    """Removes an incomplete last line, left by a crash; call it only while no other process writes."""
    path = run_dir / "tuner" / _FILE
    if path.exists():
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(path, whole)
