"""One plan that is being measured in a process of its own."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import Any

from tfaccel.costs.model_cost import StepCost
from tfaccel.measuring.candidate import Candidate, CandidateWindow
from tfaccel.planning.plan import Plan
from tfaccel.processes.fork_server import ForkServer

PROGRAM = "tfaccel.measuring.candidate_program"
_OUT_OF_TIME = "was ended: it took longer than {:g} seconds to {}"


class CandidateFailed(Exception):
    """A candidate could not be measured; `args[0]` says why."""


class CandidateChild:
    """A process that trains with one plan, window by window.

    Args:
        server: forks it.
        task: what `candidate_program` takes, except the plan.
        plan: the plan.
        axis: see `Candidate`.
        limit_seconds: time limit for building, and for each window.

    Attributes:
        candidate: what was measured so far.
        batch_norm_layers: names of the model's layers whose statistics depend on the size of a micro-batch.
    """

    def __init__(
        self, server: ForkServer, task: dict[str, Any], plan: Plan, axis: str, *, limit_seconds: float
    ) -> None:
        self.candidate = Candidate(plan=plan, axis=axis)
        self.batch_norm_layers: list[str] = []
        self._server = server
        self._limit_seconds = limit_seconds
        self._child = server.start(f"candidate-{axis}", PROGRAM, [], {})
        self._child.send({**task, "plan": plan.to_json()})

    def build(self, num_steps: int) -> CandidateWindow:
        """Waits for the model and runs the first steps, which trace and compile; returns them.

        Raises:
            CandidateFailed: if the process fails, dies or takes too long.
        """
        built = self._answer("build the model")
        self.batch_norm_layers = built["batch_norm_layers"]
        self.candidate = replace(self.candidate, build_seconds=built["seconds"])
        first = self._window(num_steps, "run its first steps")
        self.candidate = replace(self.candidate, first_step_seconds=first.seconds)
        return first

    def warm_up(self, num_steps: int) -> CandidateWindow:
        """Runs a window that does not count.

        Raises:
            CandidateFailed: as `build`.
        """
        return self._window(num_steps, "run its steps")

    def window(self, num_steps: int) -> CandidateWindow:
        """Runs a window that counts.

        Raises:
            CandidateFailed: as `build`.
        """
        window = self._window(num_steps, "run its steps")
        self.candidate = replace(self.candidate, windows=(*self.candidate.windows, window))
        return window

    def step_cost(self) -> StepCost:
        """What one of its training steps computes, counted from the graph in its process.

        Raises:
            CandidateFailed: as `build`; or if it cannot be counted, since a shape or a loop depends on the data.
        """
        self._child.send("cost")
        answer = self._answer("count the operations of a step")
        if answer["uncounted"]:
            raise CandidateFailed(answer["uncounted"])
        return StepCost.from_json(answer["cost"])

    def counted(self) -> Candidate:
        """Notes how many operations a step computes, unless they cannot be counted; returns the candidate."""
        with contextlib.suppress(CandidateFailed):
            self.candidate = replace(self.candidate, step_operations=self.step_cost().matrix_flops)
        return self.candidate

    def fail(self, cause: str) -> Candidate:
        """Notes why it could not be measured, and ends the process."""
        self.candidate = replace(self.candidate, failure=cause)
        self.end()
        return self.candidate

    def end(self) -> None:
        """Ends the process."""
        if self._child.status is None:
            self._child.send(None)
            self._server.kill(self._child)

    def _window(self, num_steps: int, doing: str) -> CandidateWindow:
        self._child.send(num_steps)
        answer = self._answer(doing)
        self.candidate = replace(self.candidate, peak_bytes=answer["peak_bytes"])
        return CandidateWindow(**{name: answer[name] for name in CandidateWindow.__dataclass_fields__})

    def _answer(self, doing: str) -> dict[str, Any]:
        deadline = time.monotonic() + self._limit_seconds
        while (left := deadline - time.monotonic()) > 0:
            child, message = self._server.next_message(left)
            if child is not self._child:
                continue  # one that was ended before
            if message is None:
                raise CandidateFailed(
                    f"The process {self._child.how_it_ended()}. {self._server.end_of_log(child)}"[:500]
                )
            if message["event"] == "failed":
                raise CandidateFailed(message["cause"])
            return dict(message)
        self._server.kill(self._child)
        raise CandidateFailed(f"The process {_OUT_OF_TIME.format(self._limit_seconds, doing)}.")
