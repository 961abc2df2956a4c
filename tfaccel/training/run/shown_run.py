"""What a run says on standard error, besides its progress: its plan, where it continues, and how it ended."""

from __future__ import annotations

import sys

from rich.console import Console

from tfaccel.errors import printable
from tfaccel.hardware.hardware import Cluster
from tfaccel.training.run.result import TrainResult

PROGRESS = "progress"  # the value of `verbose` that leaves out plan and result, which the caller shows


def say(text: str) -> None:
    """Writes a line on standard error; a terminal breaks it at spaces."""
    console = Console(file=sys.stderr)
    console.print(printable(text), highlight=False, markup=False, soft_wrap=not console.is_terminal)


def shows(verbose: int | str, cluster: Cluster | None) -> bool:
    """Whether this process says what happens: the chief does, unless it is to be silent."""
    return bool(verbose) and (cluster is None or cluster.is_chief)


def say_result(result: TrainResult) -> None:
    """Says how good the fit is, and where the run is."""
    say(result.verdict.text())
    say(f"The model and the result are in {result.run_dir}: model.keras, result.json, metrics.jsonl, tensorboard.")
