"""The flags of `tfaccel compress`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from absl import flags

from tfaccel.compressing.methods import DEFAULT_METHODS, METHODS
from tfaccel.errors import TfaccelError

_METHODS = "; ".join(f"{method.name}: {method.text}" for method in METHODS.values())
_TEXTS = {
    "run_dir": "the directory of a finished run",
    "workload": "the run's workload, as package.module:function, where it is no recipe's",
    "metric": "what to judge by: a metric of the run, loss, or agreement with the float model; else the first metric "
    "that is no loss",
    "out_dir": "where the outcome goes; else the folder compressed in the run directory",
}
# Options of the methods with training: flag -> how it is read, the option's name, and its help.
_TRAINING: dict[str, tuple[Callable[[str], Any], str, str]] = {
    "train_epochs": (int, "epochs", "passes over the training data of the methods with training"),
    "train_learning_rate": (float, "learning_rate", "the highest learning rate of the methods with training"),
    "sparsity": (float, "sparsity", "part of the weights that pruning makes zero"),
    "num_clusters": (int, "num_clusters", "different values that clustering leaves in each kernel"),
}


def compress_flags() -> flags.FlagValues:
    """The flags of the command, not parsed yet."""
    values = flags.FlagValues()
    own: dict[str, Any] = {"flag_values": values}
    for name, text in {**_TEXTS, **{name: text for name, (_, _, text) in _TRAINING.items()}}.items():
        flags.DEFINE_string(name, None, text, **own)
    text = f"what to try, with commas between: {_METHODS}. prune+int8 and the like quantize a pruned or clustered model"
    flags.DEFINE_list("methods", list(DEFAULT_METHODS), text, **own)
    text = "how much worse the metric may be, in its own unit; below 0 a gain is demanded"
    flags.DEFINE_float("max_metric_drop", 0.01, text, **own)
    text = "with which confidence the metric must be within --max_metric_drop; 0 judges by the held-out examples alone"
    flags.DEFINE_float("confidence", 0.95, text, **own)
    text = "whether the metric is better when lower (min) or higher (max); auto goes by its name"
    flags.DEFINE_enum("direction", "auto", ["auto", "min", "max"], text, **own)
    text = "training examples that show the ranges of activations"
    flags.DEFINE_integer("num_representative", 200, text, lower_bound=1, **own)
    text = "numbers of threads to measure latency with; else one, and one for each core"
    flags.DEFINE_list("latency_threads", [], text, **own)
    text = "how long to time each file with each number of threads"
    flags.DEFINE_float("latency_seconds", 1.0, text, lower_bound=0.001, **own)
    flags.DEFINE_bool("sensitivity", False, "also measure what each layer alone in int8 costs", **own)
    flags.DEFINE_bool("json", False, "print the result as JSON", **own)
    flags.DEFINE_bool("quiet", False, "no progress; the result alone", **own)
    return values


def run_dir(values: flags.FlagValues) -> str:
    """The value of --run_dir, which must be given."""
    path: str | None = values.run_dir
    if not path:
        raise TfaccelError("Give --run_dir=DIR, the directory of a finished run.")
    return path


def compress_options(values: flags.FlagValues) -> dict[str, Any]:
    """The keyword arguments of `tfaccel.compress` that are set by flags.

    Raises:
        TfaccelError: for a value that is no number where one is wanted.
    """
    names = (
        "methods",
        "max_metric_drop",
        "workload",
        "metric",
        "direction",
        "confidence",
        "num_representative",
        "latency_seconds",
        "sensitivity",
        "out_dir",
    )
    given = {name: values[name].value for name in names}
    threads = tuple(int(_number(int, "latency_threads", text)) for text in values.latency_threads)
    training = {
        option: _number(kind, name, values[name].value)
        for name, (kind, option, _) in _TRAINING.items()
        if values[name].value is not None
    }
    return {**given, "num_threads": threads, "training": training}


def _number(kind: Callable[[str], Any], name: str, text: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise TfaccelError(f"--{name} must be {wanted}. Received: --{name}={text}.") from None
