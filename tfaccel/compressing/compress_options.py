"""The noun `CompressOptions`: how variants of a model are made and compared."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from tfaccel.compressing.methods import DEFAULT_METHODS, METHODS, TfmotOptions, checked_methods, option
from tfaccel.errors import CompressionError
from tfaccel.known_names import check_names, did_you_mean

DIRECTIONS = ("auto", "min", "max")
_OTHERS = ("workload", "representative_data", "validation_data")  # of `compress`


def _silent(text: str) -> None:
    del text


@dataclass(frozen=True, kw_only=True)
class CompressOptions:
    """How variants of a model are made and compared; `compress` says what each field means.

    Example:
        >>> CompressOptions(num_representative=0)
        Traceback (most recent call last):
        ...
        tfaccel.errors.CompressionError: `num_representative` must be an integer of at least 1. Received: 0.
    """

    methods: tuple[str, ...] = option(
        DEFAULT_METHODS,
        f"methods to try, separated by commas: {'; '.join(f'{one.name}: {one.text}' for one in METHODS.values())}. "
        "Combinations such as prune+int8 quantize the result",
    )
    max_metric_drop: float = option(0.01, "max drop of the metric, in its own unit; a negative value requires a gain")
    metric: str | None = option(
        None,
        "metric to compare by: a metric of the run, loss, or agreement with the float model (default: the first metric "
        "that is not a loss)",
    )
    direction: str = option(
        "auto", "whether a lower (min) or higher (max) metric is better; auto infers it from the name"
    )
    confidence: float = option(
        0.95, "confidence that the drop is within --max_metric_drop; 0 uses the drop on the held-out examples as is"
    )
    num_representative: int = option(200, "number of training examples to calibrate activation ranges")
    num_threads: tuple[int, ...] = option(
        (),
        "numbers of threads to measure latency with (default: 1, and the number of usable cores)",
        flag="latency_threads",
    )
    latency_seconds: float = option(1.0, "seconds to measure each file with each number of threads")
    sensitivity: bool = option(False, "also measure the metric drop with each layer alone in int8")
    training: Mapping[str, Any] = field(default_factory=dict, hash=False)
    out_dir: str | os.PathLike[str] | None = field(
        default=None, metadata={"help": "folder for the results (default: the folder compressed in the run directory)"}
    )
    progress: Callable[[str], None] = field(default=_silent, compare=False)

    def __post_init__(self) -> None:
        for name, default in (("training", {}), ("progress", _silent)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
        object.__setattr__(self, "methods", checked_methods(self.methods))
        for name, (takes, wanted) in _VALID.items():
            _check(name, getattr(self, name), takes, wanted)
        for threads in self.num_threads:
            _check("num_threads", threads, *_COUNT)
        object.__setattr__(self, "max_metric_drop", float(self.max_metric_drop))
        object.__setattr__(self, "num_threads", tuple(self.num_threads))
        check_names(
            self.training, [one.name for one in fields(TfmotOptions)], CompressionError, "Training has no option {!r}."
        )
        TfmotOptions(**self.training)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """The options in a dictionary.

        Raises:
            CompressionError: for an unknown option.
        """
        known = [*(one.name for one in fields(cls)), *_OTHERS]
        check_names(options, known, CompressionError, "There is no option {!r}.")
        return cls(**options)


def _check(name: str, value: Any, takes: Callable[[Any], bool], wanted: str) -> None:
    if not takes(value):
        hint = did_you_mean(str(value), DIRECTIONS) if name == "direction" else ""
        raise CompressionError(f"`{name}` must be {wanted}. Received: {value!r}.{hint}")


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def _instance_of(kind: Any) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind)


_COUNT = (lambda value: type(value) is int and value >= 1, "an integer of at least 1")
# Option -> whether a value is valid, and the valid values, for messages.
_VALID: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_metric_drop": (_is_number, "a number"),
    "metric": (_instance_of(str | None), "the name of a metric, or None"),
    "direction": (lambda value: isinstance(value, str) and value in DIRECTIONS, f"one of {', '.join(DIRECTIONS)}"),
    "confidence": (
        lambda value: _is_number(value) and (value == 0 or 0.5 <= value < 1),
        "from 0.5 to below 1, or 0 to go by estimates alone",
    ),
    "num_representative": _COUNT,
    "num_threads": (_instance_of(list | tuple), "a list of integers"),
    "latency_seconds": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    "sensitivity": (_instance_of(bool), "True or False"),
    "training": (_instance_of(Mapping), "a dictionary of options by name"),
    "out_dir": (_instance_of(str | os.PathLike | None), "a folder, or None"),
    "progress": (callable, "a function that takes a line"),
}
