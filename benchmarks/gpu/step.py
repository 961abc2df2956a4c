"""`Step`, one part of the GPU suite, and `StepRun`, through which its function tells what it finds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tfaccel.benchmarks.figure import Figure
from tfaccel.benchmarks.gpu.step_result import StepResult
from tfaccel.errors import TfaccelError
from tfaccel.hardware.detect import detect_hardware
from tfaccel.hardware.hardware import Hardware

MAX_LIMIT_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True)
class Step:
    """One part of the suite, which runs in a process of its own.

    Attributes:
        name: as in `--steps`, and the name of its file.
        about: what it does, in one line.
        function: "module:function", called with a `StepRun` and the arguments.
        arguments: of the function.
        expected_seconds: how long it takes on a card like an H100.
        limit_seconds: after which the process is ended; at most 2 minutes.

    Raises:
        TfaccelError: for a longer limit.
    """

    name: str
    about: str
    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    expected_seconds: float = 60.0
    limit_seconds: float = MAX_LIMIT_SECONDS

    def __post_init__(self) -> None:
        if not 0 < self.limit_seconds <= MAX_LIMIT_SECONDS:
            raise TfaccelError(
                f"A step ends within {MAX_LIMIT_SECONDS:g} seconds. Received: limit_seconds={self.limit_seconds!r} for "
                f"{self.name!r}."
            )


class StepRun:
    """What a step's function gets: where it runs, and a place for what it finds, which is written at once.

    Args:
        result: the result so far, empty at first.
        out: the folder of all results.
        progress: called with a line of text.
        limit_seconds: after which the process is ended.
    """

    def __init__(
        self,
        result: StepResult,
        out: Path,
        progress: Callable[[str], None] = lambda text: None,
        *,
        limit_seconds: float = MAX_LIMIT_SECONDS,
    ) -> None:
        self.result = result
        self.out = out
        self.progress = progress
        self._deadline = time.monotonic() + limit_seconds
        self.hardware: Hardware = detect_hardware()

    @property
    def is_rehearsal(self) -> bool:
        """Whether it runs on two logical CPUs with tiny models, and nothing is judged."""
        return self.result.is_rehearsal

    @property
    def seconds_left(self) -> float:
        """How long this process may go on; never negative."""
        return max(0.0, self._deadline - time.monotonic())

    @property
    def kind(self) -> str:
        """The kind of the devices: "GPU", or "CPU" in a rehearsal."""
        return "CPU" if self.is_rehearsal else "GPU"

    @property
    def one_device(self) -> dict[str, Any]:
        """The plan fields of a single device."""
        return {"strategy": "none", "devices": (f"{self.kind}:0",)}

    def record(self, name: str, value: Any) -> None:
        """Keeps a finding, a JSON value, and writes the file."""
        self._keep(results={**self.result.results, name: value})

    def figure(self, name: str, quantity: str, values: Sequence[float], **bound: float) -> None:
        """Keeps a figure, and writes the file. In a rehearsal it has no bound.

        Args:
            name, quantity, values: see `Figure`.
            **bound: `at_least` or `at_most`.
        """
        bounds = {} if self.is_rehearsal else bound
        found = Figure(name=name, quantity=quantity, values=tuple(values), **bounds)
        self._keep(figures=(*self.result.figures, found))

    def note(self, text: str) -> None:
        """Keeps a line about what was left out, or a reason to doubt a figure."""
        self._keep(notes=(*self.result.notes, text))

    def get_results(self, name: str) -> Mapping[str, Any]:
        """What another step has found; empty if it has not run, or not to its end."""
        known = StepResult.load(self.out, name)
        return known.results if known is not None and known.status == "done" else {}

    def _keep(self, **changes: Any) -> None:
        self.result = replace(self.result, **changes)
        self.result.save(self.out)
