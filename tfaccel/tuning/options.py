"""The noun `SearchOptions`: how a search goes on, which trials it stops, and when it ends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from tfaccel.errors import SearchError
from tfaccel.planning.near_name import check_names, near_name
from tfaccel.planning.plan import check_field_names
from tfaccel.planning.plan_fields import check_value

ALGORITHMS = ("random", "grid", "bayesian", "hyperband")
PRUNINGS = ("none", "median", "halving")
_DEFAULT_MAX_TRIALS = {"random": 10, "bayesian": 10}
_COUNTS = ("max_trials", "parallel", "seed", "epochs", "early_stopping", "max_parameters")
_TIMES = ("trial_seconds", "search_seconds", "stall_seconds")
# These may differ when a search goes on: they change no trial.
_NOT_IDENTITY = ("max_trials", "parallel", *_TIMES, "retrain")


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How a search of hyperparameters is done.

    Arguments:
        algorithm: Keras Tuner's "random", "grid", "bayesian" or "hyperband".
        max_trials: trials in all; None for 10 (random, bayesian), or all that the algorithm has (grid, hyperband).
        objective: the metric to better, as it stands in the logs ("val_accuracy"), or several ("val_accuracy",
            "latency_seconds", "model_bytes"); "NAME:max" or "NAME:min" where the name does not tell the direction.
            None for the first validation metric, or the validation loss where there is no metric.
        parallel: trials at the same time, each in a process of its own with its share of the devices.
        seed: decides which trials there are (as in Keras Tuner, where 0 means no seed), and how each one trains.
        epochs: of each trial; Hyperband's longest. None for what the workload recommends.
        pruning: "none"; "median": end a trial whose best is below the median of the others at the same epoch;
            "halving": at epochs 1, 3, 9 ... only the best third goes on.
        early_stopping: end a trial after so many epochs without a better objective; None for never.
        trial_seconds: the longest that a trial may take; None for no limit.
        search_seconds: no trial is begun after so long; None for no limit.
        stall_seconds: a trial without a sign of life for so long counts as hanging.
        max_parameters: the most numbers in a model that is trained; None for no limit.
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

    def __post_init__(self) -> None:
        _check_choice("algorithm", self.algorithm, ALGORITHMS)
        _check_choice("pruning", self.pruning, PRUNINGS)
        if self.pruning != "none" and self.algorithm == "hyperband":
            raise SearchError("Hyperband ends trials by itself. Use pruning='none' with it, or another algorithm.")
        required = {"parallel", "seed", "stall_seconds"}
        for names, kinds in ((_COUNTS, (int,)), (_TIMES, (int, float))):
            for name in names:
                value = getattr(self, name)
                if value is None and name not in required:
                    continue
                least = 1 if names is _COUNTS else 0
                if type(value) not in kinds or value < least or (value == 0 and names is _TIMES):
                    what = "a whole number of at least 1" if names is _COUNTS else "a number of seconds above 0"
                    or_none = "" if name in required else ", or None"
                    raise SearchError(f"`{name}` must be {what}{or_none}. Received: {name}={value!r}.")
        check_field_names(self.plan_fields)
        for name, value in self.plan_fields.items():
            check_value(name, tuple(value) if isinstance(value, list) else value)
        try:
            json.dumps([dict(self.workload_options), dict(self.plan_fields)])
        except TypeError as error:
            raise SearchError(f"workload_options and plan_fields must be JSON values: {error}.") from error

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """The options in a dictionary; SearchError for a name that is none, with the nearest one."""
        check_names(options, [one.name for one in fields(cls)], SearchError, "A search has no option {!r}.")
        return cls(**options)

    @property
    def trial_limit(self) -> int | None:
        """The most trials; None for all that the algorithm has."""
        return self.max_trials or _DEFAULT_MAX_TRIALS.get(self.algorithm)

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
        hint = near_name(str(value), choices)
        raise SearchError(f"`{name}` must be one of {', '.join(choices)}. Received: {name}={value!r}.{hint}")
