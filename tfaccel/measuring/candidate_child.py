"""A plan that is measured in a process of its own, and the servers from which such processes are forked."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

from tfaccel.costs.model_cost import StepCost
from tfaccel.errors import PlanError
from tfaccel.measuring.report import Candidate, relative_spread
from tfaccel.measuring.workload_task import OUT_OF_MEMORY
from tfaccel.planning.plan import Plan
from tfaccel.planning.plan_environment import get_environment, with_flags_of
from tfaccel.processes.fork_server import ForkServer
from tfaccel.training.run.performance import TimedWindow

FailureKind = Literal["memory", "time", "loss", "other"]
_ABORTED_WITHOUT_MEMORY = re.compile(r"std::bad_alloc|Unable to allocate|Cannot allocate memory|\bOOM\b")
_END_SECONDS = 5.0
_LONG_STEP_SECONDS = 0.01
PROGRAM = "tfaccel.measuring.candidate_program"
# Keras imports them for plots and wrappers, where they are installed: a fifth of the time of `import tensorflow`.
_LEFT_OUT = ("matplotlib", "sklearn", "IPython")
_WINDOW_SECONDS, _NUM_WINDOWS, _FIRST_STEPS = 0.3, 7, 4  # of a plan that is measured by itself
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
        built: what the program said of its model, once it is built, such as "depends_on_micro_batches": what changes
            with them, if its plan has some.
        peak_bytes: its peak memory so far; None if unknown.
        last_window: the newest window, whether it counted or not.
    """

    def __init__(
        self, server: ForkServer, program: str, task: dict[str, Any], *, name: str, limit_seconds: float
    ) -> None:
        self.built: dict[str, Any] = {}
        self.peak_bytes: int | None = None
        self.last_window: TimedWindow | None = None
        self._server = server
        self._has_orders = False
        self.limit_seconds = limit_seconds
        self._child = server.start(name, program, [], {})
        self._child.send(task)

    def order_first_steps(self, num_steps: int) -> None:
        """Lets the process go on to its first steps as soon as the model is there, before anyone waits for it."""
        self._child.send(num_steps)
        self._has_orders = True

    def build(self, num_steps: int) -> TimedWindow:
        """Waits for the model and runs the first steps, which trace and compile; returns them.

        Raises:
            CandidateFailed: if the process fails, dies or takes too long.
        """
        self.built = self._answer("build the model")
        return self._window(num_steps, "run its first steps")

    def warm_up(self, num_steps: int) -> TimedWindow:
        """Runs a window that does not count.

        Raises:
            CandidateFailed: as `build`.
        """
        return self._window(num_steps, "run its steps")

    def probe(self, num_steps: int) -> TimedWindow:
        """Runs a window that does not count, after those whose losses are compared.

        Raises:
            CandidateFailed: as `build`; or if its loss is not finite, since then it computes something else, and stops.
        """
        window = self._window(num_steps, "run its steps")
        if not math.isfinite(window.loss):
            raise CandidateFailed("Its loss is not finite in later steps.", self, kind="loss")
        return window

    def window(self, num_steps: int) -> TimedWindow:
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

    def _window(self, num_steps: int, doing: str) -> TimedWindow:
        if not self._has_orders:
            self._child.send(num_steps)
        self._has_orders = False
        answer = self._answer(doing)
        self.peak_bytes = answer["peak_bytes"]
        fields = TimedWindow.__dataclass_fields__
        self.last_window = TimedWindow(**{name: value for name, value in answer.items() if name in fields})
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
        self._first: TimedWindow | None = None
        self.start_seconds = 0.0
        self._is_counting = False
        task = {**task, "plan": plan.to_json(), "marks_layers": marks_layers}
        super().__init__(server, PROGRAM, task, name=f"candidate-{axis}", limit_seconds=limit_seconds)

    def build(self, num_steps: int) -> TimedWindow:
        """See `TimedChild`; returns the first steps again if they have been run."""
        if self._first is not None:
            return self._first
        began = time.monotonic()
        self._first = first = super().build(num_steps)
        self.start_seconds = max(0.0, time.monotonic() - began - self.built["seconds"] - first.seconds)
        self.candidate = replace(self.candidate, build_seconds=self.built["seconds"], first_step_seconds=first.seconds)
        return first

    def window(self, num_steps: int) -> TimedWindow:
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
        if not self._is_counting:
            self._child.send("cost")
        self._is_counting = False
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

    def counted_beside(self) -> int | None:
        """As `counted`, but of a step of 10 ms or more only before the next window: until then, other plans are built.

        Returns:
            The number of operations, if it is known already.
        """
        window = self.last_window
        if window is None or window.seconds / window.num_steps < _LONG_STEP_SECONDS:
            return self.counted().step_operations
        self._child.send("cost")
        self._is_counting = True
        return None

    def fail(self, cause: str) -> Candidate:
        """Notes why it could not be measured, and ends the process."""
        self.candidate = replace(self.candidate, failure=cause)
        self.end()
        return self.candidate

    def _window(self, num_steps: int, doing: str) -> TimedWindow:
        if self._is_counting:
            self.counted()
        window = super()._window(num_steps, doing)
        self.candidate = replace(self.candidate, peak_bytes=self.peak_bytes)
        return window


class CandidateServers:
    """Fork servers, each started when a plan first needs it; a context manager that ends them with their processes.

    Attributes:
        folder: a temporary one, for their logs, and for what processes read.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tfaccel-"))
        self._servers: dict[tuple[tuple[str, str], ...], ForkServer] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for server in self._servers.values():
            server.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def has(self, plan: Plan) -> bool:
        """Whether there is a server for a plan's environment."""
        return _get_key(plan) in self._servers

    def of(self, plan: Plan) -> ForkServer:
        """The server for a plan's environment. A new one loads TensorFlow in the background."""
        variables, key = with_flags_of(os.environ, get_environment(plan)), _get_key(plan)
        if key not in self._servers:
            folder = self.folder / f"server_{len(self._servers)}"
            folder.mkdir()
            environment = {"TF_CONFIG": None, "KERAS_BACKEND": "tensorflow", **variables}
            self._servers[key] = ForkServer([PROGRAM], folder=folder, environment=environment, left_out=_LEFT_OUT)
        return self._servers[key]


def _get_key(plan: Plan) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(get_environment(plan).items()))


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """The time of a training step.

    Args:
        seconds: median over the windows.
        spread: interquartile range of the windows / median.
        start_seconds: time to load TensorFlow's model and data, to trace and to compile: all before full speed.
        batch_size: examples per step.
    """

    seconds: float
    spread: float
    start_seconds: float
    batch_size: int


def measured_steps(task: Mapping[str, Any], plans: Mapping[str, Plan], *, limit_seconds: float) -> dict[str, StepTime]:
    """Measures plans of one workload in turn, window by window, each in a process of its own.

    Args:
        task: see `tfaccel.measuring.workload_task.make_task`.
        plans: name -> plan.
        limit_seconds: time limit for building a model, and for each window.

    Returns:
        name -> time.

    Raises:
        PlanError: if a plan could not be measured; it says why.
    """
    children: dict[str, CandidateChild] = {}
    lengths: dict[str, int] = {}
    name = ""
    with CandidateServers() as servers, contextlib.ExitStack() as stack:
        try:
            for name, plan in plans.items():
                child = CandidateChild(servers.of(plan), dict(task), plan, name, limit_seconds=limit_seconds)
                children[name] = child
                stack.callback(child.end)
                child.build(_FIRST_STEPS)
                warm = child.warm_up(_FIRST_STEPS)
                lengths[name] = max(1, math.ceil(_WINDOW_SECONDS * warm.num_steps / warm.seconds))
                child.warm_up(lengths[name])
            for _ in range(_NUM_WINDOWS):
                for name, child in children.items():
                    child.window(lengths[name])
            return {name: _get_time(child) for name, child in children.items()}
        except CandidateFailed as error:
            raise PlanError(f"The training step could not be measured ({name}). {error}") from error


def _get_time(child: CandidateChild) -> StepTime:
    found = child.candidate
    times = [window.seconds / window.num_steps for window in found.windows]
    seconds = statistics.median(times)
    first = (found.first_step_seconds or 0.0) - _FIRST_STEPS * seconds
    return StepTime(
        seconds=seconds,
        spread=relative_spread(times),
        start_seconds=(found.build_seconds or 0.0) + max(0.0, first),
        batch_size=found.plan.global_batch_size,
    )
