"""Stops a run when SIGTERM or Ctrl-C asks for it, or its time is over: all workers at the same step.

With several workers, each may get the signal at another time, or only one of them gets it. They sum what each has
received in one small all-reduce about every half second of training, after the same steps on all of them.
"""

from __future__ import annotations

import math
import signal
import time
from typing import Any, NoReturn

import keras

from tfaccel.errors import RunStopped
from tfaccel.training.run.checkpoints import Checkpoints
from tfaccel.training.run.run_dir import RunDir
from tfaccel.training.run.stop_signals import StopSignals
from tfaccel.training.run.time_limit import TimeLimit, TrialEnded
from tfaccel.training.steps.model_parts import untracked_variables
from tfaccel.training.steps.replica_state import get_values, restore_values, seed_variables
from tfaccel.training.steps.replicas import Replicas

_SECONDS_BETWEEN_ASKING = 0.5
_TRAIN, _TEST = "train", "test"
_TIME = signal.SIGALRM  # stands for a time that is over, where workers tell each other of signals


class StopWhenAsked(keras.callbacks.Callback):
    """Saves a checkpoint and raises, after the window of steps in which a signal arrived. It must be the last callback.

    Validation is interrupted as well: the checkpoint then has the state from before it, and a resumed run repeats it.

    When the time is over, it saves a checkpoint too, and training ends as if this was the last step.

    Args:
        limit: of the run's time; None for none.
    """

    tfaccel_windows = True

    def __init__(
        self,
        signals: StopSignals,
        checkpoints: Checkpoints,
        run_dir: RunDir,
        replicas: Replicas,
        limit: TimeLimit | None = None,
    ) -> None:
        super().__init__()
        self._signals, self._checkpoints, self._limit = signals, checkpoints, limit
        self._run_dir, self._replicas = run_dir, replicas
        self._agreement = Agreement(replicas) if replicas.num_workers > 1 else None
        self._begun = (0, 0.0)  # the first step of the current window, and when it began
        self._before_validation: list[Any] | None = None
        self._has_trained = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Stops before anything is compiled, if the signal arrived while the model was built."""
        self._stop_if_asked(always=True)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Records when the window begins."""
        self._begun = (batch, time.perf_counter())

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Stops after a window."""
        self._count(_TRAIN, batch)
        self._stop_if_asked(has_limit=True)

    def on_test_begin(self, logs: Any = None) -> None:
        """Copies what validation changes."""
        if self._limit is not None:
            self._limit.begin_validation()
        if not self._has_trained:
            variables = [*self.model.metrics_variables, *untracked_variables(self.model), *seed_variables(self.model)]
            self._before_validation = get_values(variables, self._replicas)

    on_test_batch_begin = on_train_batch_begin

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Stops after a window of validation."""
        self._count(_TEST, batch)
        self._stop_if_asked()

    def on_test_end(self, logs: Any = None) -> None:
        """Releases the copy."""
        if self._limit is not None:
            self._limit.end_validation()
        self._before_validation = None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Stops after an epoch; several workers stop after the next window."""
        if self._agreement is None:
            self._stop_if_asked(has_limit=True)

    def on_train_end(self, logs: Any = None) -> None:
        """Notes that there is nothing left to save."""
        self._has_trained = True

    def _count(self, kind: str, batch: int) -> None:
        if self._agreement is not None:
            first, began = self._begun
            self._agreement.count(kind, batch + 1 - first, time.perf_counter() - began)

    def _stop_if_asked(self, *, always: bool = False, has_limit: bool = False) -> None:
        own = self._signals.asked
        if own is None and has_limit and self._limit is not None and self._limit.is_over:
            own = _TIME
        if self._agreement is not None and not (always or self._agreement.is_due):
            return
        asked = own if self._agreement is None else self._agreement.ask(own)
        if asked == _TIME:
            self._end_in_time()
        elif asked is not None:
            self._stop(asked, elsewhere=own is None)

    def _end_in_time(self) -> None:
        if self._limit is None or self.model.stop_training:
            return
        if self._limit.is_trial:
            raise TrialEnded(self._limit)
        self.model.stop_training = True
        with self._signals.saving():
            self._limit.ended_at = self._checkpoints.save_now()
            self._replicas.wait_for_all_workers()

    def _stop(self, asked: signal.Signals, *, elsewhere: bool) -> NoReturn:
        if self._limit is not None and self._limit.is_trial:
            self._signals.raise_what_handlers_raised()
            text = f"Training was stopped by {asked.name} while its steps were timed: nothing is saved. Start it again."
            raise KeyboardInterrupt(text) if asked == signal.SIGINT else RunStopped(text)
        with self._signals.saving():
            if self._before_validation is not None:
                restore_values(self._before_validation, self._replicas)
            step = self._checkpoints.step if self._has_trained else self._checkpoints.save_now()
            self._replicas.wait_for_all_workers()
        self._signals.raise_what_handlers_raised()
        cause = "Ctrl-C" if asked == signal.SIGINT else asked.name
        who = " on another worker" if elsewhere else ""
        place = self._run_dir.checkpoints / f"step_{step:010d}"
        owner = "" if self._replicas.is_chief else " of worker 0"
        stopped = RunStopped(
            f"Training was stopped by {cause}{who} after step {step}; the checkpoint is {place}{owner}. To continue: "
            f"{self._run_dir.continue_by}."
        )
        stopped.step, stopped.checkpoint = step, place
        raise KeyboardInterrupt(str(stopped)) if asked == signal.SIGINT else stopped


class Agreement:
    """What all workers have been asked to do, which each of them learns after the same steps."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self._num_steps = {_TRAIN: 0, _TEST: 0}  # since the workers last asked each other
        self._seconds = {_TRAIN: 0.0, _TEST: 0.0}  # that they took on this worker
        self._step_seconds: dict[str, float] = {}  # the chief's, known to all workers

    def count(self, kind: str, num_steps: int, seconds: float) -> None:
        """Adds a window of steps of one kind."""
        self._num_steps[kind] += num_steps
        self._seconds[kind] += seconds

    @property
    def is_due(self) -> bool:
        """Whether to ask now; the answer is the same on all workers."""
        counted = ((kind, number) for kind, number in self._num_steps.items() if number)
        seconds = sum(number * self._step_seconds.get(kind, math.inf) for kind, number in counted)
        return seconds >= _SECONDS_BETWEEN_ASKING

    def ask(self, own: signal.Signals | None) -> signal.Signals | None:
        """What any worker has been asked: SIGINT before SIGTERM before the end of the time; None for nothing."""
        causes = (signal.SIGINT, signal.SIGTERM, _TIME)
        micros = [int(self._replicas.is_chief * self._seconds[kind] * 1e6) for kind in (_TRAIN, _TEST)]
        totals = self._replicas.sum_over_workers([*(int(own == cause) for cause in causes), *micros])
        for kind, total in zip((_TRAIN, _TEST), totals[len(causes) :], strict=True):
            if self._num_steps[kind]:
                self._step_seconds[kind] = total * 1e-6 / self._num_steps[kind]
            self._num_steps[kind], self._seconds[kind] = 0, 0.0
        return next((cause for cause, total in zip(causes, totals, strict=False) if total), None)
