"""`SearchOptions`: the algorithm, pruning and limits of a search."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from importlib.util import find_spec
from typing import Any, Self, TypeVar, cast

from tfaccel.errors import SearchError, VersionError
from tfaccel.known_names import check_names, did_you_mean
from tfaccel.planning.candidates import checked_fields
from tfaccel.planning.plan import plan_field_names
from tfaccel.planning.plan_checks import PRECISION
from tfaccel.tuning.objective import listed_names, written_objective

_Searches = TypeVar("_Searches", bound=Callable[..., Any])
KERAS_TUNER_ALGORITHMS = ("random", "grid", "bayesian", "hyperband")
OPTUNA_ALGORITHMS = ("tpe", "cmaes", "nsga2")
ALGORITHMS = (*KERAS_TUNER_ALGORITHMS, *OPTUNA_ALGORITHMS)
OPTUNA_PRUNINGS = ("percentile", "hyperband", "threshold")
PRUNINGS = ("none", "median", "halving", *OPTUNA_PRUNINGS)
_DEFAULT_MAX_TRIALS = 10
_NO_DEFAULT_MAX_TRIALS = ("grid", "hyperband")
OBJECTS = ("workload_options", "plan_fields", "algorithm_options", "pruning_options")
# These may change when a search resumes: they do not affect any trial.
_NOT_IDENTITY = (
    *("max_trials", "parallel", "trial_seconds", "search_seconds", "stall_seconds"),
    *("max_retries_per_trial", "max_consecutive_failed_trials", "retrain"),
)
# Algorithm of Keras Tuner -> arguments of its oracle, with the minimum of each.
_OF_ORACLE = {"bayesian": {"alpha": 0, "beta": 0}, "hyperband": {"factor": 2, "hyperband_iterations": 1}}
# Keras Tuner arguments that have another name here.
_ELSEWHERE = {
    "max_epochs": "Use epochs.",
    "max_model_size": "Use max_parameters.",
    **{
        name: f"Use algorithm_options={{'{name}': ...}}."
        for name in ("alpha", "beta", "factor", "hyperband_iterations")
    },
    **dict.fromkeys(("directory", "project_name"), "Use run_dir."),
    "overwrite": "Use a new run_dir, or resume='auto' to continue.",
    "distribution_strategy": "Use plan_fields={'strategy': 'mirrored'}, for example.",
    "hypermodel": "Pass it as the second argument, `space`.",
    "oracle": "Use algorithm and algorithm_options.",
    "tuner_id": "Leave it out: a search names its workers.",
    "logger": "Use on_row, or read trials.jsonl.",
    **dict.fromkeys(("validation_split", "validation_data"), "The workload provides the validation data."),
    **dict.fromkeys(("x", "y"), "The workload provides the data."),
    "batch_size": "Use plan_fields={'global_batch_size': ...}.",
    "steps_per_epoch": "The workload determines the length of an epoch.",
    "verbose": "Use on_row.",
}


def _option(default: Any, takes: Callable[[Any], bool], wanted: str, **of_flag: Any) -> Any:
    """A field; None is a value of it if it is the default.

    Args:
        default: of the option.
        takes: whether a value is valid.
        wanted: the valid values, for messages.
        **of_flag: what the flag of the same name takes: `least` of a whole number, or `choices`.
    """
    known = {"takes": takes, "wanted": wanted if default is not None else f"{wanted}, or None", **of_flag}
    return field(default=default, metadata=known)


def _choice(default: str, choices: tuple[str, ...]) -> Any:
    wanted = f"one of {', '.join(choices)}"
    return _option(default, lambda value: isinstance(value, str) and value in choices, wanted, choices=choices)


def _count(default: int | None, *, least: int = 1) -> Any:
    wanted = f"a whole number of at least {least}"
    return _option(default, lambda value: type(value) is int and value >= least, wanted, least=least)


def _seconds(default: float | None) -> Any:
    return _option(default, lambda value: type(value) in (int, float) and value > 0, "a number of seconds above 0")


def _switch(default: bool) -> Any:
    return _option(default, lambda value: type(value) is bool, "True or False")


def _object() -> Any:
    return field(default_factory=dict, hash=False)


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Options of a hyperparameter search.

    Args:
        algorithm: Keras Tuner's "random", "grid", "bayesian" or "hyperband"; or with the extra `optuna` Optuna's "tpe",
            "cmaes" (optimizes only unconditional numeric hyperparameters; the others are random) or "nsga2" (for
            several objectives).
        max_trials: total number of trials; None for 10, or for all trials of grid and hyperband.
        objective: the metric to optimize, as named in the logs ("val_accuracy"), or several ("val_accuracy",
            "latency_seconds", "model_bytes"); "NAME:max" or "NAME:min" if the name does not imply the direction; or a
            `keras_tuner.Objective`. None for the first validation metric, or the validation loss if there is no
            metric; with a custom `fit` or `run_trial`, for the number that it returns, which is minimized.
        parallel: number of concurrent trials, each in a separate process with its share of the devices.
        seed: seed of the search (as in Keras Tuner, where 0 means no seed) and of each trial's training.
        epochs: epochs per trial; for Hyperband, the maximum. None for the workload's recommendation.
        pruning: "none"; "median": stop a trial whose best value is worse than the median of the others at the same
            epoch; "halving": at epochs 1, 3, 9 ... only the best third continues. Optuna's algorithms use Optuna's
            pruner of that name, and also support "percentile", "hyperband" and "threshold".
        early_stopping: patience: stop a trial after this many epochs without improvement; None to disable.
        trial_seconds: time limit for a trial; None for no limit.
        search_seconds: no trial starts after this time; None for no limit.
        stall_seconds: a trial that sends no heartbeat for this long counts as hung.
        max_parameters: maximum number of parameters of a model; None for no limit.
        num_initial_points: initial random trials of "bayesian" (None for three times the number of
            hyperparameters), "tpe" (None for 10) and "cmaes" (None for 1); for "nsga2", the population size (None
            for 50); the first population is random.
        algorithm_options: further arguments of Keras Tuner's oracle (`alpha` and `beta`; `factor` and
            `hyperband_iterations`) or of Optuna's sampler.
        pruning_options: arguments of Optuna's pruner.
        executions_per_trial: training runs per trial, with different seeds; the score is the mean.
        folds: cross-validation: the arrays to train on are cut into this many folds; each trial trains once without
            each fold and is scored on that fold; the score is the mean. None: the workload's validation data are used.
        max_retries_per_trial: maximum number of retries of a failed trial; one that raised
            `keras_tuner.errors.FailedTrialError` is not retried.
        max_consecutive_failed_trials: stop the search after this many consecutive failed trials; None for never.
        hyperparameters: a `keras_tuner.HyperParameters`, or its config, whose entries override those of the
            space.
        tune_new_entries: also search entries that are not in `hyperparameters`; otherwise they keep their defaults.
        allow_new_entries: allow the space to have entries that are not in `hyperparameters`.
        keep_models: save each trial's model from its best epoch; see `SearchResult.get_best_models`.
        workload_options: fixed arguments of the workload's function.
        plan_fields: fixed plan fields, such as {"dtype_policy": "float32"}.
        retrain: train the best trial again at the end and keep its model.

    Raises:
        SearchError: if a value is invalid.

    Example:
        >>> SearchOptions(algorithm="random").trial_limit
        10
    """

    # Each option once: `tfaccel.search` takes it under this name, and `tfaccel search` as a flag.
    algorithm: str = _choice("random", ALGORITHMS)
    max_trials: int | None = _count(None)
    objective: tuple[str, ...] | str | None = None
    parallel: int = _count(1)
    seed: int = _count(1)
    epochs: int | None = _count(None)
    pruning: str = _choice("none", PRUNINGS)
    early_stopping: int | None = _count(None)
    trial_seconds: float | None = _seconds(None)
    search_seconds: float | None = _seconds(None)
    stall_seconds: float = _seconds(900.0)
    max_parameters: int | None = _count(None)
    workload_options: Mapping[str, Any] = _object()
    plan_fields: Mapping[str, Any] = _object()
    retrain: bool = _switch(False)
    num_initial_points: int | None = _count(None)
    algorithm_options: Mapping[str, Any] = _object()
    pruning_options: Mapping[str, Any] = _object()
    executions_per_trial: int = _count(1)
    folds: int | None = _count(None, least=2)
    max_retries_per_trial: int = _count(0, least=0)
    max_consecutive_failed_trials: int | None = _count(None)
    hyperparameters: Any = field(default=None, hash=False)
    tune_new_entries: bool = _switch(True)
    allow_new_entries: bool = _switch(True)
    keep_models: bool = _switch(False)

    def __post_init__(self) -> None:
        for name in OBJECTS:
            try:
                json.dumps(dict(getattr(self, name)))
            except (TypeError, ValueError) as error:
                raise SearchError(f"`{name}` must be a dictionary of JSON values: {error}.") from error
        object.__setattr__(self, "objective", written_objective(self.objective))
        object.__setattr__(self, "hyperparameters", _get_config(self.hyperparameters))
        for one in fields(self):
            value, known = getattr(self, one.name), one.metadata
            if known and not (known["takes"](value) or (value is None and one.default is None)):
                hint = did_you_mean(str(value), known.get("choices", ()))
                raise SearchError(f"`{one.name}` must be {known['wanted']}. Received: {one.name}={value!r}.{hint}")
        self._check_pairs()
        object.__setattr__(self, "plan_fields", checked_fields(self.plan_fields))

    def _check_pairs(self) -> None:
        """Refuses invalid combinations of options."""
        self._check_folds()
        if self.by_optuna:
            check_optuna(self.algorithm)
        elif self.pruning in OPTUNA_PRUNINGS or self.pruning_options:
            what = f"pruning={self.pruning!r}" if self.pruning in OPTUNA_PRUNINGS else "pruning_options"
            raise SearchError(
                f"{what} needs one of Optuna's algorithms ({', '.join(OPTUNA_ALGORITHMS)}). "
                f"Received: algorithm={self.algorithm!r}."
            )
        else:
            self._check_of_oracle()
        if self.pruning != "none" and self.algorithm == "hyperband":
            raise SearchError("Hyperband stops trials itself. Use pruning='none', or another algorithm.")
        if self.objective is not None and len(listed_names(self.objective)) > 1:
            if self.algorithm == "cmaes":
                raise SearchError("CMA-ES optimizes a single objective. For several, use algorithm='nsga2' or 'tpe'.")
            if self.by_optuna and self.pruning != "none":
                raise SearchError("Optuna prunes trials only if there is a single objective. Use pruning='none'.")
        if self.num_initial_points is not None and self.algorithm in ("random", "grid", "hyperband"):
            raise SearchError(f"algorithm={self.algorithm!r} does not use num_initial_points. Leave it out.")
        if self.hyperparameters is None and not (self.tune_new_entries and self.allow_new_entries):
            off = "allow_new_entries" if self.tune_new_entries else "tune_new_entries"
            raise SearchError(f"{off}=False needs hyperparameters: the search is then limited to them.")

    def _check_folds(self) -> None:
        """Refuses what does not go with folds."""
        if self.folds is None:
            return
        whys = {
            "algorithm='hyperband'": self.algorithm == "hyperband" and "Hyperband continues one training of each trial",
            f"pruning={self.pruning!r}": self.pruning != "none" and "a trial already stops after a fold that has lost",
            "executions_per_trial": self.executions_per_trial > 1 and "each trial already trains once for each fold",
            "keep_models": self.keep_models and "no model of a fold is trained on all data; use retrain",
        }
        for option, why in whys.items():
            if why:
                raise SearchError(f"folds={self.folds} does not go with {option}: {why}.")

    def _check_of_oracle(self) -> None:
        known = _OF_ORACLE.get(self.algorithm, {})
        takes = ", ".join(f"{option} (at least {least})" for option, least in known.items()) or "none"
        for name, value in self.algorithm_options.items():
            if name not in known or type(value) not in (int, float) or value < known[name]:
                raise SearchError(
                    f"algorithm={self.algorithm!r} takes these algorithm_options: {takes}. Received: {name}={value!r}."
                )

    @property
    def by_optuna(self) -> bool:
        """Whether Optuna chooses the trials."""
        return self.algorithm in OPTUNA_ALGORITHMS

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Creates options from a dictionary; None for the algorithm or for a dictionary stands for the default.

        Raises:
            SearchError: for an unknown name; suggests the closest one.
        """
        _check_names(options, [one.name for one in fields(cls)])
        filled = ("algorithm", *OBJECTS)
        return cls(**{name: value for name, value in options.items() if value is not None or name not in filled})

    @property
    def trial_limit(self) -> int | None:
        """The maximum number of trials; None for all that the algorithm has."""
        return self.max_trials or (None if self.algorithm in _NO_DEFAULT_MAX_TRIALS else _DEFAULT_MAX_TRIALS)

    def identity(self) -> dict[str, Any]:
        """The options that must be unchanged to resume a search, as JSON values."""
        own = {name: value for name, value in asdict(self).items() if name not in _NOT_IDENTITY}
        return {**own, "objective": list(self.objective) if isinstance(self.objective, tuple) else self.objective}


_OF_DATA = (
    "A search takes a workload and a space, search(workload, build, run_dir=...), and its data from the workload: "
    "tfaccel.Workload.of(build_model, x, y). Received: {} arguments by position."
)


def _check_names(names: Iterable[str], known: Collection[str]) -> None:
    """Raises SearchError for an unknown name; says what stands in place of an argument of Keras Tuner."""
    for name in names:
        if name in _ELSEWHERE:
            raise SearchError(f"A search has no option {name!r}. {_ELSEWHERE[name]}")
    check_names(names, known, SearchError, "A search has no option {!r}.")


def takes_search_options(function: _Searches) -> _Searches:
    """A decorator: the signature of a function shows the fields of `SearchOptions` in front of its `**options`.

    An unknown name is a SearchError, also in a call that lacks another argument.
    """
    signature = inspect.signature(function)
    *own, others = signature.parameters.values()
    options = [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None if one.default is MISSING else one.default,
            annotation=f"{one.type} | None" if one.default is MISSING else one.type,
        )
        for one in fields(SearchOptions)
    ]
    parameters = [*own, *options, others]
    known = [one.name for one in parameters if one is not others]
    positional = [one for one in own if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if len(args) > len(positional):
            raise SearchError(_OF_DATA.format(len(args)))
        _check_names(set(kwargs) - {*plan_field_names(), PRECISION}, known)
        return function(*args, **kwargs)

    checked.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return cast(_Searches, checked)


def check_keras_tuner() -> None:
    """Raises VersionError if Keras Tuner, needed for searches but not for training, is not installed.

    Example:
        >>> check_keras_tuner()
    """
    if find_spec("keras_tuner") is None:
        raise VersionError(
            "Searching needs `keras-tuner`, which is not installed. Install it: pip install 'tfaccel[tune]'"
        )


def check_optuna(algorithm: str) -> None:
    """Checks that Optuna is installed."""
    needed = ("optuna", "cmaes") if algorithm == "cmaes" else ("optuna",)
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise SearchError(
            f"algorithm={algorithm!r} needs {' and '.join(missing)}, which is not installed. "
            "Run: pip install 'tfaccel[optuna]'."
        )


def _get_config(given: Any) -> Any:
    """The config of Keras Tuner's hyperparameters."""
    config = given.get_config() if hasattr(given, "get_config") else given
    if config is None or (isinstance(config, Mapping) and isinstance(config.get("space"), list)):
        return config
    raise SearchError(f"hyperparameters must be a keras_tuner.HyperParameters. Received: {given!r:.200}.")
