"""`TrainResult`: the outcome of a run, as saved in `result.json`; and what a run says on standard error."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from tfaccel.errors import printable
from tfaccel.hardware.hardware import Cluster
from tfaccel.planning.plan import Plan
from tfaccel.records import Record, to_plain
from tfaccel.short_repr import short_repr
from tfaccel.training.run.performance import Bottleneck, Performance, WorkerTimes, straggler
from tfaccel.training.verdict.baseline_scores import BaselineScores
from tfaccel.training.verdict.fit_verdict import FitVerdict, verdict

_PACKAGES = ("tfaccel", "tensorflow", "keras", "numpy")


@short_repr
@dataclass(frozen=True, kw_only=True)
class TrainResult(Record):
    """The outcome of a training run.

    Attributes:
        recipe: name of the workload.
        plan: the plan that it was trained with.
        history: metric name -> one value per epoch.
        final: metrics of the finished model on the validation data (without any, those of the last epoch).
        examples_per_second: training examples per second, excluding the first graph call.
        step_seconds: {"median", "p95"} seconds per optimizer step, excluding the first graph call.
        first_step_seconds: duration of the first graph call, which traces and compiles.
        wall_seconds: duration of the whole call to `train`.
        hardware: description of the machine, as JSON data.
        versions: package -> version.
        run_dir: path of the run directory.
        learning_rate_scaling: how the learning rate was scaled: rule, batch sizes, factor, and the peak rate before and
            after; None if it was not.
        baselines: scores of the finished model and of simple predictors on the validation data; None if unknown.
        performance: speed, share of time waiting for input, MFU, utilization and memory; None if nothing was trained,
            or the run is from an earlier version.
        workers: with several workers, the seconds per batch that each of them waited for its input, computed, and
            waited for the others; measured on CPUs.
        left_out_batches: how many batches were left out because their loss or gradients were not finite; see
            `on_nonfinite` of `train`.
        workload_key: a digest of the workload, the machine and the versions, by which `tfaccel report` finds what was
            measured of the same; empty in runs of earlier versions.
        bad_data: the examples that were left out because they are damaged, in all and by file, as
            `tfaccel.data.BadData.to_json` returns them; None if damaged data are an error.
        proof: with several replicas in one process, what comparing the first step with one device's has shown: kind of
            step ("train", "test") -> number of variables, largest difference and a text; None if nothing was compared.
    """

    _ignores_others = True

    recipe: str
    plan: Plan
    history: dict[str, list[float | None]] = field(repr=False)
    final: dict[str, float]
    examples_per_second: float
    step_seconds: dict[str, float] = field(repr=False)
    first_step_seconds: float
    wall_seconds: float
    hardware: dict[str, Any] = field(repr=False)
    versions: dict[str, str] = field(repr=False)
    run_dir: str
    learning_rate_scaling: dict[str, Any] | None = None
    baselines: BaselineScores | None = None
    performance: Performance | None = None
    workers: tuple[WorkerTimes, ...] = ()
    left_out_batches: int = 0
    workload_key: str = field(default="", repr=False)
    bad_data: dict[str, Any] | None = None
    proof: dict[str, Any] | None = None

    @property
    def verdict(self) -> FitVerdict:
        """A diagnosis of the fit from the history and the baselines, with what to try next."""
        return verdict(self.history, baselines=self.baselines, final_loss=self.final.get("loss"))

    @property
    def bottleneck(self) -> Bottleneck | None:
        """What held the run back: a worker that the others waited for, or what slowed all of them; None if unknown."""
        slow = straggler(self.workers)
        if slow is not None:
            return Bottleneck(kind="straggler", text=slow.text)
        return None if self.performance is None else self.performance.bottleneck

    def to_json(self) -> dict[str, Any]:
        """The result and its verdict as JSON-serializable data."""
        derived = {"straggler": straggler(self.workers), "bottleneck": self.bottleneck, "verdict": self.verdict}
        return {**super().to_json(), **to_plain(derived)}


def installed_versions() -> dict[str, str]:
    """Versions of Python and of the packages that affect a result."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


PROGRESS = "progress"  # the value of `verbose` that leaves out plan and result, which the caller shows
VERBOSE = (0, 1, 2, "auto", PROGRESS)


def say(text: str) -> None:
    """Writes a line on standard error; a terminal breaks it at spaces."""
    console = Console(file=sys.stderr)
    console.print(printable(text), highlight=False, markup=False, soft_wrap=not console.is_terminal)


class ShownRun:
    """What `train` says of a run, on the chief.

    Args:
        verbose: as for `train`.
        cluster: this process's place in a cluster; None for a single process.
    """

    def __init__(self, verbose: int | str, cluster: Cluster | None) -> None:
        self._is_shown = bool(verbose) and (cluster is None or cluster.is_chief)
        self._is_whole = self._is_shown and verbose != PROGRESS

    def plan(self, plan: Plan, origin: str) -> None:
        """Says which plan was chosen, and where it comes from."""
        if self._is_whole:
            say(f"Plan ({origin}): {plan!r}. Its `reasons` say why.")

    def complete(self, run_dir: Path) -> None:
        """Says that nothing is left to train."""
        if self._is_shown:
            say(f"The run in {run_dir} is complete; there is nothing to train.")

    def result(self, result: TrainResult) -> None:
        """Says how good the fit is, and where the run is."""
        if self._is_whole:
            say(result.verdict.text())
            files = "model.keras, result.json, metrics.jsonl, tensorboard"
            say(f"The model and the result are in {result.run_dir}: {files}.")
