"""A process that trains window by window, as its parent orders.

The program in it is a module with `main(connection, arguments)`. It receives a task, sends the event "built" when its
model is there, and from then on answers each number of steps with the event "window". None ends it. The event "failed"
carries a cause, and is the last.
"""

from __future__ import annotations

import contextlib
import math
import re
import signal
from typing import Any, Literal

from tfaccel.measuring.candidate import CandidateWindow
from tfaccel.processes.fork_server import ForkServer

OUT_OF_MEMORY = "Out of memory"  # how a cause begins that is a lack of memory
FailureKind = Literal["memory", "time", "loss", "other"]
_ABORTED_WITHOUT_MEMORY = re.compile(r"std::bad_alloc|Unable to allocate|Cannot allocate memory|\bOOM\b")
_END_SECONDS = 5.0
_OUT_OF_TIME = "was ended: it took longer than {:g} seconds to {}"


class CandidateFailed(Exception):
    """A program could not be measured; its text says why.

    Args:
        cause: why.
        child: its process.
        kind: "memory" if its process lacked memory, "time" if it exceeded the time limit, "loss" if its loss is not
            finite, otherwise "other".
    """

    def __init__(self, cause: str, child: TimedChild, *, kind: FailureKind = "other") -> None:
        super().__init__(cause)
        self.child = child
        self.kind = kind


class TimedChild:
    """A process that trains, window by window.

    Args:
        server: forks it.
        program: the module of the program.
        task: what it receives first.
        name: of the process and its log.
        limit_seconds: time limit for building, and for each window; it may be changed.

    Attributes:
        built: what the program said of its model, once it is built.
        peak_bytes: its peak memory so far; None if unknown.
        last_window: the newest window, whether it counted or not.
    """

    def __init__(
        self, server: ForkServer, program: str, task: dict[str, Any], *, name: str, limit_seconds: float
    ) -> None:
        self.built: dict[str, Any] = {}
        self.peak_bytes: int | None = None
        self.last_window: CandidateWindow | None = None
        self._server = server
        self._has_orders = False
        self.limit_seconds = limit_seconds
        self._child = server.start(name, program, [], {})
        self._child.send(task)

    def order_first_steps(self, num_steps: int) -> None:
        """Lets the process go on to its first steps as soon as the model is there, before anyone waits for it."""
        self._child.send(num_steps)
        self._has_orders = True

    def build(self, num_steps: int) -> CandidateWindow:
        """Waits for the model and runs the first steps, which trace and compile; returns them.

        Raises:
            CandidateFailed: if the process fails, dies or takes too long.
        """
        self.built = self._answer("build the model")
        return self._window(num_steps, "run its first steps")

    def warm_up(self, num_steps: int) -> CandidateWindow:
        """Runs a window that does not count.

        Raises:
            CandidateFailed: as `build`.
        """
        return self._window(num_steps, "run its steps")

    def probe(self, num_steps: int) -> CandidateWindow:
        """Runs a window that does not count, after those whose losses are compared.

        Raises:
            CandidateFailed: as `build`; or if its loss is not finite, since then it computes something else, and stops.
        """
        window = self._window(num_steps, "run its steps")
        if not math.isfinite(window.loss):
            raise CandidateFailed("Its loss is not finite in later steps.", self, kind="loss")
        return window

    def window(self, num_steps: int) -> CandidateWindow:
        """Runs a window that counts.

        Raises:
            CandidateFailed: as `probe`.
        """
        return self.probe(num_steps)

    def end(self) -> None:
        """Ends the process."""
        if self._child.status is None:
            self._child.send(None)
            self._server.kill(self._child)
            with contextlib.suppress(TimeoutError):  # until its memory is free
                while self._server.get_message(self._child, _END_SECONDS) is not None:
                    pass

    def _window(self, num_steps: int, doing: str) -> CandidateWindow:
        if not self._has_orders:
            self._child.send(num_steps)
        self._has_orders = False
        answer = self._answer(doing)
        self.peak_bytes = answer["peak_bytes"]
        fields = CandidateWindow.__dataclass_fields__
        self.last_window = CandidateWindow(**{name: value for name, value in answer.items() if name in fields})
        return self.last_window

    def _answer(self, doing: str) -> dict[str, Any]:
        try:
            message = self._server.get_message(self._child, self.limit_seconds)
        except TimeoutError:
            self._server.kill(self._child)
            cause = f"The process {_OUT_OF_TIME.format(self.limit_seconds, doing)}."
            raise CandidateFailed(cause, self, kind="time") from None
        if message is None:
            log = self._server.end_of_log(self._child)
            kind = _kind_of_death(self._child.status, log)
            raise CandidateFailed(f"The process {self._child.how_it_ended()}. {log}"[:500], self, kind=kind)
        if message["event"] == "failed":
            cause = message["cause"]
            raise CandidateFailed(cause, self, kind="memory" if cause.startswith(OUT_OF_MEMORY) else "other")
        return dict(message)


def _kind_of_death(status: int | None, log: str) -> FailureKind:
    """What a process lacked that ended without a word: the system kills one that takes too much memory.

    Example:
        >>> _kind_of_death(-9, ""), _kind_of_death(-6, "terminate called: std::bad_alloc"), _kind_of_death(-11, "")
        ('memory', 'memory', 'other')
    """
    aborted = status == -signal.SIGABRT and _ABORTED_WITHOUT_MEMORY.search(log) is not None
    return "memory" if status == -signal.SIGKILL or aborted else "other"
