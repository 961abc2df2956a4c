"""Validation data of a fit, and when it is due."""

from __future__ import annotations

from dataclasses import dataclass

import keras

from tfaccel.data.sources import IteratorSource
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload
from tfaccel.planning.workload_calls import call_own
from tfaccel.training.engine import Engine
from tfaccel.training.evaluate import run_evaluation
from tfaccel.training.inputs import Source
from tfaccel.training.workload_source import with_plan


@dataclass
class Validation:
    """Validation data and the epochs that end with it.

    Attributes:
        source: the batches.
        freq: every `freq` epochs, or a list of epochs (from 1).
    """

    source: Source
    freq: int | list[int] = 1

    def is_due(self, epoch: int) -> bool:
        """Whether the epoch (from 0) ends with validation."""
        if isinstance(self.freq, int):
            return (epoch + 1) % self.freq == 0
        if isinstance(self.freq, list | tuple):
            return epoch + 1 in self.freq
        raise ValueError(
            f"Expected `validation_freq` to be an int or a list of epochs (from 1). Received: {self.freq!r}."
        )

    def run(self, engine: Engine, container: keras.callbacks.CallbackList) -> dict[str, float]:
        """Evaluates; returns the logs with `val_` before their names."""
        logs = run_evaluation(engine, self.source, container)
        self.source.rewind()
        return {f"val_{name}": value for name, value in logs.items()}


def validation_of(workload: Workload, plan: Plan, *, num_passes: int) -> Validation | None:
    """The validation of a workload after every epoch, by one iterator for all passes; None where it has none.

    Args:
        workload, plan: what is trained, and how.
        num_passes: how often the data will be gone through.
    """
    if workload.validation_data is None:
        return None
    size = plan.global_batch_size // plan.accumulation_steps
    dataset = call_own(f"validation_data of workload {workload.name!r}", workload.validation_data, size)
    dataset = with_plan(dataset, plan, "validation_data")
    length = int(dataset.cardinality())
    return Validation(IteratorSource(dataset, num_batches=length if length > 0 else None, num_epochs=num_passes))
