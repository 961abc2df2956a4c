"""Programs in processes of their own that train in turn, window by window."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from tfaccel.measuring.candidate_child import CandidateFailed, TimedChild
from tfaccel.measuring.report import relative_spread
from tfaccel.training.run.performance import TimedWindow

_MIN_STEPS = 2
_MAX_WARM_UPS = 3
_LONG_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The windows of one program.

    Attributes:
        global_batch_size: examples per step.
        windows: in the order in which they ran; all programs of a race have equally many, except for failed ones.
        failure: why it could not be measured; empty if it could.
    """

    global_batch_size: int
    windows: tuple[TimedWindow, ...] = ()
    failure: str = ""

    @property
    def rates(self) -> list[float]:
        """Examples per second, window by window."""
        return [one.num_steps * self.global_batch_size / one.seconds for one in self.windows]

    @property
    def rate(self) -> float:
        """Their median; 0 for a program that failed."""
        return 0.0 if self.failure or not self.windows else statistics.median(self.rates)

    @property
    def spread(self) -> float:
        """The interquartile range of the rates / their median."""
        return relative_spread(self.rates)

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The timing from its `to_json` data."""
        return cls(**{**data, "windows": tuple(TimedWindow(**window) for window in data["windows"])})


def race(
    programs: Mapping[str, TimedChild],
    *,
    global_batch_size: int,
    num_rounds: int,
    window_seconds: float,
    progress: Callable[[str], None],
    min_speed: float = 0.0,
) -> dict[str, Timing]:
    """Runs one window of each program after the other, round by round, so that a slowdown of the machine affects all.

    Each round begins with another program. A program that fails takes no further part.

    Args:
        programs: name -> a process that has been built.
        global_batch_size: examples per step, the same in all programs.
        num_rounds: windows of each program.
        window_seconds: about how long a window takes.
        progress: called with a line before each round.
        min_speed: if in first windows of a second or more all programs but the fastest have less than this fraction of
            its speed, there are no rounds, and these windows are the result.
    """
    num_steps: dict[str, int] = {}
    first_windows: dict[str, TimedWindow] = {}
    windows: dict[str, list[TimedWindow]] = {name: [] for name in programs}
    failures: dict[str, str] = {}

    def ran(name: str, count: int) -> TimedWindow | None:
        try:
            return programs[name].window(count)
        except CandidateFailed as error:
            failures[name] = str(error)
            return None

    for name in programs:
        progress(f"warming up {name}")
        if (probe := ran(name, _MIN_STEPS)) is not None:
            first_windows[name] = probe
    if _are_slow_but_one(first_windows.values(), min_speed):
        windows |= {name: [first] for name, first in first_windows.items()}
        num_rounds = 0
    else:
        for name, first in first_windows.items():
            last: TimedWindow | None = first
            for _ in range(_MAX_WARM_UPS):
                if last is None:
                    break
                num_steps[name] = max(_MIN_STEPS, round(window_seconds * last.num_steps / last.seconds))
                last = ran(name, num_steps[name])
                if last is not None and last.seconds > window_seconds / 2:  # else the one before still compiled
                    break
    names = list(programs)
    for turn in range(num_rounds):
        progress(f"round {turn + 1} of {num_rounds}")
        start = turn % len(names)
        for name in names[start:] + names[:start]:
            window = None if name in failures else ran(name, num_steps[name])
            if window is not None:
                windows[name].append(window)
    return {
        name: Timing(global_batch_size=global_batch_size, windows=tuple(windows[name]), failure=failures.get(name, ""))
        for name in names
    }


def _are_slow_but_one(windows: Collection[TimedWindow], min_speed: float) -> bool:
    """Whether all but the fastest have less than `min_speed` of its speed, in long windows of equally many steps."""
    fastest = min((one.seconds for one in windows), default=0.0)
    slow = [one for one in windows if one.seconds > _LONG_SECONDS and one.seconds * min_speed > fastest]
    return len(slow) == len(windows) - 1 > 0


def ratios(of: Timing, to: Timing) -> tuple[float, ...]:
    """Throughput of one program / throughput of another, round by round.

    Example:
        >>> windows = [TimedWindow(seconds=seconds, num_steps=4, loss=0.0) for seconds in (1, 2)]
        >>> fast, slow = (Timing(global_batch_size=8, windows=(window,)) for window in windows)
        >>> ratios(fast, slow)
        (2.0,)
    """
    return tuple(one / other for one, other in zip(of.rates, to.rates, strict=True))
