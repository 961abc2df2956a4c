"""The time of a workload's training step under a plan, measured in a process of its own."""

from __future__ import annotations

import math
import shutil
import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfaccel.errors import PlanError
from tfaccel.measuring.candidate_child import CandidateChild, CandidateFailed, CandidateServers
from tfaccel.measuring.measurement import relative_spread
from tfaccel.planning.plan import Plan

WINDOW_SECONDS = 0.3
NUM_WINDOWS = 7
_FIRST_STEPS = 4


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


def measured_steps(
    task: Mapping[str, Any], plans: Mapping[str, Plan], *, limit_seconds: float, num_windows: int = NUM_WINDOWS
) -> dict[str, StepTime]:
    """Measures plans of one workload in turn, window by window, each in a process of its own.

    Args:
        task: see `tfaccel.measuring.workload_task.make_task`.
        plans: name -> plan.
        limit_seconds: time limit for building a model, and for each window.
        num_windows: of each plan, of about 0.3 seconds, without the warm-up.

    Returns:
        name -> time.

    Raises:
        PlanError: if a plan could not be measured; it says why.
    """
    folder = Path(tempfile.mkdtemp(prefix="tfaccel-"))
    servers = CandidateServers(folder)
    children: dict[str, CandidateChild] = {}
    lengths: dict[str, int] = {}
    name = ""
    try:
        for name, plan in plans.items():
            child = CandidateChild(servers.of(plan), dict(task), plan, name, limit_seconds=limit_seconds)
            children[name] = child
            child.build(_FIRST_STEPS)
            warm = child.warm_up(_FIRST_STEPS)
            lengths[name] = max(1, math.ceil(WINDOW_SECONDS * warm.num_steps / warm.seconds))
            child.warm_up(lengths[name])
        for _ in range(num_windows):
            for name, child in children.items():
                child.window(lengths[name])
        return {name: _get_time(child) for name, child in children.items()}
    except CandidateFailed as error:
        raise PlanError(f"The training step could not be measured ({name}). {error}") from error
    finally:
        for child in children.values():
            child.end()
        servers.close()
        shutil.rmtree(folder, ignore_errors=True)


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
