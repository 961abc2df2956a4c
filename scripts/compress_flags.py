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
    "workload": "the run's workload, as package.module:function, if it is not a recipe",
    "metric": "metric to compare by: a metric of the run, loss, or agreement with the float model (default: the first "
    "metric that is not a loss)",
    "out_dir": "folder for the results (default: the folder compressed in the run directory)",
}
# Options of the methods with training: flag -> its type, the option's name, and its help.
_TRAINING: dict[str, tuple[Callable[[str], Any], str, str]] = {
    "train_epochs": (
        int,
        "epochs",
        "training epochs of the methods with training (default: 4, or 12 for pruning except 2:4)",
    ),
    "train_learning_rate": (
        float,
        "learning_rate",
        "peak learning rate of the methods with training (default: a fraction of the workload's)",
    ),
    "sparsity": (float, "sparsity", "fraction of the weights that pruning sets to zero (default: 0.8)"),
    "num_clusters": (int, "num_clusters", "number of distinct values per kernel after clustering (default: 16)"),
}


def compress_flags() -> flags.FlagValues:
    """The flags of the command, not parsed yet."""
    values = flags.FlagValues()
    own: dict[str, Any] = {"flag_values": values}
    for name, text in {**_TEXTS, **{name: text for name, (_, _, text) in _TRAINING.items()}}.items():
        flags.DEFINE_string(name, None, text, **own)
    text = f"methods to try, separated by commas: {_METHODS}. Combinations such as prune+int8 quantize the result"
    flags.DEFINE_list("methods", list(DEFAULT_METHODS), text, **own)
    text = "max drop of the metric, in its own unit; a negative value requires a gain"
    flags.DEFINE_float("max_metric_drop", 0.01, text, **own)
    text = "confidence that the drop is within --max_metric_drop; 0 uses the drop on the held-out examples as is"
    flags.DEFINE_float("confidence", 0.95, text, **own)
    text = "whether a lower (min) or higher (max) metric is better; auto infers it from the name"
    flags.DEFINE_enum("direction", "auto", ["auto", "min", "max"], text, **own)
    text = "number of training examples to calibrate activation ranges"
    flags.DEFINE_integer("num_representative", 200, text, lower_bound=1, **own)
    text = "numbers of threads to measure latency with (default: 1, and the number of usable cores)"
    flags.DEFINE_list("latency_threads", [], text, **own)
    text = "seconds to measure each file with each number of threads"
    flags.DEFINE_float("latency_seconds", 1.0, text, lower_bound=0.001, **own)
    flags.DEFINE_bool("sensitivity", False, "also measure the metric drop with each layer alone in int8", **own)
    flags.DEFINE_bool("json", False, "print the result as JSON", **own)
    flags.DEFINE_bool("quiet", False, "print only the result, no progress", **own)
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
        TfaccelError: for a value that is not a number.
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
