"""A row of the matrix of faults: what is done, what is promised, and how one trial of it goes."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfaccel.benchmarks.fault_launch import Launch, launch
from tfaccel.errors import TfaccelError


class NotPossibleHere(Exception):
    """Signals that this machine does not allow a fault to be injected; the message says what it lacks."""


@dataclass(frozen=True)
class Trial:
    """One fault that was injected.

    Attributes:
        right: whether all went as promised.
        notice_seconds: until it was noticed; None if that is not the question.
        said: the line that names the cause and what to do, or what went wrong.
        ratio: time of a run that was not disturbed / time of this one; None if it did not run to its end.
    """

    right: bool
    said: str
    notice_seconds: float | None = None
    ratio: float | None = None


@dataclass
class Lab:
    """What trials share.

    Attributes:
        chance: draws moments and victims; the same in each run of the benchmark.
        undisturbed: runs that were not disturbed, by number of workers and options.
    """

    chance: random.Random = field(default_factory=lambda: random.Random(0))
    undisturbed: dict[str, Launch] = field(default_factory=dict)

    def usual(self, num_workers: int, options: dict[str, Any]) -> Launch:
        """A run that is not disturbed, once for each number of workers and options; pauses do not count.

        Raises:
            TfaccelError: if it fails.
        """
        options = {name: value for name, value in options.items() if name != "fault"}
        key = f"{num_workers} {sorted(options.items())}"
        if key not in self.undisturbed:
            with tempfile.TemporaryDirectory(prefix="tfaccel-") as name:
                found = launch(Path(name), num_workers, options)
            if found.status != 0 or not found.once:
                raise TfaccelError(
                    f"A run that was not disturbed ended with status {found.status}: {found.said[-1]} {found.output}"
                )
            self.undisturbed[key] = found
        return self.undisturbed[key]


@dataclass(frozen=True)
class FaultRow:
    """A row of the matrix.

    Attributes:
        fault: what is done, in words.
        promise: what must come of it.
        trial: does it once, in an empty folder.
        num_trials: how often; None for the number of repetitions that the user asks for.
        notice_seconds: within how long it must be noticed; None if that is not the question.
    """

    fault: str
    promise: str
    trial: Callable[[Lab, Path], Trial]
    num_trials: int | None = None
    notice_seconds: float | None = None
