"""The nouns `WorkerTimes` and `Straggler`: what each worker's time went into, and which worker the others wait for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from statistics import median
from typing import Any, Self

from tfaccel.short_repr import short_repr

SLOW_FROM = 1.25  # times as long as the other workers
MIN_SHARE = 0.1  # of the step time that the others wait

_PHASES = {"input": "waiting for its input", "compute": "computing"}
_HELP = {
    "input": "look at its disk and network, and at what else reads or uses its CPU cores",
    "compute": "look at what else runs on it, its cores, clock and cooling",
}


@short_repr
@dataclass(frozen=True)
class WorkerTimes:
    """Seconds of one worker per batch.

    Args:
        input: waiting for the next batch.
        compute: computing, with all else that is not the other two.
        reduce: in reductions over the workers, mostly waiting for slower ones.

    Example:
        >>> WorkerTimes.from_json(WorkerTimes(input=0.01, compute=0.04, reduce=0.05).to_json()).own
        0.05
    """

    input: float
    compute: float
    reduce: float

    @property
    def own(self) -> float:
        """The time that does not depend on other workers."""
        return self.input + self.compute

    def to_json(self) -> dict[str, float]:
        """The fields as JSON values, in microseconds' precision."""
        return {name: round(value, 6) for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The times from their `to_json` data."""
        return cls(**{one.name: float(data[one.name]) for one in fields(cls)})


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A worker that the others wait for.

    Args:
        worker: its index.
        phase: "input" or "compute": where it loses most time against the others.
        factor: its own time per batch, divided by that of the other workers (their median).
        seconds, others_seconds: its time per batch in that phase, and the others' median.
    """

    worker: int
    phase: str
    factor: float
    seconds: float
    others_seconds: float

    @property
    def text(self) -> str:
        """The finding with its numbers, and what to look at."""
        return (
            f"worker {self.worker} takes {self.factor:.1f} times as long as the others, which wait for it: it spends "
            f"{1000 * self.seconds:.1f} ms per batch {_PHASES[self.phase]}, the others "
            f"{1000 * self.others_seconds:.1f} ms; {_HELP[self.phase]}"
        )

    def to_json(self) -> dict[str, Any]:
        """The fields and the text as JSON values."""
        return {**asdict(self), "text": self.text}


def straggler(workers: Sequence[WorkerTimes]) -> Straggler | None:
    """The worker that is clearly slower than the others; None if there is none, or only one worker.

    Example:
        >>> fast = WorkerTimes(input=0.0, compute=0.05, reduce=0.04)
        >>> slow = WorkerTimes(input=0.04, compute=0.05, reduce=0.0)
        >>> print(straggler([fast, slow]).text[:76])
        worker 1 takes 1.8 times as long as the others, which wait for it: it spends
        >>> straggler([fast, fast]) is None
        True
    """
    if len(workers) < 2:
        return None
    index = max(range(len(workers)), key=lambda number: workers[number].own)
    slow, others = workers[index], [one for number, one in enumerate(workers) if number != index]
    own = median(one.own for one in others)
    whole = slow.own + slow.reduce
    if slow.own < SLOW_FROM * own or slow.own - own < MIN_SHARE * whole:
        return None
    of_others = {phase: median(getattr(one, phase) for one in others) for phase in _PHASES}
    phase = max(_PHASES, key=lambda name: getattr(slow, name) - of_others[name])
    return Straggler(
        worker=index,
        phase=phase,
        factor=slow.own / max(own, 1e-9),
        seconds=getattr(slow, phase),
        others_seconds=of_others[phase],
    )
