"""`Report`: raw windows, derived figures, and warnings about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tfaccel.benchmarks.figure import Figure
from tfaccel.benchmarks.measurement import Measurement

# A program whose windows vary by more than this (interquartile range / median) was disturbed.
NOISY_SPREAD = 0.10


@dataclass(frozen=True, kw_only=True)
class Report:
    """The results of a suite of measurements.

    Attributes:
        suite: name of the suite, such as "engine".
        machine: the machine it ran on: cores, versions, settings.
        measurements: name of a comparison -> its raw times, one entry for each program.
        figures: the figures derived from them.
        raw: results in another form than measurements, as JSON.
        notes: further reasons to doubt the figures.

    Example:
        >>> Report(suite="engine", machine={}, measurements={}, figures=()).met
        True
    """

    suite: str
    machine: dict[str, Any]
    measurements: dict[str, tuple[Measurement, ...]]
    figures: tuple[Figure, ...]
    raw: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def met(self) -> bool:
        """Whether no figure misses its bound."""
        return all(figure.met is not False for figure in self.figures)

    @property
    def warnings(self) -> list[str]:
        """Reasons to doubt the figures: noisy programs, programs whose losses differ, and notes."""
        noisy = [
            f"{name}: {measurement.name} varies by {measurement.spread:.0%}: is the machine busy?"
            for name, measurements in self.measurements.items()
            for measurement in measurements
            if measurement.spread > NOISY_SPREAD
        ]
        unlike = [
            f"{figure.name}: {figure.quantity}: the losses after the same batches differ by "
            f"{figure.loss_difference:.2g}; the tolerance is {figure.loss_tolerance:.2g}."
            for figure in self.figures
            if not figure.losses_agree
        ]
        return [*noisy, *unlike, *self.notes]

    def to_json(self) -> dict[str, Any]:
        """Raw times, figures and warnings as JSON values."""
        return {
            "suite": self.suite,
            "machine": self.machine,
            "met": self.met,
            "figures": [figure.to_json() for figure in self.figures],
            "warnings": self.warnings,
            "measurements": {name: [m.to_json() for m in found] for name, found in self.measurements.items()},
            **({"raw": self.raw, "notes": list(self.notes)} if self.raw else {}),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Report:
        """The report from its `to_json` data."""
        measurements = {
            name: tuple(Measurement.from_json(measurement) for measurement in found)
            for name, found in data["measurements"].items()
        }
        figures = tuple(Figure.from_json(figure) for figure in data["figures"])
        return cls(
            suite=data["suite"],
            machine=data["machine"],
            measurements=measurements,
            figures=figures,
            raw=data.get("raw", {}),
            notes=tuple(data.get("notes", ())),
        )
