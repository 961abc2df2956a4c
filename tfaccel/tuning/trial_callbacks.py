"""The callback of a trial: sends heartbeats, records the objective of each epoch, and stops the trial early."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import keras

from tfaccel.files import write_json
from tfaccel.tuning.objective import Objective
from tfaccel.tuning.pruning import prune_cause

_SIGN_EVERY_SECONDS = 1.0
_FILE = "epochs.json"
_MIN_EPOCHS = 3


class Pruner(Protocol):
    """Decides whether to stop a trial early."""

    def prune_cause(self, epoch: int, value: float) -> str | None:
        """The reason to stop after this epoch, which reached this value; None to continue."""


class BesideOthers:
    """Prunes a trial by comparing it with the trials in sibling folders at the same epoch.

    Args:
        folder: the trial's.
        rule: "median" or "halving".
        direction: "max" or "min".
    """

    def __init__(self, folder: Path, rule: str, direction: str) -> None:
        self._folder = folder
        self._rule = rule
        self._direction = direction
        self._values: list[float] = []

    def prune_cause(self, epoch: int, value: float) -> str | None:
        """Records the value for the other trials and compares it with theirs."""
        self._values = [*self._values[: epoch - 1], value]
        write_json(self._folder / _FILE, self._values)
        return prune_cause(self._rule, self._values, _other_values(self._folder), direction=self._direction)


class TrialReport(keras.callbacks.Callback):
    """Monitors a trial.

    Args:
        objective: the objective of the search.
        extras: values that are the same for all epochs, such as the model's size; added to the logs.
        pruner: decides whether to stop the trial; None to never stop it.
        patience: as `early_stopping` of `SearchOptions`.
        sign: heartbeat, called about once per second while the trial runs.
        judge: the workload's `judge`, if any.
        save_to: a file for the model of the best epoch; None to not save it.
    """

    tfaccel_windows = True

    def __init__(
        self,
        objective: Objective,
        extras: Mapping[str, float],
        *,
        pruner: Pruner | None = None,
        patience: int | None = None,
        sign: Callable[[], None] = lambda: None,
        judge: Callable[[Any], Mapping[str, float]] | None = None,
        save_to: Path | None = None,
    ) -> None:
        super().__init__()
        self._objective = objective
        self.extras = dict(extras)
        self._pruner = pruner
        self._patience = patience
        self._sign = sign
        self._judge = judge
        self._save_to = save_to
        self.has_saved = False
        self._signed = 0.0
        self.values: list[float] = []
        self.best_metrics: dict[str, float] = {}
        self.best_epoch = 0
        self.prune_cause: str | None = None
        self._epoch_ends: list[float] = []

    def __deepcopy__(self, memo: Any) -> TrialReport:
        """Returns itself: Keras Tuner's `run_trial` copies callbacks, but this one must monitor the trial."""
        return self

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Sends a heartbeat."""
        now = time.perf_counter()
        if now - self._signed > _SIGN_EVERY_SECONDS:
            self._signed = now
            self._sign()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Sends a heartbeat."""
        self.on_train_batch_end(batch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Records the objective and stops the trial if the pruner or `patience` requires it."""
        self._epoch_ends.append(time.perf_counter())
        metrics = {**{name: float(value) for name, value in (logs or {}).items()}, **self.extras}
        if self._judge is not None:
            metrics |= self._judge(self.model)
        if not all(name in metrics for name in self._objective.names):
            return  # Only some epochs end with validation, or a HyperModel's own fit returns the objective.
        value = self._objective.value(metrics)
        if not self.values or self._objective.better(value, max_or_min(self.values, self._objective)):
            self.best_metrics, self.best_epoch = metrics, len(self.values)
            if self._save_to is not None and self.model is not None:
                self.model.save(self._save_to)
                self.has_saved = True
        self.values.append(value)
        if self._pruner is not None and self.prune_cause is None:
            self.prune_cause = self._pruner.prune_cause(len(self.values), value)
        waited = len(self.values) - 1 - self.best_epoch
        ends = self.prune_cause is not None or (self._patience is not None and waited >= self._patience)
        if ends and self.model is not None:
            self.model.stop_training = True

    @property
    def train_seconds(self) -> float | None:
        """Time of all epochs without tracing, which is in the first one; None for fewer than three epochs."""
        ends = self._epoch_ends
        if len(ends) < _MIN_EPOCHS:
            return None
        return round((ends[-1] - ends[0]) / (len(ends) - 1) * len(ends), 3)


def max_or_min(values: list[float], objective: Objective) -> float:
    """The best of some values."""
    return max(values) if objective.direction == "max" else min(values)


def _other_values(folder: Path) -> list[list[float]]:
    """The values of the other trials, except trials with NaN."""
    found = []
    for path in sorted(folder.parent.glob(f"trial_*/{_FILE}")):
        if path.parent != folder:
            values = json.loads(path.read_text(encoding="utf-8"))
            if None not in values:
                found.append(values)
    return found


def tensorboard_beside(callbacks: list[Any], trial_id: str, execution: int, hp: Any) -> list[Any]:
    """The callbacks; TensorBoard callbacks log to the trial's own folder, with its hyperparameters.

    As in Keras Tuner, `tensorboard --logdir` of the common folder then shows all trials.
    """
    from tensorboard.plugins.hparams import api

    shown = list(callbacks)
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.TensorBoard):
            callback.log_dir = os.path.join(callback.log_dir, trial_id, f"execution{execution}")  # perhaps an address
            values = {name: v for name, v in hp.values.items() if isinstance(v, bool | int | float | str)}
            shown.append(api.KerasCallback(writer=callback.log_dir, hparams=values, trial_id=trial_id))
    return shown
