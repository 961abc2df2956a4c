"""A process that trains window by window, as its parent orders.

The program in it is a module with `main(connection, arguments)`. It receives a task, sends the event "built" when its
model is there, and from then on answers each number of steps with the event "window". None ends it. The event "failed"
carries a cause, and is the last.
"""

from __future__ import annotations

import math
from typing import Any

from tfaccel.measuring.candidate import CandidateWindow
from tfaccel.processes.fork_server import ForkServer

_OUT_OF_TIME = "was ended: it took longer than {:g} seconds to {}"


class CandidateFailed(Exception):
    """A program could not be measured; its text says why.

    Args:
        cause: why.
        child: its process.
    """

    def __init__(self, cause: str, child: TimedChild) -> None:
        super().__init__(cause)
        self.child = child


class TimedChild:
    """A process that trains, window by window.

    Args:
        server: forks it.
        program: the module of the program.
        task: what it receives first.
        name: of the process and its log.
        limit_seconds: time limit for building, and for each window.

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
        self._limit_seconds = limit_seconds
        self._child = server.start(name, program, [], {})
        self._child.send(task)

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

    def window(self, num_steps: int) -> CandidateWindow:
        """Runs a window that counts.

        Raises:
            CandidateFailed: as `build`; or if its loss is not finite, since then it computes something else, and stops.
        """
        window = self._window(num_steps, "run its steps")
        if not math.isfinite(window.loss):
            raise CandidateFailed("Its loss is not finite in later steps.", self)
        return window

    def end(self) -> None:
        """Ends the process."""
        if self._child.status is None:
            self._child.send(None)
            self._server.kill(self._child)

    def _window(self, num_steps: int, doing: str) -> CandidateWindow:
        self._child.send(num_steps)
        answer = self._answer(doing)
        self.peak_bytes = answer["peak_bytes"]
        fields = CandidateWindow.__dataclass_fields__
        self.last_window = CandidateWindow(**{name: value for name, value in answer.items() if name in fields})
        return self.last_window

    def _answer(self, doing: str) -> dict[str, Any]:
        try:
            message = self._server.message_of(self._child, self._limit_seconds)
        except TimeoutError:
            self._server.kill(self._child)
            raise CandidateFailed(f"The process {_OUT_OF_TIME.format(self._limit_seconds, doing)}.", self) from None
        if message is None:
            log = self._server.end_of_log(self._child)
            raise CandidateFailed(f"The process {self._child.how_it_ended()}. {log}"[:500], self)
        if message["event"] == "failed":
            raise CandidateFailed(message["cause"], self)
        return dict(message)
