"""The noun `SearchOptions`: how a search goes on, which trials it stops, and when it ends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib.util import find_spec
from typing import Any, Self

from tfaccel.errors import SearchError
from tfaccel.known_names import check_names, did_you_mean
from tfaccel.planning.plan import check_field_names
from tfaccel.planning.plan_fields import check_value
from tfaccel.tuning.objective import written_objective

KERAS_TUNER_ALGORITHMS = ("random", "grid", "bayesian", "hyperband")
OPTUNA_ALGORITHMS = ("tpe", "cmaes", "nsga2")
ALGORITHMS = (*KERAS_TUNER_ALGORITHMS, *OPTUNA_ALGORITHMS)
OPTUNA_PRUNINGS = ("percentile", "hyperband", "threshold")
PRUNINGS = ("none", "median", "halving", *OPTUNA_PRUNINGS)
_DEFAULT_MAX_TRIALS = 10
_NO_DEFAULT_MAX_TRIALS = ("grid", "hyperband")
# Option -> the lowest value, and whether it may be None.
_COUNTS = {
    "max_trials": (1, True),
    "parallel": (1, False),
    "seed": (1, False),
    "epochs": (1, True),
    "early_stopping": (1, True),
    "max_parameters": (1, True),
    "num_initial_points": (1, True),
    "executions_per_trial": (1, False),
    "max_retries_per_trial": (0, False),
    "max_consecutive_failed_trials": (1, True),
}
_TIMES = ("trial_seconds", "search_seconds", "stall_seconds")
_SWITCHES = ("tune_new_entries", "allow_new_entries", "retrain", "keep_models")
_MAPPINGS = ("workload_options", "plan_fields", "algorithm_options", "pruning_options")
# These may differ when a search goes on: they change no trial.
_NOT_IDENTITY = ("max_trials", "parallel", *_TIMES, "max_retries_per_trial", "max_consecutive_failed_trials", "retrain")
# Algorithm of Keras Tuner -> arguments of its oracle, and the lowest value of each.
_OF_ORACLE = {"bayesian": {"alpha": 0, "beta": 0}, "hyperband": {"factor": 2, "hyperband_iterations": 1}}
# Arguments of Keras Tuner that are called otherwise here.
_ELSEWHERE = {
    "max_epochs": "Use epochs.",
    "max_model_size": "Use max_parameters.",
    "alpha": "Use algorithm_options={'alpha': ...}.",
    "beta": "Use algorithm_options={'beta': ...}.",
    "factor": "Use algorithm_options={'factor': ...}.",
    "hyperband_iterations": "Use algorithm_options={'hyperband_iterations': ...}.",
    "directory": "Use run_dir.",
    "project_name": "Use run_dir.",
    "overwrite": "Use a new run_dir, or resume='auto' to go on.",
    "distribution_strategy": "Use plan_fields={'strategy': 'mirrored'} and the like.",
    "hypermodel": "Give it as the second argument, the space.",
    "oracle": "Use algorithm and algorithm_options.",
    "tuner_id": "A search names its workers itself.",
    "logger": "Use on_row, or read trials.jsonl.",
    "validation_split": "Validation data are the workload's.",
    "validation_data": "Validation data are the workload's.",
    "x": "Data are the workload's.",
    "y": "Data are the workload's.",
    "batch_size": "Use plan_fields={'global_batch_size': ...}.",
    "steps_per_epoch": "The length of an epoch is the workload's.",
    "verbose": "Use on_row.",
}


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How a search of hyperparameters is done.

    Args:
        algorithm: Keras Tuner's "random", "grid", "bayesian" or "hyperband"; or with the extra `optuna` Optuna's "tpe",
            "cmaes" (which chooses numbers that every trial has; the rest is random) or "nsga2" (for several
            objectives).
        max_trials: trials in all; None for 10, or with grid and hyperband all that there are.
        objective: the metric to better, as it stands in the logs ("val_accuracy"), or several ("val_accuracy",
            "latency_seconds", "model_bytes"); "NAME:max" or "NAME:min" where the name does not tell the direction;
            a `keras_tuner.Objective` is taken as well. None for the first validation metric, or the validation loss
            where there is no metric; where a `fit` or `run_trial` of your own trains, for the number that it returns,
            which is to be low.
        parallel: trials at the same time, each in a process of its own with its share of the devices.
        seed: decides which trials there are (as in Keras Tuner, where 0 means no seed), and how each one trains.
        epochs: of each trial; Hyperband's longest. None for what the workload recommends.
        pruning: "none"; "median": end a trial whose best is below the median of the others at the same epoch;
            "halving": at epochs 1, 3, 9 ... only the best third goes on. With Optuna's algorithms its pruner of that
            name decides; it has "percentile", "hyperband" and "threshold" too.
        early_stopping: end a trial after so many epochs without a better objective; None for never.
        trial_seconds: the longest that a trial may take; None for no limit.
        search_seconds: no trial is begun after so long; None for no limit.
        stall_seconds: a trial without a sign of life for so long counts as hanging.
        max_parameters: the most numbers in a model that is trained; None for no limit.
        num_initial_points: random trials at the beginning: of "bayesian" (None for three times the number of
            hyperparameters), "tpe" (None for 10) and "cmaes" (None for 1); of "nsga2" the size of a population (None
            for 50), the first of which is random.
        algorithm_options: further arguments of Keras Tuner's oracle (`alpha` and `beta`; `factor` and
            `hyperband_iterations`) or of Optuna's sampler.
        pruning_options: arguments of Optuna's pruner.
        executions_per_trial: how often each trial is trained, with other weights each time; its score is the mean.
        max_retries_per_trial: how often a trial that failed is begun anew; one that raised
            `keras_tuner.errors.FailedTrialError` is not.
        max_consecutive_failed_trials: the search ends when so many trials in a row have failed; None for never.
        hyperparameters: a `keras_tuner.HyperParameters`, or its config, with entries that take the place of those of
            the space.
        tune_new_entries: search those too that are not in `hyperparameters`; otherwise they have their defaults.
        allow_new_entries: let the space have others than those in `hyperparameters`.
        keep_models: keep each trial's model of its best epoch; see `SearchResult.get_best_models`.
        workload_options: arguments of the workload's function that are the same in all trials.
        plan_fields: fields of the plan that are fixed, such as {"dtype_policy": "float32"}.
        retrain: train the best trial again at the end, and keep its model.

    Raises:
        SearchError: if a value is not one of those above.

    Example:
        >>> SearchOptions(algorithm="random").trial_limit
        10
    """

    algorithm: str = "random"
    max_trials: int | None = None
    objective: tuple[str, ...] | str | None = None
    parallel: int = 1
    seed: int = 1
    epochs: int | None = None
    pruning: str = "none"
    early_stopping: int | None = None
    trial_seconds: float | None = None
    search_seconds: float | None = None
    stall_seconds: float = 900.0
    max_parameters: int | None = None
    workload_options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    plan_fields: Mapping[str, Any] = field(default_factory=dict, hash=False)
    retrain: bool = False
    num_initial_points: int | None = None
    algorithm_options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    pruning_options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    executions_per_trial: int = 1
    max_retries_per_trial: int = 0
    max_consecutive_failed_trials: int | None = None
    hyperparameters: Any = field(default=None, hash=False)
    tune_new_entries: bool = True
    allow_new_entries: bool = True
    keep_models: bool = False

    def __post_init__(self) -> None:
        for name in _MAPPINGS:
            try:
                json.dumps(dict(getattr(self, name)))
            except (TypeError, ValueError) as error:
                raise SearchError(f"{name} must be names with values that must be JSON values: {error}.") from error
        object.__setattr__(self, "objective", written_objective(self.objective))
        object.__setattr__(self, "hyperparameters", _config_of(self.hyperparameters))
        _check_choice("algorithm", self.algorithm, ALGORITHMS)
        _check_choice("pruning", self.pruning, PRUNINGS)
        self._check_numbers()
        self._check_pairs()
        for name in _SWITCHES:
            if type(getattr(self, name)) is not bool:
                raise SearchError(f"`{name}` must be True or False. Received: {name}={getattr(self, name)!r}.")
        check_field_names(self.plan_fields)
        for name, value in self.plan_fields.items():
            check_value(name, tuple(value) if isinstance(value, list) else value)

    def _check_numbers(self) -> None:
        for name, (least, optional) in _COUNTS.items():
            value = getattr(self, name)
            if not (optional and value is None) and (type(value) is not int or value < least):
                or_none = ", or None" if optional else ""
                raise SearchError(
                    f"`{name}` must be a whole number of at least {least}{or_none}. Received: {name}={value!r}."
                )
        for name in _TIMES:
            value = getattr(self, name)
            optional = name != "stall_seconds"
            if not (optional and value is None) and (type(value) not in (int, float) or not value > 0):
                or_none = ", or None" if optional else ""
                raise SearchError(f"`{name}` must be a number of seconds above 0{or_none}. Received: {name}={value!r}.")

    def _check_pairs(self) -> None:
        """Refuses options that mean nothing together."""
        if self.by_optuna:
            check_optuna(self.algorithm)
        elif self.pruning in OPTUNA_PRUNINGS or self.pruning_options:
            what = f"pruning={self.pruning!r}" if self.pruning in OPTUNA_PRUNINGS else "pruning_options"
            raise SearchError(
                f"{what} needs an algorithm of Optuna ({', '.join(OPTUNA_ALGORITHMS)}). "
                f"Received: algorithm={self.algorithm!r}."
            )
        else:
            self._check_of_oracle()
        if self.pruning != "none" and self.algorithm == "hyperband":
            raise SearchError("Hyperband ends trials by itself. Use pruning='none' with it, or another algorithm.")
        several = not isinstance(self.objective, str) and self.objective is not None and len(self.objective) > 1
        if several or (isinstance(self.objective, str) and "," in self.objective):
            if self.algorithm == "cmaes":
                raise SearchError("CMA-ES betters one objective. Use algorithm='nsga2' or 'tpe' for several.")
            if self.by_optuna and self.pruning != "none":
                raise SearchError("Optuna prunes trials by one objective. Use pruning='none' with several.")
        if self.num_initial_points is not None and self.algorithm in ("random", "grid", "hyperband"):
            raise SearchError(f"algorithm={self.algorithm!r} has no random beginning: leave out num_initial_points.")
        if self.hyperparameters is None and not (self.tune_new_entries and self.allow_new_entries):
            off = "allow_new_entries" if self.tune_new_entries else "tune_new_entries"
            raise SearchError(f"{off}=False needs hyperparameters, the only ones that are then searched.")

    def _check_of_oracle(self) -> None:
        known = _OF_ORACLE.get(self.algorithm, {})
        takes = f"takes {' and '.join(known)}" if known else "takes none"
        for name, value in self.algorithm_options.items():
            if name not in known or type(value) not in (int, float) or value < known[name]:
                raise SearchError(
                    f"algorithm_options of algorithm={self.algorithm!r}: it {takes}, numbers of at least "
                    f"{', '.join(map(str, known.values())) or '0'}. Received: {name}={value!r}."
                )

    @property
    def by_optuna(self) -> bool:
        """Whether Optuna chooses the trials."""
        return self.algorithm in OPTUNA_ALGORITHMS

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """The options in a dictionary; SearchError for a name that is none, with the nearest one."""
        for name in options:
            if name in _ELSEWHERE:
                raise SearchError(f"A search has no option {name!r}. {_ELSEWHERE[name]}")
        check_names(options, [one.name for one in fields(cls)], SearchError, "A search has no option {!r}.")
        return cls(**options)

    @property
    def trial_limit(self) -> int | None:
        """The most trials; None for all that the algorithm has."""
        return self.max_trials or (None if self.algorithm in _NO_DEFAULT_MAX_TRIALS else _DEFAULT_MAX_TRIALS)

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        data = asdict(self)
        return {**data, "objective": list(self.objective) if isinstance(self.objective, tuple) else self.objective}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The options that `to_json` gave."""
        objective = data.get("objective")
        return cls(**{**data, "objective": tuple(objective) if isinstance(objective, list) else objective})

    def identity(self) -> dict[str, Any]:
        """What a search must have in common with the one that it goes on with."""
        return {name: value for name, value in self.to_json().items() if name not in _NOT_IDENTITY}


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        hint = did_you_mean(str(value), choices)
        raise SearchError(f"`{name}` must be one of {', '.join(choices)}. Received: {name}={value!r}.{hint}")


def check_optuna(algorithm: str) -> None:
    """Whether Optuna is there.

    Raises:
        SearchError: if it is not.
    """
    needed = ("optuna", "cmaes") if algorithm == "cmaes" else ("optuna",)
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise SearchError(
            f"algorithm={algorithm!r} needs {' and '.join(missing)}, which is not installed. "
            "Run: pip install 'tfaccel[optuna]'."
        )


def _config_of(given: Any) -> Any:
    """The config of Keras Tuner's hyperparameters."""
    config = given.get_config() if hasattr(given, "get_config") else given
    if config is None or (isinstance(config, Mapping) and isinstance(config.get("space"), list)):
        return config
    raise SearchError(f"hyperparameters must be a keras_tuner.HyperParameters. Received: {given!r:.200}.")
