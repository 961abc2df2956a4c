"""The callback of a trial: sends heartbeats, records the objective of each epoch, and stops the trial early.

The rules of early stopping compare a trial with the others at the same epoch.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from tfaccel.errors import SearchError
from tfaccel.files import write_json
from tfaccel.tuning.objective import Objective

Pruner = Callable[[Sequence[float]], str | None]  # the objective of all epochs -> why to stop; None to continue

_SIGN_EVERY_SECONDS = 1.0
_FILE = "epochs.json"
_MIN_EPOCHS = 3
MIN_OTHERS = 3  # fewer other trials are no reason to stop one
_FACTOR = 3  # of the epochs between two comparisons, and of the trials that end at each


def beside_others(values: Sequence[float], *, folder: Path, rule: str, objective: Objective) -> str | None:
    """The `prune_cause` of a trial beside those in sibling folders; writes its own values for them."""
    write_json(folder / _FILE, values)
    paths = [path for path in sorted(folder.parent.glob(f"trial_*/{_FILE}")) if path.parent != folder]
    others = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    return prune_cause(rule, values, [other for other in others if None not in other], objective)


class TrialReport(keras.callbacks.Callback):
    """Monitors a trial.

    Args:
        objective: the objective of the search.
        extras: values that are the same for all epochs, such as the model's size; added to the logs.
        pruner: asked after each epoch; None to never stop the trial.
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
        self._objective, self.extras = objective, dict(extras)
        self._pruner, self._patience = pruner, patience
        self._sign, self._judge = sign, judge
        self._save_to, self.has_saved = save_to, False
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
        if not self.values or self._objective.better(value, self._objective.best(self.values)):
            self.best_metrics, self.best_epoch = metrics, len(self.values)
            if self._save_to is not None and self.model is not None:
                self.model.save(self._save_to)
                self.has_saved = True
        self.values.append(value)
        if self._pruner is not None and self.prune_cause is None:
            self.prune_cause = self._pruner(self.values)
        waited = len(self.values) - 1 - self.best_epoch
        ends = self.prune_cause is not None or (self._patience is not None and waited >= self._patience)
        if ends and self.model is not None:
            self.model.stop_training = True

    def outcome(self, metrics: Mapping[str, float] | None = None) -> dict[str, Any]:
        """The fields of the trial's row, from these metrics; None for those of its best epoch."""
        objective = self._objective
        if metrics is None and not self.values:
            raise SearchError(f"No epoch reported the objective {objective.name!r}.")
        score = objective.best(self.values) if metrics is None else objective.value(metrics)
        return {
            "status": "completed" if self.prune_cause is None else "pruned",
            "cause": self.prune_cause,
            "score": objective.check_finite(score),
            "metrics": self.best_metrics if metrics is None else metrics,
            "epochs": len(self.values),
            "train_seconds": self.train_seconds,
        }

    @property
    def train_seconds(self) -> float | None:
        """Time of all epochs without tracing, which is in the first one; None for fewer than three epochs."""
        ends = self._epoch_ends
        if len(ends) < _MIN_EPOCHS:
            return None
        return round((ends[-1] - ends[0]) / (len(ends) - 1) * len(ends), 3)


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


def prune_cause(rule: str, own: Sequence[float], others: Sequence[Sequence[float]], objective: Objective) -> str | None:
    """The reason to stop a trial now; None if it should continue.

    Args:
        rule: "none", "median" or "halving"; see `SearchOptions`.
        own: the trial's objective after each epoch so far.
        others: the same for the other trials, of any length.
        objective: of the search.

    Example:
        >>> accuracy = Objective((("val_accuracy", "max"),))
        >>> prune_cause("median", [0.2], [[0.5], [0.6], [0.7]], accuracy)
        'At epoch 1 its best was 0.2, below the median 0.6 of 3 other trials.'
        >>> prune_cause("median", [0.65], [[0.5], [0.6], [0.7]], accuracy) is None
        True
    """
    epoch = len(own)
    reached = [values[:epoch] for values in others if len(values) >= epoch]
    if rule == "none" or epoch == 0 or len(reached) < MIN_OTHERS:
        return None
    bests, mine = [objective.best(values) for values in reached], objective.best(own)
    if rule == "median":
        median = statistics.median(bests)
        if not objective.better(median, mine):
            return None
        side = "below" if objective.direction == "max" else "above"
        than = f"{side} the median {median:.6g} of {len(bests)} other trials"
        return f"At epoch {epoch} its best was {mine:.6g}, {than}."
    if epoch != _FACTOR ** round(math.log(epoch, _FACTOR)):  # 1, 3, 9, 27 ...
        return None
    place = 1 + sum(objective.better(other, mine) for other in bests)
    most = max(1, -(-(len(bests) + 1) // _FACTOR))
    if place > most:
        return f"At epoch {epoch} it ranked {place} of {len(bests) + 1} trials; the best {most} continue."
    return None
