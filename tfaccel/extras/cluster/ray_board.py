"""What the workers of a run on Ray and its driver tell each other; an actor of Ray."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from tfaccel.processes.exit_status import DONE, can_be_retried


@dataclass(frozen=True)
class WorkerEnd:
    """How a worker's command ended.

    Args:
        attempt: 1 for the first.
        index: of the worker.
        status: exit status; negative for a signal.
        cause: in a sentence.
        last_words: the end of its output.
    """

    attempt: int
    index: int
    status: int
    cause: str = ""
    last_words: str = ""

    @property
    def is_final(self) -> bool:
        """Whether starting again would not help."""
        return self.status != DONE and not can_be_retried(self.status)


@dataclass(frozen=True)
class News:
    """What a worker must know while its command runs.

    Args:
        signal: the signal that the driver received; None for none.
        is_over: whether another worker of this attempt has failed for good.
        num_reports: how often the workers of this attempt must have reported to Ray by now.
        chief_has_ended: whether the command of worker 0 has ended, so that `num_reports` stays as it is.
    """

    signal: int | None = None
    is_over: bool = False
    num_reports: int = 0
    chief_has_ended: bool = False


class Board:
    """Collects attempts, output and ends of all workers.

    Example:
        >>> board = Board()
        >>> board.begin("host1:1,host2:1"), board.begin("host1:1,host2:1"), board.begin("host1:2,host2:2")
        (1, 1, 2)
        >>> board.end(WorkerEnd(attempt=2, index=1, status=1))
        >>> board.exchange(0, 2, ["step 1"], num_reports=1), board.lines()
        (News(signal=None, is_over=True, num_reports=1, chief_has_ended=False), [(0, 'step 1')])
    """

    def __init__(self) -> None:
        self._clusters: list[str] = []
        self._lines: list[tuple[int, str]] = []
        self._ends: list[WorkerEnd] = []
        self._num_reports: dict[int, int] = {}
        self._signal: int | None = None
        self._heard_at = time.monotonic()

    def begin(self, cluster: str) -> int:
        """The number of a worker's attempt: Ray gives the workers of each attempt new addresses."""
        self._heard_at = time.monotonic()
        if cluster not in self._clusters:
            self._clusters.append(cluster)
        return self._clusters.index(cluster) + 1

    def exchange(self, index: int, attempt: int, lines: Sequence[str], num_reports: int = 0) -> News:
        """Takes a worker's output; returns what it must know.

        Args:
            index, attempt: of the worker.
            lines: the output since the last call.
            num_reports: how often it has reported to Ray, or is about to; the others follow worker 0.
        """
        self._heard_at = time.monotonic()
        self._lines += [(index, line) for line in lines]
        self._num_reports[attempt] = max(num_reports, self._num_reports.get(attempt, 0))
        ends = [end for end in self._ends if end.attempt == attempt]
        return News(
            self._signal,
            is_over=any(end.is_final for end in ends),
            num_reports=self._num_reports[attempt],
            chief_has_ended=any(end.index == 0 for end in ends),
        )

    def end(self, end: WorkerEnd) -> None:
        """Takes note of the end of a worker's command."""
        self._heard_at = time.monotonic()
        self._ends.append(end)

    def tell(self, number: int) -> None:
        """Passes a signal on to all workers."""
        self._signal = number

    def lines(self) -> list[tuple[int, str]]:
        """The output since the last call, each line with the index of its worker."""
        lines, self._lines = self._lines, []
        return lines

    def num_workers(self) -> list[int]:
        """The number of workers of each attempt so far."""
        return [len(cluster.split(",")) for cluster in self._clusters]

    def ends(self) -> list[WorkerEnd]:
        """The ends of all commands so far."""
        return self._ends

    def silent_seconds(self) -> float:
        """How long no worker has been heard of."""
        return time.monotonic() - self._heard_at
