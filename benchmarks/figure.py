"""`Figure`: one derived number with its spread and the bound it must meet."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A number derived from timed windows, once per repetition.

    Attributes:
        name: which comparison, such as "cnn".
        quantity: what is compared, such as "throughput of tfaccel.fit(numpy) / Model.fit(numpy), steps alone".
        values: one per repetition.
        cpu_values: the same from CPU time; empty if not meaningful.
        at_most: upper bound of the median.
        at_least: lower bound of the median. Without a bound the figure is informational.
        loss_difference: absolute difference of the two programs' losses after the same batches; None for one program.
        loss_tolerance: maximum loss difference; above it, the figure fails.

    Raises:
        ValueError: without values, or with two bounds.

    Example:
        >>> Figure(name="cnn", quantity="throughput", values=(0.97, 1.0, 1.2), at_least=0.98).met
        True
    """

    name: str
    quantity: str
    values: tuple[float, ...]
    cpu_values: tuple[float, ...] = ()
    at_most: float | None = None
    at_least: float | None = None
    loss_difference: float | None = None
    loss_tolerance: float = 1e-3

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(self.values))
        object.__setattr__(self, "cpu_values", tuple(self.cpu_values))
        if not self.values:
            raise ValueError(f"A figure needs at least one value. Received: {self!r}.")
        if self.at_most is not None and self.at_least is not None:
            raise ValueError(f"A figure has one bound, at_most or at_least. Received: {self!r}.")

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def minimum(self) -> float:
        return min(self.values)

    @property
    def maximum(self) -> float:
        return max(self.values)

    @property
    def cpu_median(self) -> float | None:
        """The median from CPU time."""
        return statistics.median(self.cpu_values) if self.cpu_values else None

    @property
    def losses_agree(self) -> bool:
        """Whether both programs reached the same loss."""
        return self.loss_difference is None or self.loss_difference <= self.loss_tolerance

    @property
    def met(self) -> bool | None:
        """Whether the median meets the bound and the losses agree; None for an informational figure."""
        if self.at_most is not None:
            return self.median <= self.at_most and self.losses_agree
        if self.at_least is not None:
            return self.median >= self.at_least and self.losses_agree
        return None

    def to_json(self) -> dict[str, Any]:
        """The fields, and what is derived from them, as JSON values."""
        derived = {name: getattr(self, name) for name in ("median", "minimum", "maximum", "cpu_median", "met")}
        return {**asdict(self), **derived}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Figure:
        """Restores a figure from the output of `to_json`; derived values are recomputed."""
        return cls(**{name: value for name, value in data.items() if name in cls.__dataclass_fields__})
