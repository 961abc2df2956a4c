"""One plan that is being measured in a process of its own."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import Any

from tfaccel.costs.model_cost import StepCost
from tfaccel.measuring.candidate import Candidate, CandidateWindow
from tfaccel.measuring.timed_child import CandidateFailed, TimedChild
from tfaccel.planning.plan import Plan
from tfaccel.processes.fork_server import ForkServer

PROGRAM = "tfaccel.measuring.candidate_program"


class CandidateChild(TimedChild):
    """A process that trains with one plan, window by window.

    Args:
        server: forks it.
        task: what `candidate_program` takes, except the plan.
        plan: the plan.
        axis: see `Candidate`.
        limit_seconds: time limit for building, and for each window.
        marks_layers: mark the layers' operations, for `layer_seconds`.

    Attributes:
        candidate: what was measured so far.
        depends_on_micro_batches: what micro-batches change, if its plan has some; empty if nothing.
        start_seconds: how long `build` waited for the process, and for the server to load TensorFlow if it is new.
    """

    def __init__(
        self,
        server: ForkServer,
        task: dict[str, Any],
        plan: Plan,
        axis: str,
        *,
        limit_seconds: float,
        marks_layers: bool = False,
    ) -> None:
        self.candidate = Candidate(plan=plan, axis=axis)
        self.depends_on_micro_batches = ""
        self.start_seconds = 0.0
        task = {**task, "plan": plan.to_json(), "marks_layers": marks_layers}
        super().__init__(server, PROGRAM, task, name=f"candidate-{axis}", limit_seconds=limit_seconds)

    def build(self, num_steps: int) -> CandidateWindow:
        """See `TimedChild`."""
        began = time.monotonic()
        first = super().build(num_steps)
        self.start_seconds = max(0.0, time.monotonic() - began - self.built["seconds"] - first.seconds)
        self.depends_on_micro_batches = self.built["depends_on_micro_batches"]
        self.candidate = replace(self.candidate, build_seconds=self.built["seconds"], first_step_seconds=first.seconds)
        return first

    def window(self, num_steps: int) -> CandidateWindow:
        """See `TimedChild`; the candidate keeps the window."""
        window = super().window(num_steps)
        self.candidate = replace(self.candidate, windows=(*self.candidate.windows, window))
        return window

    @property
    def share_of_waiting(self) -> float:
        """The fraction of its time that it waited for its input; 1 on other devices than CPUs, or if unknown."""
        window = self.last_window
        if window is None or window.waited_seconds is None or not self.candidate.plan.devices[0].startswith("CPU"):
            return 1.0
        return window.waited_seconds / window.seconds

    def step_cost(self) -> StepCost:
        """What one of its training steps computes, counted from the graph in its process.

        Raises:
            CandidateFailed: as `build`; or if it cannot be counted, since a shape or a loop depends on the data.
        """
        self._child.send("cost")
        answer = self._answer("count the operations of a step")
        if answer["uncounted"]:
            raise CandidateFailed(answer["uncounted"], self)
        return StepCost.from_json(answer["cost"])

    def layer_seconds(self) -> dict[str, float]:
        """The time of a step by layer, as a profiler sees it; see `TimedSteps.layer_seconds`.

        Raises:
            CandidateFailed: as `build`.
        """
        self._child.send("layer seconds")
        return dict(self._answer("trace some steps")["seconds"])

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

    def _window(self, num_steps: int, doing: str) -> CandidateWindow:
        window = super()._window(num_steps, doing)
        self.candidate = replace(self.candidate, peak_bytes=self.peak_bytes)
        return window
