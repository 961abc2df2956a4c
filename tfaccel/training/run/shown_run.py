"""What a run says on standard error, besides its progress: its plan, where it continues, and how it ended."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from tfaccel.errors import printable
from tfaccel.hardware.hardware import Cluster
from tfaccel.planning.plan import Plan
from tfaccel.training.run.result import TrainResult

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
