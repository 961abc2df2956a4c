"""The noun `Report`: raw windows first, derived figures second, and what makes them doubtful."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tfaccel.benchmarks.figure import Figure
from tfaccel.measuring.measurement import Measurement

# A program whose windows differ by more than this (interquartile range / median) was disturbed.
NOISY_SPREAD = 0.10


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a suite of measurements found.

    Attributes:
        suite: name of the suite, such as "engine".
        machine: what it ran on: cores, versions, settings.
        measurements: name of a comparison -> its raw times, one entry for each program.
        figures: what was derived from them.

    Example:
        >>> Report(suite="engine", machine={}, measurements={}, figures=()).met
        True
    """

    suite: str
    machine: dict[str, Any]
    measurements: dict[str, tuple[Measurement, ...]]
    figures: tuple[Figure, ...]

    @property
    def met(self) -> bool:
        """Whether no figure misses its bound."""
        return all(figure.met is not False for figure in self.figures)

    @property
    def warnings(self) -> list[str]:
        """What makes figures doubtful: programs that differ from themselves, and from each other in what they learn."""
        noisy = [
            f"{name}: {measurement.name} differs from itself by {measurement.spread:.0%}: is the machine busy?"
            for name, measurements in self.measurements.items()
            for measurement in measurements
            if measurement.spread > NOISY_SPREAD
        ]
        unlike = [
            f"{figure.name}: {figure.quantity}: the losses after the same batches differ by "
            f"{figure.loss_difference:.2g}, allowed are {figure.loss_tolerance:.2g}."
            for figure in self.figures
            if not figure.losses_agree
        ]
        return noisy + unlike

    def to_json(self) -> dict[str, Any]:
        """Raw times, figures and warnings as JSON values."""
        return {
            "suite": self.suite,
            "machine": self.machine,
            "met": self.met,
            "figures": [figure.to_json() for figure in self.figures],
            "warnings": self.warnings,
            "measurements": {name: [m.to_json() for m in found] for name, found in self.measurements.items()},
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Report:
        """The report that `to_json` gave."""
        measurements = {
            name: tuple(Measurement.from_json(measurement) for measurement in found)
            for name, found in data["measurements"].items()
        }
        figures = tuple(Figure.from_json(figure) for figure in data["figures"])
        return cls(suite=data["suite"], machine=data["machine"], measurements=measurements, figures=figures)
