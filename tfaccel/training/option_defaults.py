"""A recipe's own defaults among the options of training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfaccel.training.training_options import TrainingOptions


def options_with_defaults(
    options: Mapping[str, Any], *, learning_rate: float, global_clipnorm: float | None = None
) -> TrainingOptions:
    """The options of a user, and a recipe's own where they leave room for them.

    Args:
        options: of `TrainingOptions`, by name.
        learning_rate: the highest one that suits AdamW; for another optimizer its own default holds.
        global_clipnorm: clipping, where the options have no `clipnorm`.

    Raises:
        WorkloadError: as `TrainingOptions`.

    Example:
        >>> options_with_defaults({"optimizer": "sgd"}, learning_rate=3e-3).peak_learning_rate
        0.1
    """
    defaults: dict[str, Any] = {}
    if str(options.get("optimizer", "adamw")).lower() == "adamw":
        defaults["learning_rate"] = learning_rate
    if options.get("clipnorm") is None:
        defaults["global_clipnorm"] = global_clipnorm
    return TrainingOptions.of({**defaults, **options})
