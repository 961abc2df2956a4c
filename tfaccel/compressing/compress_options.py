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
        if not _is_number(self.max_metric_drop) or not math.isfinite(self.max_metric_drop):
            raise CompressionError(f"`max_metric_drop` must be a number. Received: {self.max_metric_drop!r}.")
        object.__setattr__(self, "max_metric_drop", float(self.max_metric_drop))
        _check_kinds(self)
        object.__setattr__(self, "num_threads", tuple(self.num_threads))
        _check_count("num_representative", self.num_representative)
        for threads in self.num_threads:
            _check_count("num_threads", threads)
        check_names(
            self.training, [one.name for one in fields(TfmotOptions)], CompressionError, "Training has no option {!r}."
        )
        TfmotOptions(**self.training)
        seconds = self.latency_seconds
        if not _is_number(seconds) or not 0 < seconds < math.inf:
            raise CompressionError(f"`latency_seconds` must be a number above 0. Received: {seconds!r}.")
        confidence = self.confidence
        if not _is_number(confidence) or not (confidence == 0 or 0.5 <= confidence < 1):
            raise CompressionError(
                f"`confidence` must be from 0.5 to below 1, or 0 to go by estimates alone. Received: {confidence!r}."
            )
        if not isinstance(self.direction, str) or self.direction not in DIRECTIONS:
            hint = did_you_mean(str(self.direction), DIRECTIONS)
            raise CompressionError(
                f"`direction` must be one of {', '.join(DIRECTIONS)}. Received: {self.direction!r}.{hint}"
            )

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """The options in a dictionary.

        Raises:
            CompressionError: for an unknown option.
        """
        known = [*(one.name for one in fields(cls)), *_OTHERS]
        check_names(options, known, CompressionError, "There is no option {!r}.")
        return cls(**options)


def _check_kinds(options: CompressOptions) -> None:
    """Raises CompressionError for an option of the wrong type."""
    kinds: dict[str, tuple[Any, str]] = {
        "metric": (str | None, "the name of a metric, or None"),
        "num_threads": (list | tuple, "a list of integers"),
        "sensitivity": (bool, "True or False"),
        "training": (Mapping, "a dictionary of options by name"),
        "out_dir": (str | os.PathLike | None, "a folder, or None"),
        "progress": (Callable, "a function that takes a line"),
    }
    for name, (kind, text) in kinds.items():
        value = getattr(options, name)
        if not isinstance(value, kind):
            raise CompressionError(f"`{name}` must be {text}. Received: {value!r}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _check_count(name: str, value: int) -> None:
    if type(value) is not int or value < 1:
        raise CompressionError(f"`{name}` must be an integer of at least 1. Received: {value!r}.")
