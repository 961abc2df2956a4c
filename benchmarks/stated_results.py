"""The stated result of each recipe, as a validation metric that can be monitored in training."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StatedResult:
    """A validation metric and the value at which a recipe counts as trained.

    Attributes:
        metric: its name in the logs, without `val_`.
        at_least: the lower bound, for a metric that should increase; else None.
        at_most: the upper bound, for a metric that should decrease; else None.

    Raises:
        ValueError: unless there is exactly one bound.

    Example:
        >>> StatedResult(metric="accuracy", at_least=0.97).is_reached(0.98)
        True
    """

    metric: str
    at_least: float | None = None
    at_most: float | None = None

    def __post_init__(self) -> None:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError(f"A stated result has one bound, at_least or at_most. Received: {self!r}.")

    def is_reached(self, value: float) -> bool:
        """Whether a value of the metric is good enough."""
        return value >= self.at_least if self.at_least is not None else value <= (self.at_most or 0.0)

    def __str__(self) -> str:
        sign, bound = (">=", self.at_least) if self.at_least is not None else ("<=", self.at_most)
        return f"{self.metric} {sign} {bound:g}"


# The worst of a recipe's five seeds, so that each run can reach it. If a recipe's score is not computed in training
# (exact matches, mAP, ROUGE-L), a validation metric replaces it. The GAN has no validation: all its epochs are timed.
STATED_RESULTS = {
    "tabular_classification": StatedResult(metric="accuracy", at_least=0.97),
    "tabular_regression": StatedResult(metric="r2", at_least=0.48),
    "recommendation": StatedResult(metric="auc", at_least=0.797),
    "image_classification": StatedResult(metric="accuracy", at_least=0.993),
    "transfer_learning": StatedResult(metric="accuracy", at_least=0.93),
    "text_classification": StatedResult(metric="accuracy", at_least=0.5),
    "sequence_forecasting": StatedResult(metric="median_absolute_error", at_most=0.145),
    "text_generation": StatedResult(metric="nats_per_character", at_most=1.62),
    "translation": StatedResult(metric="token_accuracy", at_least=0.999),
    "summarization": StatedResult(metric="token_accuracy", at_least=0.172),
    "object_detection": StatedResult(metric="loss", at_most=0.295),
    "autoencoder": StatedResult(metric="loss", at_most=23.83),
}
