"""The flags of `tfaccel search`, except those of the workload and of the plan."""

import json
from dataclasses import Field, fields
from typing import Any

from absl import flags

from tfaccel.errors import TfaccelError
from tfaccel.scripts.plan_flags import define_plan_flags, fixed_fields
from tfaccel.scripts.train_flags import define_train_flags, run_option, workload_options
from tfaccel.scripts.workload_flags import define_workload_flags
from tfaccel.scripts.workload_parameters import WorkloadParameters
from tfaccel.tuning.options import OBJECTS, SearchOptions

# Option of `SearchOptions` -> the help of its flag. The option says what the flag takes.
_OPTIONS = {
    "algorithm": "search algorithm",
    "pruning": "rule that stops trials early",
    "objective": "metric to optimize, as NAME, NAME:max or NAME:min, or several separated by commas; "
    "also latency and size (default: the first validation metric)",
    "max_trials": "max number of trials (default: 10, or with grid and hyperband no limit)",
    "parallel": "number of parallel trials, each with its own GPUs or its share of the cores (default: 1)",
    "max_parameters": "max parameters of a model; trials with larger models fail",
    "num_initial_points": "number of initial random trials (bayesian, tpe, cmaes), or population size (nsga2)",
    "executions_per_trial": "training runs per trial, with different seeds; scores are averaged (default: 1)",
    "folds": "cross-validation: cut the arrays to train on into this many folds; scores are averaged",
    "max_retries_per_trial": "max retries of a failed trial (default: 0)",
    "max_consecutive_failed_trials": "stop the search after this many consecutive failed trials",
    "algorithm_options": "additional arguments of the algorithm, as a JSON object such as '{\"beta\": 1.0}'",
    "pruning_options": "arguments of Optuna's pruner, as a JSON object",
    "trial_seconds": "time limit of a trial in seconds; a trial that exceeds it fails",
    "search_seconds": "start no new trials after this many seconds",
    "stall_seconds": "a trial without a heartbeat for this many seconds fails (default: 900)",
    "keep_models": "keep each trial's best model in tuner/trial_*/",
    "retrain": "retrain the best trial and keep its model in best/",
}
_LARGEST = {
    "parallel": 1_024,
    "executions_per_trial": 1_000,
    "folds": 1_000,
    "max_retries_per_trial": 1_000,
    "max_parameters": 10**15,
}
_LARGEST_COUNT = 1_000_000  # of the others
# Flag -> its least value, and its help.
_OF_RAY = {
    "cores_per_worker": (1, "ray: cores for each trial at a time (default: 1)"),
    "gpus_per_worker": (0, "ray: GPUs for each trial at a time (default: 0)"),
}
_NOT_HERE = {
    "plan": "Fix fields of the plan by their own flags, such as --dtype_policy=float32.",
    "validate_on": "Trials validate between their epochs.",
    "num_workers": "Use --parallel for trials at the same time; each trial has one worker.",
    **dict.fromkeys(
        ("checkpoint_interval", "keep_checkpoints"), "Trials have no checkpoints: an interrupted trial starts over."
    ),
    **dict.fromkeys(
        ("teacher", "distill_temperature", "distill_alpha"),
        "Distill the best model afterwards: `tfaccel train --teacher`.",
    ),
}


def define_tune_flags(values: flags.FlagValues) -> None:
    """Adds the flags to those of a command."""
    for define in (define_workload_flags, define_plan_flags, define_train_flags):
        define(values)
    values.set_default("seed", SearchOptions.seed)
    own: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_string(
        "space",
        None,
        "search space, as package.module:function: build(hp), a HyperModel, or "
        "space(hp) that returns arguments (default: the recipe's)",
        **own,
    )
    flags.DEFINE_string(
        "tuner", None, "a subclass of keras_tuner.Tuner whose run_trial runs the trials, as package.module:name", **own
    )
    for option in fields(SearchOptions):
        if option.name in _OPTIONS:
            _define(option, values)
    values["engine"].help = "where trials run: local (this machine), or ray (the nodes of a Ray cluster)"
    for name, (least, text) in _OF_RAY.items():
        flags.DEFINE_integer(name, None, text, lower_bound=least, **own)


def _define(option: Field[Any], values: flags.FlagValues) -> None:
    """Adds the flag of an option; without a choice, None stands for the option's default."""
    name, text = option.name, _OPTIONS[option.name]
    own: dict[str, Any] = {"flag_values": values}
    if "choices" in option.metadata:
        flags.DEFINE_enum(name, option.default, option.metadata["choices"], text, **own)
    elif "least" in option.metadata:
        most = _LARGEST.get(name, _LARGEST_COUNT)
        flags.DEFINE_integer(name, None, text, lower_bound=option.metadata["least"], upper_bound=most, **own)
    elif isinstance(option.default, bool):
        flags.DEFINE_bool(name, option.default, text, **own)
    elif name.endswith("_seconds"):
        flags.DEFINE_float(name, None, text, lower_bound=0.0, **own)
    else:
        flags.DEFINE_string(name, None, text, **own)


def search_options(values: flags.FlagValues, parameters: WorkloadParameters) -> dict[str, Any]:
    """The options of `search` that are set by flags.

    Raises:
        TfaccelError: for a flag of `tfaccel train` that does not apply here, or an invalid value.
    """
    for name, text in _NOT_HERE.items():
        if values[name].present:
            raise TfaccelError(f"--{name} is not a flag of `tfaccel search`. {text}")
    of_workload, plan_fields = workload_options(values, parameters), fixed_fields(values)
    options = {name: values[name].value for name in (*_OPTIONS, "tuner") if values[name].value is not None}
    options |= {name: _read_object(name, options[name]) for name in OBJECTS if name in options}
    if values["seed"].present:
        options["seed"] = values.seed
    if run_option("epochs", values) is not None:
        options["epochs"] = run_option("epochs", values)
    if "early_stopping" in of_workload:
        options["early_stopping"] = of_workload.pop("early_stopping")
    engine_options = {name: values[name].value for name in ("address", *_OF_RAY) if values[name].value is not None}
    if values.engine != "ray" and engine_options:
        name = next(iter(engine_options))
        raise TfaccelError(f"--{name} is for --engine=ray. Received: --{name} with --engine={values.engine}.")
    options |= {"engine": values.engine, "engine_options": engine_options}
    return {**options, "workload_options": of_workload, "plan_fields": plan_fields}


def _read_object(name: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise TfaccelError(f"--{name} must be a JSON object: {error}. Received: {text!r}.") from error
    if not isinstance(found, dict):
        raise TfaccelError(f"--{name} must be a JSON object. Received: {text!r}.")
    return found
