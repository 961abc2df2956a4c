"""`SuiteOptions`: the options of a benchmark suite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tfaccel.hardware.detect import detect_hardware
from tfaccel.training.result import installed_versions


@dataclass(frozen=True, kw_only=True)
class SuiteOptions:
    """How a suite is run.

    Attributes:
        repetitions: windows that are kept of each program.
        scale: the steps (or epochs) of each window are multiplied by this; below 1 for trials, whose figures mean
            little.
        progress: called with a line before each run.
    """

    repetitions: int
    scale: float = 1.0
    progress: Callable[[str], None]

    def machine(self) -> dict[str, Any]:
        """What the suite runs on, and how, for its report."""
        hardware = detect_hardware()
        return {
            "cpu_model": hardware.cpu_model,
            "num_usable_cores": hardware.num_usable_cores,
            "versions": installed_versions(),
            "repetitions": self.repetitions,
            "scale": self.scale,
        }
