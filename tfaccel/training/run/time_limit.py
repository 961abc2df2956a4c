"""The time that a run of `train` may take: a trial measures its steps, and the run gets as many as fit.

The steps are counted before the run begins, so that a learning rate schedule ends with them, and so that the run is
the same as one of so many epochs. If the machine becomes slower meanwhile, the clock ends the run before its last step.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfaccel.errors import WorkloadError
from tfaccel.planning.workload import Workload
from tfaccel.training.run.result import say

if TYPE_CHECKING:
    from tfaccel.training.run.run_options import Run
    from tfaccel.training.run.session import Session
    from tfaccel.training.run.train_callbacks import StepTimes

MAX_SECONDS = "max_seconds"
EPOCHS, LAST_STEPS = "epochs", "last_steps"
FITTED = (EPOCHS, LAST_STEPS)  # what a trial decides, in the config of a run

_TRIAL_SHARE, _MIN_TRIAL_SECONDS = 0.03, 0.5  # of the whole time; and at least, of steps after the first window
_LAST_SECONDS, _RESERVE = 2.0, 0.03  # for saving, and as a share of the time: left when the last step should end
_EPOCH_SECONDS = 0.05  # for metrics, callbacks and checkpoints
_VALIDATION_STEP = 0.5  # of a training step, if no validation has been measured
_MIN_PART = 0.1  # of an epoch, for a last epoch that is not whole
UNDECIDED, TRIAL_EPOCHS = 0, 1_000_000  # the number of epochs before a trial, and in it


@dataclass(frozen=True)
class Measured:
    """What a trial has measured.

    Attributes:
        start_seconds: from the begin of a session until the end of its first window of steps.
        step_seconds: for one batch.
        validation_seconds: of one pass; None if there was none.
        num_batches, num_validation_batches: in an epoch, and in a pass; None if unknown.
    """

    start_seconds: float
    step_seconds: float
    validation_seconds: float | None
    num_batches: int | None
    num_validation_batches: int | None


class TrialEnded(Exception):
    """Ends the session of a trial, on all workers after the same step.

    Args:
        limit: the limit of the run, which decides the run's length.
    """

    def __init__(self, limit: TimeLimit) -> None:
        super().__init__()
        self.limit = limit


class TimeLimit:
    """How long a call of `train` may take, and how many steps fit.

    Args:
        seconds: for the whole call, from the begin of the trial to the written result.
        started: when the call began, by `time.perf_counter`.
        max_epochs: at most so many epochs; None for as many as fit.

    Attributes:
        validation_seconds: of the newest pass over the validation data; None before the first.
        ended_at: the number of batches after which the clock ended the run; None if it did not.
        config: what the config of a run says of the limit before the length is decided.
    """

    def __init__(self, seconds: float, started: float, max_epochs: int | None) -> None:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
            raise WorkloadError(
                f"`max_seconds` must be a positive number of seconds. Received: max_seconds={seconds!r:.100}."
            )
        self.seconds, self.max_epochs = float(seconds), max_epochs
        self.validation_seconds: float | None = None
        self.ended_at: int | None = None
        self.config = {MAX_SECONDS: self.seconds, "max_epochs": max_epochs, EPOCHS: UNDECIDED, LAST_STEPS: None}
        self._end = started + self.seconds
        self._session_began = self._validation_began = started
        self._all_validation_seconds = 0.0  # of the session
        self._times: StepTimes | None = None

    def begin_session(self, *, times: StepTimes | None) -> None:
        """Takes note that a session begins; the `times` of a trial, None for the run itself."""
        self._session_began, self._times = time.perf_counter(), times
        self._all_validation_seconds = 0.0

    def begin_validation(self) -> None:
        """Takes note of the begin of a pass over the validation data."""
        self._validation_began = time.perf_counter()

    def end_validation(self) -> None:
        """Takes note of its end."""
        self.validation_seconds = time.perf_counter() - self._validation_began
        self._all_validation_seconds += self.validation_seconds

    @property
    def is_trial(self) -> bool:
        """Whether the session only measures."""
        return self._times is not None

    @property
    def is_over(self) -> bool:
        """Whether to end training after this step: the rest is for the last validation, or enough is measured."""
        if self._times is None:
            return time.perf_counter() + (self.validation_seconds or 0.0) + _LAST_SECONDS >= self._end
        trained = sum(seconds for _, seconds in self._times.windows)
        return trained >= max(_MIN_TRIAL_SECONDS, _TRIAL_SHARE * self.seconds)

    def decide(self, session: Session, run: Run) -> None:
        """Decides the length of the run when a trial has ended: on the chief, which tells the others.

        Raises:
            WorkloadError: as `fitted` does, on all workers.
        """
        times, validation, replicas = self._times, session.validation, session.engine.replicas
        if times is None:
            raise ValueError("This session is no trial.")
        seconds = time.perf_counter() - times.first_ended - self._all_validation_seconds
        source = None if validation is None or callable(validation.source) else validation.source
        measured = Measured(
            start_seconds=times.first_ended - self._session_began,
            step_seconds=seconds / sum(num_steps for num_steps, _ in times.windows),
            validation_seconds=self.validation_seconds,
            num_batches=session.source.num_batches,
            num_validation_batches=None if source is None else source.num_batches,
        )
        try:
            length: Any = self.fitted(measured, run.workload, accumulation_steps=session.plan.accumulation_steps)
        except WorkloadError as error:
            length = str(error)
        length = json.loads(replicas.bytes_of_chief(json.dumps(length).encode()))
        if isinstance(length, str):
            raise WorkloadError(length) from None
        run.directory.config |= length
        if run.verbose and replicas.is_chief:
            say(self._text(measured, length))

    def fitted(self, measured: Measured, workload: Workload, *, accumulation_steps: int) -> dict[str, int | None]:
        """The number of epochs that fit into what is left, and of batches in the last one; None for all of them.

        Raises:
            WorkloadError: if not one step fits, or the number of batches in an epoch is unknown.
        """
        whole, step = measured.num_batches, measured.step_seconds
        if whole is None:
            raise WorkloadError(
                f"max_seconds={self.seconds:g} needs the number of batches in an epoch, which is not known. Give the "
                "dataset a length (`tf.data.experimental.assert_cardinality`), or give epochs instead."
            )
        validation = 0.0 if workload.validation_data is None else _validation_seconds(measured)
        left = (self._end - time.perf_counter()) * (1 - _RESERVE) - measured.start_seconds - validation - _LAST_SECONDS
        num_epochs, rest = divmod(max(0.0, left), whole * step + validation + _EPOCH_SECONDS)
        part = int((rest - validation) / step) // accumulation_steps * accumulation_steps
        epochs, last = int(num_epochs), None
        if part >= max(1, accumulation_steps, _MIN_PART * whole if epochs else 1):
            epochs, last = epochs + 1, part
        if not epochs:
            raise WorkloadError(
                f"max_seconds={self.seconds:g} is too short for one step: {self._used():.3g} s were needed to "
                f"build, compile and measure, and a step takes {step * accumulation_steps:.3g} s. Give more time."
            )
        if self.max_epochs is not None and epochs > self.max_epochs:
            epochs, last = self.max_epochs, None
        return {EPOCHS: epochs, LAST_STEPS: None if last is None or last >= whole else last}

    def _used(self) -> float:
        return self.seconds - (self._end - time.perf_counter())

    def _text(self, measured: Measured, length: dict[str, Any]) -> str:
        last = f", the last one of {length[LAST_STEPS]} batches" if length[LAST_STEPS] else ""
        validation = measured.validation_seconds
        passes = "" if validation is None else f" and validation {validation:.3g} s"
        step = f"a batch takes {measured.step_seconds * 1e3:.3g} ms{passes}"
        return f"max_seconds={self.seconds:g}: {length[EPOCHS]} epochs fit{last}; {step}."

    def to_json(self, session: Session, config: Mapping[str, Any]) -> dict[str, Any]:
        """What a result says of the limit: the length that was decided, and where the clock ended it, if it did."""
        of_epoch = session.source.num_batches or 0
        planned = (session.epochs - 1) * of_epoch + (session.last_steps or of_epoch)
        told = {**{name: config[name] for name in (MAX_SECONDS, *FITTED)}, "steps": session.num_steps}
        if self.ended_at is None or self.ended_at >= planned:
            return {**told, "ended_at": None, "next": None}
        coming = f"batch {self.ended_at + 1:,} of {planned:,}, with which the learning rate schedule ends"
        return {**told, "ended_at": self.ended_at, "next": coming}


def _validation_seconds(measured: Measured) -> float:
    """Those of one pass; estimated if none has been measured."""
    if measured.validation_seconds is not None:
        return measured.validation_seconds
    batches = measured.num_validation_batches or (measured.num_batches or 0) // 4
    return batches * measured.step_seconds * _VALIDATION_STEP
