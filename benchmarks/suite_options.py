"""`SuiteOptions`: how to run a suite of measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tfaccel.hardware.detect import detect_hardware
from tfaccel.training.run.result import installed_versions


@dataclass(frozen=True, kw_only=True)
class SuiteOptions:
    """How to run a suite.

    Attributes:
        repetitions: number of windows of each program.
        scale: factor of the steps (or epochs) of each window; below 1 for trial runs, whose figures mean little.
        progress: called with a line before each run.
    """

    repetitions: int
    scale: float = 1.0
    progress: Callable[[str], None]

    def machine(self) -> dict[str, Any]:
        """The machine and the settings of the suite, for its report."""
        hardware = detect_hardware()
        return {
            "cpu_model": hardware.cpu_model,
            "num_usable_cores": hardware.num_usable_cores,
            "versions": installed_versions(),
            "repetitions": self.repetitions,
            "scale": self.scale,
        }
