"""A Keras Tuner oracle backed by an Optuna study, through ask and tell; and the study's sampler, pruner and storage.

Chief and workers open the same file in the run directory: the chief asks and tells, the workers report the objective of
each epoch. Optuna is an extra, so it is imported where it is used.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras_tuner
from filelock import FileLock

from tfaccel.errors import SearchError
from tfaccel.tuning.objective import Objective
from tfaccel.tuning.options import SearchOptions
from tfaccel.tuning.search_result import TrialRow

if TYPE_CHECKING:
    import optuna
    from optuna.storages import JournalStorage

STUDY_NAME = "search"
TRIAL_ID = "trial_id"  # the attribute of Optuna's trial that holds Keras Tuner's id
_FILE = "optuna.journal"
_LOCK_POLL_SECONDS = 0.005
_DEFAULT_PERCENTILE = 25.0

# Algorithm -> Optuna's sampler, and its argument for the number of initial random trials.
_SAMPLERS = {
    "tpe": ("TPESampler", "n_startup_trials"),
    "cmaes": ("CmaEsSampler", "n_startup_trials"),
    "nsga2": ("NSGAIISampler", "population_size"),
}
_PRUNERS = {
    "none": "NopPruner",
    "median": "MedianPruner",
    "percentile": "PercentilePruner",
    "halving": "SuccessiveHalvingPruner",
    "hyperband": "HyperbandPruner",
    "threshold": "ThresholdPruner",
}


class OptunaOracle(keras_tuner.Oracle):
    """An oracle whose trials come from an Optuna study, which is opened before the first one.

    The hyperparameters of a trial are suggested one by one, in the order of the space, and only if their conditions
    hold, as in an Optuna objective function with the same `if` statements.
    """

    study: optuna.Study
    metrics: Objective  # of the search

    def open_study(self, run_dir: Path, options: SearchOptions, objective: Objective, *, epochs: int) -> None:
        """Opens the study in a run directory that no other process writes to; see the function `open_study`."""
        (run_dir / "tuner").mkdir(exist_ok=True)
        mend_storage(run_dir)
        self.study = open_study(run_dir, options, objective, epochs=epochs)
        self.metrics = objective

    def populate_space(self, trial_id: str) -> dict[str, Any]:
        """The values of the next trial."""
        asked = self.study.ask()
        asked.set_user_attr(TRIAL_ID, trial_id)
        space = self.hyperparameters.space
        counts = Counter(entry.name for entry in space)
        chosen = keras_tuner.HyperParameters()
        for entry in space:
            chosen.merge([entry])
            if chosen.is_active(entry):
                name = entry.name if counts[entry.name] == 1 else _under_conditions(entry)
                chosen.values[entry.name] = suggest(asked, name, entry)
        return {"status": "RUNNING", "values": chosen.values}

    def told(self, row: TrialRow) -> None:
        """Reports the outcome of a trial to Optuna."""
        from optuna.trial import TrialState

        number = get_number(self.study, row.trial_id)
        if row.status == "pruned":
            self.study.tell(number, state=TrialState.PRUNED, skip_if_finished=True)
            return
        one = len(self.metrics.parts) == 1
        values = [row.score] if one else [row.metrics.get(name) for name in self.metrics.names]
        if row.has_score and all(value is not None and math.isfinite(value) for value in values):
            self.study.tell(number, [float(value or 0.0) for value in values], skip_if_finished=True)
        else:
            self.study.tell(number, state=TrialState.FAIL, skip_if_finished=True)

    def forget_others(self) -> None:
        """Marks Optuna trials as failed if the search was killed before it created a trial for them."""
        from optuna.trial import TrialState

        known = {get_number(self.study, trial_id) for trial_id in self.trials}
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if trial.number not in known:
                self.study.tell(trial.number, state=TrialState.FAIL)


def suggest(trial: optuna.Trial, name: str, entry: Any) -> Any:
    """Suggests a value for an entry of Keras Tuner's space, by this name in Optuna.

    Optuna has no equivalent of "log" sampling with a `step`, or of "reverse_log" sampling. For the former, it chooses
    the index of the value; for the latter, the cumulative probability.
    """
    kind = type(entry).__name__
    if kind == "Fixed":
        return entry.value
    if kind == "Boolean":
        return trial.suggest_categorical(name, [False, True])
    if kind == "Choice":
        return trial.suggest_categorical(name, list(dict.fromkeys(entry.values)))
    low, high, step, sampling = entry.min_value, entry.max_value, entry.step, entry.sampling
    if sampling == "linear" and step is not None:
        high = low + int((high - low) / step + 1e-9) * step  # Optuna's highest value is one that can be chosen
    elif step is not None:
        values = list(entry.values)
        value = values[trial.suggest_int(name, 0, len(values) - 1)]
        return round(value) if kind == "Int" else value
    elif sampling == "reverse_log":
        return min(high, entry.prob_to_value(trial.suggest_float(name, 0.0, 1.0)))
    if kind == "Int":
        return trial.suggest_int(name, low, high, step=step or 1, log=sampling == "log")
    return trial.suggest_float(name, low, high, step=step, log=sampling == "log")


def _under_conditions(entry: Any) -> str:
    """A unique name for a hyperparameter that is defined several times under different conditions."""
    conditions = [f"{condition.name} in {condition.values}" for condition in entry.conditions]
    return f"{entry.name} where {' and '.join(conditions)}" if conditions else entry.name


def open_storage(run_dir: Path) -> JournalStorage:
    """Optuna's storage in the run directory of a search."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    path = run_dir / "tuner" / _FILE
    # The operating system releases the lock whenever its process ends, unlike Optuna's own.
    lock: Any = FileLock(path.with_suffix(".lock"), poll_interval=_LOCK_POLL_SECONDS, preserve_lock_file=True)
    return JournalStorage(JournalFileBackend(str(path), lock_obj=lock))


def open_study(
    run_dir: Path, options: SearchOptions, objective: Objective, *, epochs: int, storage: JournalStorage | None = None
) -> optuna.Study:
    """Opens the study of a search, whose longest trial has so many epochs; creates it if needed.

    Raises:
        SearchError: for arguments that the sampler or the pruner does not accept.
    """
    import optuna

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
    """Optuna's sampler for the options; SearchError for arguments that it does not take.

    The number of trials in the study changes the seed, so that a resumed search does not repeat its random numbers.
    """
    import optuna

    kind, random_start = _SAMPLERS[options.algorithm]
    arguments: dict[str, Any] = {"seed": options.seed + num_trials}
    if options.algorithm == "cmaes":
        arguments["warn_independent_sampling"] = False  # choices and conditional parameters; documented in the options
    if options.num_initial_points is not None:
        arguments[random_start] = options.num_initial_points
    return _made(getattr(optuna.samplers, kind), {**arguments, **options.algorithm_options}, "algorithm_options")


def make_pruner(options: SearchOptions, *, epochs: int) -> Any:
    """Optuna's pruner for the options; SearchError for arguments that it does not take."""
    import optuna

    kind = getattr(optuna.pruners, _PRUNERS[options.pruning])
    own: dict[str, Any] = {"percentile": {"percentile": _DEFAULT_PERCENTILE}, "hyperband": {"max_resource": epochs}}
    return _made(kind, {**own.get(options.pruning, {}), **options.pruning_options}, "pruning_options")


def _made(kind: Callable[..., Any], arguments: dict[str, Any], option: str) -> Any:
    try:
        return kind(**arguments)
    except (TypeError, ValueError, ImportError) as error:
        name = getattr(kind, "__name__", "")
        raise SearchError(f"Optuna's {name} cannot be created with {arguments} ({option}): {error}") from error


def epoch_pruner(
    run_dir: Path, options: SearchOptions, objective: Objective, *, epochs: int, trial_id: str
) -> Callable[[Sequence[float]], str | None]:
    """The pruner of a trial, for the worker that runs it; it reports each epoch to the study."""
    storage = open_storage(run_dir)
    study = open_study(run_dir, options, objective, epochs=epochs, storage=storage)
    study_id = storage.get_study_id_from_name(STUDY_NAME)
    trial = storage.get_trial_id_from_study_id_trial_number(study_id, get_number(study, trial_id))

    def prune_cause(values: Sequence[float]) -> str | None:
        epoch, value = len(values), values[-1]
        storage.set_trial_intermediate_value(trial, epoch, value)
        if not study.pruner.prune(study, storage.get_trial(trial)):
            return None
        return f"Optuna's {type(study.pruner).__name__} pruned it at epoch {epoch}, at {value:.6g}."

    return prune_cause


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
