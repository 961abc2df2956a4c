"""The flags of `tfaccel tune` beyond those that name and make the workload, and those of the plan."""

import json
from typing import Any

from absl import flags

from tfaccel.errors import TfaccelError
from tfaccel.scripts.plan_flags import define_plan_flags, fixed_fields
from tfaccel.scripts.train_flags import define_train_flags, run_option, workload_options
from tfaccel.scripts.workload_flags import define_workload_flags
from tfaccel.scripts.workload_parameters import WorkloadParameters
from tfaccel.tuning.options import ALGORITHMS, PRUNINGS

# Flag -> the largest value, and its help.
_COUNTS = {
    "max_trials": (1_000_000, "trials in all; by default 10, or with grid and hyperband all that there are"),
    "parallel": (1_024, "trials at the same time, each with its own GPUs or its share of the cores"),
    "max_parameters": (10**15, "the most numbers in a model that is trained; larger ones are failed trials"),
    "num_initial_points": (
        1_000_000,
        "random trials at the beginning (bayesian, tpe, cmaes), or the size of a population (nsga2)",
    ),
    "executions_per_trial": (1_000, "how often each trial is trained, with other weights each time; scores are means"),
    "max_retries_per_trial": (1_000, "how often a trial that failed is begun anew"),
    "max_consecutive_failed_trials": (1_000_000, "the search ends when so many trials in a row have failed"),
}
_FROM_ZERO = ("max_retries_per_trial",)
_OBJECTS = {
    "algorithm_options": "further arguments of the algorithm, as a JSON object such as '{\"beta\": 1.0}'",
    "pruning_options": "arguments of Optuna's pruner, as a JSON object",
}
_TIMES = {
    "trial_seconds": "the longest that a trial may take; a longer one is a failed trial",
    "search_seconds": "no trial is begun after so many seconds",
    "stall_seconds": "a trial without a sign of life for so many seconds is a failed trial",
}
_NOT_HERE = {
    "plan": "Fix fields of the plan by their own flags, such as --dtype_policy=float32.",
    "checkpoint_interval": "Trials are not checkpointed: one that was interrupted begins anew.",
}


def define_tune_flags(values: flags.FlagValues) -> None:
    """Adds the flags to those of a command."""
    for define in (define_workload_flags, define_plan_flags, define_train_flags):
        define(values)
    own: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_enum("algorithm", "random", ALGORITHMS, "how trials are chosen", **own)
    flags.DEFINE_enum("pruning", "none", PRUNINGS, "which trials are ended early", **own)
    flags.DEFINE_string(
        "space",
        None,
        "what is searched, as package.module:function: build(hp), a HyperModel, or "
        "space(hp) that returns arguments; by default what the recipe offers",
        **own,
    )
    flags.DEFINE_string(
        "tuner", None, "a subclass of keras_tuner.Tuner whose run_trial runs the trials, as package.module:name", **own
    )
    flags.DEFINE_string(
        "objective",
        None,
        "the metric to better, as NAME, NAME:max or NAME:min; several with commas, "
        "also latency and size; by default the first validation metric",
        **own,
    )
    for name, (largest, text) in _COUNTS.items():
        smallest = 0 if name in _FROM_ZERO else 1
        flags.DEFINE_integer(name, None, text, lower_bound=smallest, upper_bound=largest, **own)
    for name, text in _OBJECTS.items():
        flags.DEFINE_string(name, None, text, **own)
    for name, text in _TIMES.items():
        flags.DEFINE_float(name, None, text, lower_bound=0.0, **own)
    flags.DEFINE_bool("keep_models", False, "keep each trial's model of its best epoch in tuner/trial_*/", **own)
    flags.DEFINE_bool("retrain", False, "train the best trial again and keep its model in best/", **own)


def search_options(values: flags.FlagValues, parameters: WorkloadParameters) -> dict[str, Any]:
    """The options of `search` that are set by flags.

    Raises:
        TfaccelError: for a flag of `tfaccel train` that means nothing here, or a value that is none.
    """
    for name, text in _NOT_HERE.items():
        if values[name].present:
            raise TfaccelError(f"--{name} is no flag of a search. {text}")
    of_workload, plan_fields = workload_options(values, parameters), fixed_fields(values)
    options = {name: values[name].value for name in (*_COUNTS, *_TIMES, "objective", "tuner")}
    options |= {name: _read_object(name, values[name].value) for name in _OBJECTS}
    options = {name: value for name, value in options.items() if value is not None}
    if values["seed"].present:
        options["seed"] = values.seed
    if run_option("epochs", values) is not None:
        options["epochs"] = run_option("epochs", values)
    if "early_stopping" in of_workload:
        options["early_stopping"] = of_workload.pop("early_stopping")
    chosen = {name: values[name].value for name in ("algorithm", "pruning", "keep_models", "retrain")}
    return {**options, **chosen, "workload_options": of_workload, "plan_fields": plan_fields}


def _read_object(name: str, text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise TfaccelError(f"--{name} must be a JSON object: {error}. Received: {text!r}.") from error
    if not isinstance(found, dict):
        raise TfaccelError(f"--{name} must be a JSON object. Received: {text!r}.")
    return found
