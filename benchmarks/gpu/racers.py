"""`TaskRacers`: the processes that train a task of the GPU suite in turn. One that fails is a result with its cause."""

from __future__ import annotations

import contextlib
import importlib.util
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tfaccel.benchmarks.gpu.step import StepRun
from tfaccel.benchmarks.gpu.tasks import WORKLOAD, task_named, workload
from tfaccel.benchmarks.report import NOISY_SPREAD
from tfaccel.benchmarks.timed_race import Timing, race, ratios
from tfaccel.measuring.candidate_child import CandidateChild, CandidateFailed, CandidateServers, TimedChild
from tfaccel.measuring.duel import CHECKED_STEPS
from tfaccel.measuring.workload_task import make_task
from tfaccel.planning.candidates import default_plan
from tfaccel.planning.plan import Plan
from tfaccel.processes.fork_server import ForkServer

CHOSEN, RULES, MODEL_FIT = "chosen plan", "plan of the rules", "Model.fit"
TORCH = "PyTorch, compiled, bfloat16"
_NUM_ROUNDS, _WINDOW_SECONDS = 7, 1.5
_REHEARSED_ROUNDS, _REHEARSED_SECONDS = 2, 0.05
_MIN_BUILD_SECONDS = 5.0
_PACKAGE = "tfaccel.benchmarks.gpu"


class TaskRacers:
    """Starts programs that train a task, and lets them take turns; as a context manager, ends them all.

    Programs load their libraries and compile side by side, which takes a third of the time; what one measures to choose
    kernels may be disturbed by the others.

    Args:
        run: the step that they belong to; timings and failures are recorded there.
        task: the task's name.
        options: of its workload, such as `folder`.
    """

    def __init__(self, run: StepRun, task: str, **options: Any) -> None:
        self._run = run
        self._options = {"task": task, "is_tiny": run.is_rehearsal, **options}
        self._task = task_named(task, is_tiny=run.is_rehearsal)
        self._stack = contextlib.ExitStack()
        self._starting: dict[str, TimedChild] = {}
        self._programs: dict[str, TimedChild] = {}
        self.failures: dict[str, str] = {}
        self.timings: dict[str, Timing] = {}
        self.build_seconds: dict[str, float] = {}

    def __enter__(self) -> Self:
        self._servers = self._stack.enter_context(CandidateServers())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def rules_plan(self, **fixed: Any) -> Plan:
        """The plan of the rules for one device, with these fields."""
        fields = {**self._run.one_device, **fixed}
        return default_plan(self._run.hardware, workload(**self._options), **fields)

    def chosen_plan(self) -> Plan:
        """The plan that the step `TASK_choice` has found; the rules' plan, with a note, if it has not run."""
        name = f"{self._task.name}_choice"
        found = self._run.get_results(name).get("plan")
        if found is None:
            self._run.note(f"{name} has no result: the plan of the rules is used instead")
        return self.rules_plan() if found is None else Plan.from_json(found)

    def add_plan(self, name: str, plan: Plan, **options: Any) -> None:
        """Starts a process that trains with a plan. `options` are of the workload."""
        origin = make_task(WORKLOAD, {**self._options, **options})
        limit = self._run.seconds_left
        self._start(name, CandidateChild(self._servers.of(plan), origin, plan, "gpu", limit_seconds=limit))

    def add_keras(self, name: str = MODEL_FIT, *, mirrored: tuple[str, ...] = ()) -> None:
        """Starts `Model.fit` with its defaults; under a MirroredStrategy if devices are given."""
        self._start(name, self._peer("keras_program", mirrored=mirrored))

    def add_torch(self) -> None:
        """Starts PyTorch, compiled, with bfloat16 autocast; leaves a note instead if it is not installed."""
        if importlib.util.find_spec("torch") is None:
            self._run.note("PyTorch is not installed, so it is not compared with: pip install torch==2.13.0")
            return
        if self._run.is_rehearsal:
            self._run.note("PyTorch is not compiled in a rehearsal: that needs a compiler and takes a minute")
        torch = self._peer("torch_program", compiled=not self._run.is_rehearsal)
        self._start(TORCH, torch)

    def _peer(self, program: str, **order: Any) -> _Peer:
        order |= {"task": self._task.name, "is_tiny": self._run.is_rehearsal, "folder": self._options.get("folder", "")}
        return _Peer(self._servers.folder, f"{_PACKAGE}.{program}", order, limit_seconds=self._run.seconds_left)

    def _start(self, name: str, child: TimedChild) -> None:
        child.order_first_steps(CHECKED_STEPS)
        self._stack.callback(child.end)
        self._starting[name] = child

    def build(self, *, reserved_seconds: float = 0.0) -> None:
        """Waits until the programs that were added have run their first steps; one that fails leaves a note.

        Args:
            reserved_seconds: of the step's time, to be left over.
        """
        for name, child in self._starting.items():
            self._run.progress(f"building {name}")
            started = time.perf_counter()
            child.limit_seconds = max(_MIN_BUILD_SECONDS, self._run.seconds_left - reserved_seconds)
            with self._noted(name, child):
                child.build(CHECKED_STEPS)
                self._check_size(name, child)
                self._programs[name] = child
                self.build_seconds[name] = time.perf_counter() - started
        self._starting.clear()
        self._run.record("build_seconds", self.build_seconds)

    def built(self, name: str) -> TimedChild | None:
        """The process of this name once it has run its first steps; None if it has failed."""
        self.build()
        return self._programs.get(name)

    @contextlib.contextmanager
    def _noted(self, name: str, child: TimedChild) -> Iterator[None]:
        """Within the block, a program that fails is ended, with a note."""
        try:
            yield
        except CandidateFailed as error:
            child.end()
            self._programs.pop(name, None)
            self.failures[name] = str(error)
            self._run.note(f"{name} could not be measured: {error}")

    def _check_size(self, name: str, child: TimedChild) -> None:
        """Raises CandidateFailed for a model with another number of parameters: it would not be comparable."""
        other = next(iter(self._programs.items()), None)
        if other is not None and other[1].built["num_parameters"] != child.built["num_parameters"]:
            counts = f"{child.built['num_parameters']:,} and {other[1].built['num_parameters']:,}"
            raise CandidateFailed(f"Its model differs from that of {other[0]}: {counts} parameters.", child)

    def warm_up(self, num_steps: int) -> None:
        """Lets each program run so many steps that do not count; one that fails takes no further part."""
        self.build()
        for name, child in list(self._programs.items()):
            self._run.progress(f"warming up {name}, {num_steps} steps")
            with self._noted(name, child):
                child.warm_up(num_steps)

    def leave(self, name: str) -> None:
        """Ends a program, whose memory is then free; its timing is kept."""
        child = self._programs.pop(name, None)
        if child is not None:
            child.end()

    def race(self, *, num_rounds: int = _NUM_ROUNDS) -> Mapping[str, Timing]:
        """Lets all programs take turns, and records their timings, beside those of programs that have left."""
        small = self._run.is_rehearsal
        self.build(reserved_seconds=0.0 if small else 2.0 * num_rounds * _WINDOW_SECONDS * len(self._starting))
        found = race(
            self._programs,
            global_batch_size=self._task.size.global_batch_size,
            num_rounds=_REHEARSED_ROUNDS if small else num_rounds,
            window_seconds=_REHEARSED_SECONDS if small else _WINDOW_SECONDS,
            progress=self._run.progress,
        )
        self.timings |= found
        self._run.record("timings", {name: timing.to_json() for name, timing in self.timings.items()})
        self._run.record("examples_per_second", {name: timing.rate for name, timing in self.timings.items()})
        for name, timing in found.items():
            if timing.failure:
                self._run.note(f"{name} failed: {timing.failure}")
            elif timing.spread > NOISY_SPREAD and not small:
                self._run.note(f"{name} varies by {timing.spread:.0%}: is the machine busy?")
        return found

    def record_cost(self, name: str) -> None:
        """Records the floating-point operations of a step of a plan, and the examples per second of its windows."""
        child = self._programs.get(name)
        if isinstance(child, CandidateChild) and name in self.timings:
            with self._noted(name, child):
                self._run.record("matrix_flops", child.step_cost().matrix_flops)
                self._run.record("window_rates", self.timings[name].rates)

    def ratio(self, figure: str, of: str, to: str, **bound: float) -> None:
        """Records the throughput of one program / that of another, if both were measured."""
        found = [self.timings.get(name) for name in (of, to)]
        if all(timing is not None and timing.windows and not timing.failure for timing in found):
            first, second = found
            self._run.figure(figure, f"throughput {of} / {to}", ratios(first, second), **bound)


class _Peer(TimedChild):
    """A process that trains with another program, window by window, and takes GPU memory as it needs it."""

    def __init__(self, folder: Path, program: str, order: dict[str, Any], *, limit_seconds: float) -> None:
        environment = {"KERAS_BACKEND": "tensorflow", "TF_CONFIG": None, "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
        self._own_server = ForkServer((), folder=Path(tempfile.mkdtemp(dir=folder)), environment=environment)
        self._is_ended = False
        super().__init__(self._own_server, program, order, name="peer", limit_seconds=limit_seconds)

    def end(self) -> None:
        """Ends the process and the server that made it, once."""
        if not self._is_ended:
            self._is_ended = True
            super().end()
            self._own_server.close()
