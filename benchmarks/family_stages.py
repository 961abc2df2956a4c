"""What the benchmarks of choices and peers share: results that are kept stage by stage, and processes that race."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tfaccel.benchmarks.choice_tasks import FAMILIES, WORKLOAD
from tfaccel.benchmarks.peer_programs import Peer, PeerChild
from tfaccel.benchmarks.suite_options import SuiteOptions
from tfaccel.benchmarks.timed_race import Timing, race
from tfaccel.errors import TfaccelError
from tfaccel.measuring.candidate_child import CandidateChild, CandidateFailed, CandidateServers, TimedChild
from tfaccel.planning.plan import Plan
from tfaccel.planning.reference import Origin
from tfaccel.processes.child import ProcessError, run_program

CHOSEN = "chosen plan"
MAX_CANDIDATES, CACHED_SECONDS = 12, 0.5
_TRIAL_BUDGET_SECONDS = 600.0  # of fewer plans, on a machine that may be busy
_SEARCH_PROGRAM = "tfaccel.benchmarks.search_program"
_WINDOW_SECONDS = 1.0
_LIMIT_SECONDS = 300.0

Stage = Callable[[], Any]


def measure_stages(results: dict[str, Any], stages: Mapping[str, Stage], *, save: Callable[[], None]) -> None:
    """Runs the stages whose results are not there yet, in order, and saves after each.

    Example:
        >>> results = {"first": 1}
        >>> measure_stages(results, {"first": lambda: 2, "second": lambda: 3}, save=lambda: None)
        >>> results
        {'first': 1, 'second': 3}
    """
    for name, stage in stages.items():
        if name not in results:
            results[name] = stage()
            save()


def search(family: str, options: SuiteOptions, *, fresh: bool, after: str | None = None) -> dict[str, Any]:
    """The result of `search_program`: a report and the seconds of two calls.

    Args:
        family: its name.
        options: with a scale below 1, fewer plans are measured.
        fresh: whether to measure in an empty cache; otherwise a plan in the user's cache is used.
        after: a family whose search comes before it, in the same cache, and does not count.

    Raises:
        TfaccelError: if the search fails.
    """
    options.progress(f"{family}: find_fastest{f' after {after}' if after else ''}")
    max_candidates = max(2, round(MAX_CANDIDATES * min(1.0, options.scale)))
    budget = None if options.scale >= 1 else _TRIAL_BUDGET_SECONDS
    task = {"family": family, "max_candidates": max_candidates, "budget_seconds": budget, "after": after}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", _SEARCH_PROGRAM, json.dumps(task)]
        try:
            environment = {"TFACCEL_CACHE": folder} if fresh else {}
            return dict(json.loads(run_program(command, environment=environment)))
        except ProcessError as error:
            raise TfaccelError(f"find_fastest failed for {family}: {error}") from error


def chosen_plan(found: Mapping[str, Any]) -> Plan:
    """The plan that a search chose."""
    report = found["report"]
    return Plan.from_json(report["candidates"][report["chosen"]]["plan"])


class Racers:
    """Starts the processes of a family's programs; as a context manager, ends them all.

    Args:
        family: its name.
        options: how to run.
    """

    def __init__(self, family: str, options: SuiteOptions) -> None:
        self.family = FAMILIES[family]
        self._options = options
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self.servers = self._stack.enter_context(CandidateServers())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def task(self) -> dict[str, Any]:
        """What a `CandidateChild` of the family takes."""
        origin, _ = Origin.of([WORKLOAD])
        return {
            "origin": {"folder": origin.folder, "main_file": origin.main_file},
            "workload": {"kind": "import", "text": WORKLOAD, "name": WORKLOAD},
            "options": {"family": self.family.name},
            "seed": 0,
        }

    def built_plan(self, name: str, plan: Plan) -> TimedChild:
        """A process that trains with a plan, built.

        Raises:
            CandidateFailed: if it cannot.
        """
        self._options.progress(f"{self.family.name}: building {name}")
        child = CandidateChild(self.servers.of(plan), self.task, plan, name, limit_seconds=_LIMIT_SECONDS)
        return self._built(child)

    def built_peer(self, peer: Peer) -> TimedChild:
        """A process that trains with a peer, built.

        Raises:
            CandidateFailed: if it cannot.
        """
        self._options.progress(f"{self.family.name}: building {peer.name}")
        folder = Path(tempfile.mkdtemp(dir=self.servers.folder))
        return self._built(PeerChild(peer, self.family, folder))

    def race(
        self,
        programs: Mapping[str, TimedChild],
        *,
        num_rounds: int,
        window_seconds: float = _WINDOW_SECONDS,
        min_speed: float = 0.0,
    ) -> dict[str, Timing]:
        """See `tfaccel.benchmarks.timed_race`."""
        return race(
            programs,
            global_batch_size=self.family.global_batch_size,
            num_rounds=num_rounds,
            window_seconds=window_seconds * min(1.0, self._options.scale),
            progress=lambda text: self._options.progress(f"{self.family.name}: {text}"),
            min_speed=min_speed,
        )

    def _built(self, child: TimedChild) -> TimedChild:
        self._stack.callback(child.end)
        child.build(1)
        return child


@contextlib.contextmanager
def named_failure(family: str, program: str) -> Iterator[None]:
    """Turns the failure of a program that a figure cannot do without into an error for users."""
    try:
        yield
    except CandidateFailed as error:
        raise TfaccelError(f"{family}: {program} could not be measured: {error}") from error
