"""`Objective`: what a search optimizes: one metric, or several with a Pareto front."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Self

from tfaccel.errors import SearchError
from tfaccel.known_names import did_you_mean
from tfaccel.short_repr import noun

# Measured for every trial in addition to its metrics, with short aliases.
MEASURED = ("latency_seconds", "model_bytes")
_SHORT = {"latency": "latency_seconds", "size": "model_bytes"}
_RISING = (
    *("accuracy", "acc", "auc", "precision", "recall", "f1", "iou", "map", "recognised"),  # of classes and boxes
    *("psnr", "ssim", "similarity", "r2", "bleu", "rouge"),  # of images, numbers and texts
)
_FALLING = (
    *("loss", "error", "mae", "mse", "rmse", "mape", "msle", "pinball", "distance"),  # of numbers
    *("crossentropy", "entropy", "perplexity", "divergence", "hinge", "poisson", "nats", "bits"),  # of probabilities
)
# Keras Tuner's name for the number that a custom `fit` or `run_trial` returns when no objective is given.
DEFAULT_NAME = "default_objective"
_WEIGHT_OF_TEN_TIMES = 0.1  # the gain in a metric that a 10x smaller or faster model is worth


@noun(kw_only=False)
class Objective:
    """The metrics that a search optimizes.

    For Keras Tuner's algorithms, and to choose a best trial, several metrics are combined into one number to minimize:
    the sum of all metrics, with those to maximize negated; latency and size count as a tenth of their log10. Optuna's
    algorithms and the Pareto front use the metrics separately.

    Args:
        parts: pairs of a metric's name and "max" or "min".

    Example:
        >>> Objective((("val_accuracy", "max"),)).value({"val_accuracy": 0.9})
        0.9
        >>> both = Objective((("val_accuracy", "max"), ("model_bytes", "min")))
        >>> both.value({"val_accuracy": 0.9, "model_bytes": 1e6})
        -0.3
    """

    parts: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, wanted: str | Sequence[str]) -> Self:
        """Parses "NAME", "NAME:max" or "NAME:min"; several as a sequence or separated by commas.

        Raises:
            SearchError: if the direction cannot be inferred from a name.

        Example:
            >>> Objective.of("val_accuracy,size").parts
            (('val_accuracy', 'max'), ('model_bytes', 'min'))
        """
        parts = [(name, direction or infer_direction(name)) for name, direction in listed_names(wanted)]
        odd = next((f"{name}:{direction}" for name, direction in parts if direction not in ("max", "min")), None)
        if not parts or odd is not None or not all(name for name, _ in parts):
            raise SearchError(
                "An objective is written NAME, NAME:max or NAME:min, and several are separated by commas. "
                f"Received: {wanted!r}."
            )
        return cls(tuple(parts))

    @property
    def name(self) -> str:
        """The metric's name, or Keras Tuner's name for several."""
        return self.parts[0][0] if len(self.parts) == 1 else "multi_objective"

    @property
    def direction(self) -> str:
        """Whether to maximize ("max") or minimize ("min") the value."""
        return self.parts[0][1] if len(self.parts) == 1 else "min"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its metrics."""
        return tuple(name for name, _ in self.parts)

    def value(self, metrics: Mapping[str, float]) -> float:
        """The number to optimize, from the metrics of an epoch."""
        if len(self.parts) == 1:
            return float(metrics[self.name])
        total = 0.0
        for name, direction in self.parts:
            value = float(metrics[name])
            if name in MEASURED:
                value = _WEIGHT_OF_TEN_TIMES * math.log10(max(value, 1e-12))
            total += value if direction == "min" else -value
        return round(total, 9)

    def check_finite(self, value: float) -> float:
        """Returns the value; raises SearchError if it is NaN or infinite."""
        if not math.isfinite(value):
            raise SearchError(f"The objective {self.name!r} became {value}.")
        return value

    def better(self, value: float, other: float) -> bool:
        """Whether a value is better than another."""
        return value > other if self.direction == "max" else value < other

    def best(self, values: Sequence[Any], *, key: Callable[[Any], float] = float) -> Any:
        """The best of some values, the first of equals; of other things, by the value that `key` gives."""
        return (max if self.direction == "max" else min)(values, key=key)

    def to_json(self) -> list[list[str]]:
        """The parts as JSON values."""
        return [list(part) for part in self.parts]

    @classmethod
    def from_json(cls, data: Sequence[Sequence[str]]) -> Self:
        """Restores an objective from the output of `to_json`."""
        return cls(tuple((name, direction) for name, direction in data))


def listed_names(wanted: str | Sequence[str]) -> list[tuple[str, str]]:
    """The metrics of an objective as text, each with the direction that is written behind it, or "".

    Example:
        >>> listed_names("val_loss:min, size")
        [('val_loss', 'min'), ('model_bytes', '')]
    """
    texts = wanted.split(",") if isinstance(wanted, str) else wanted
    pairs = [str(text).strip().partition(":") for text in texts]
    return [(_SHORT.get(name, name), direction) for name, _, direction in pairs]


def infer_direction(name: str) -> str:
    """Infers "max" or "min" from a metric's name.

    Example:
        >>> infer_direction("val_sparse_categorical_accuracy"), infer_direction("val_loss")
        ('max', 'min')
        >>> infer_direction("true_negatives"), infer_direction("false_positives")
        ('max', 'min')
    """
    if name in MEASURED:
        return "min"
    words = name.lower().split("_")
    if {"positives", "negatives"} & {*words}:
        for word, direction in (("false", "min"), ("true", "max")):
            if word in words:
                return direction
    for known, direction in ((_FALLING, "min"), (_RISING, "max")):
        if any(word in known or word.rstrip("0123456789") in known for word in words):
            return direction
    raise SearchError(
        f"The name {name!r} does not imply whether higher is better. Write the objective as {name}:max or {name}:min, "
        "or choose another one."
    )


def checked_objective(wanted: Any, names: Collection[str]) -> Objective:
    """The requested objective, or the default one.

    Args:
        wanted: as in `SearchOptions`.
        names: all metrics of a trial; validation metrics start with `val_`.

    Example:
        >>> checked_objective(None, ["loss", "accuracy", "val_loss", "val_accuracy"]).name
        'val_accuracy'
    """
    if wanted is None:
        return _default_objective(names)
    known = [*names, *MEASURED]
    for name, _ in listed_names(wanted):
        if name not in known:
            hint = did_you_mean(name, known)
            raise SearchError(f"No trial has the metric {name!r}.{hint} Metrics: {', '.join(known)}.")
    return Objective.of(wanted)


def _default_objective(names: Collection[str]) -> Objective:
    # "val_divergence_loss" is the loss of one output, one term of "val_loss".
    held_out = [name for name in names if name.startswith("val_") and not name.endswith("loss")]
    for name in [*held_out, "val_loss", "loss"]:
        if name in names:
            try:
                return Objective.of(name)
            except SearchError:
                continue
    raise SearchError(
        "The objective cannot be inferred from the metrics. Choose one: --objective=NAME:max or NAME:min. "
        f"Metrics: {', '.join(names) or 'none'}."
    )


def written_objective(given: Any) -> Any:
    """An objective as text: Keras Tuner's objects become "NAME:max" or "NAME:min".

    Raises:
        SearchError: for anything but strings, Keras Tuner objectives, and sequences of these.

    Example:
        >>> written_objective(("val_loss", "size"))
        ('val_loss', 'size')
    """
    if given is None or isinstance(given, str):
        return given
    if isinstance(given, list | tuple):
        return tuple(_one_objective(part) for part in given)
    several = getattr(given, "objectives", None)
    return tuple(map(_one_objective, several)) if several else _one_objective(given)


def _one_objective(given: Any) -> str:
    if isinstance(given, str):
        return given
    name, direction = getattr(given, "name", None), getattr(given, "direction", None)
    if isinstance(name, str) and isinstance(direction, str):
        return f"{name}:{direction}"
    raise SearchError(
        "An objective is the name of a metric, NAME:max or NAME:min, a keras_tuner.Objective, or several of these. "
        f"Received: {given!r:.200}."
    )
