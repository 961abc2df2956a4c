"""A run whose loss or gradients become NaN or infinite: finds the cause, and stops or goes on without the batch.

Weights that have been updated with such gradients are lost. So the steps since the newest checkpoint are repeated once,
with steps that leave out such a batch (`tfaccel.training.steps.left_out`) and then end: the weights are those from
before the batch, and tell what it does to them. To go on ("rollback"), they are repeated once more, without the batch.
"""

from __future__ import annotations

import functools
import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras

from tfaccel.errors import DataError, NonFiniteLossError, RunStopped
from tfaccel.planning.non_finite_policy import ROLLBACK, SKIP
from tfaccel.planning.plan import Plan
from tfaccel.training.run.out_of_memory import BatchTooLarge, trained_within_memory

if TYPE_CHECKING:
    from tfaccel.training.run.run_dir import RunDir
    from tfaccel.training.run.train_session import Outcome, TrainSession
    from tfaccel.training.runtime import Runtime

logger = logging.getLogger("tfaccel")

MAX_ROLLBACKS = 10


def trained_without_faults(
    begin: Callable[[Plan, tuple[int, int] | None], TrainSession],
    run: Callable[[TrainSession], Outcome],
    plan: Plan,
    run_dir: RunDir,
    runtime: Runtime,
    *,
    on_nonfinite: str,
) -> tuple[Plan, Outcome]:
    """Runs a session, again with smaller batches if memory is short, and again without batches that spoil it.

    Args:
        begin: makes the session of a plan; with a position (epoch and step, from 1), one that only looks for the cause
            of a fault by then.
        run: runs a session.
        plan: the plan to begin with.
        run_dir, runtime: the run's directory, and its runtime, entered.
        on_nonfinite: "stop", "skip" (which the steps do by themselves) or "rollback".

    Returns:
        The plan that the run ended with, and its outcome.

    Raises:
        NonFiniteLossError: if the run stops; the message names the cause, if it was found.
    """
    while True:
        found = _attempt(begin, run, plan, run_dir, runtime)
        if not isinstance(found, _Failed):
            return found
        plan, error = found.plan, found.error
        if on_nonfinite == SKIP or error.step is None:
            raise error
        if not (error.is_explained or plan.strategy == "tpu"):  # no step of a TPU can leave out its batch
            examine = functools.partial(begin, plan, (error.epoch or 1, error.step))
            error = _with_cause(error, lambda examine=examine: run(examine()), run_dir, runtime)  # type: ignore[misc]
        if on_nonfinite != ROLLBACK:
            raise error
        _leave_out(error, found.dropped, run_dir, plan)
        _start_again(run_dir, runtime)


@dataclass(frozen=True)
class _Failed:
    """A session that has failed: its error, its plan, and the positions of the batches that it left out."""

    error: NonFiniteLossError
    plan: Plan
    dropped: frozenset[tuple[int, int]]


def _attempt(
    begin: Callable[[Plan, tuple[int, int] | None], TrainSession],
    run: Callable[[TrainSession], Outcome],
    plan: Plan,
    run_dir: RunDir,
    runtime: Runtime,
) -> tuple[Plan, Outcome] | _Failed:
    begun: list[TrainSession] = []

    def begin_noted(plan: Plan) -> TrainSession:
        begun[:] = [begin(plan, None)]
        return begun[0]

    try:
        return trained_within_memory(begin_noted, run, plan, run_dir, runtime)
    except NonFiniteLossError as error:
        return _Failed(error.with_traceback(None), begun[0].plan, begun[0].dropped)


def _start_again(run_dir: RunDir, runtime: Runtime) -> None:
    gc.collect()  # models and their graphs refer to each other
    run_dir.start_again()
    runtime.seed_generators()


def _with_cause(
    failed: NonFiniteLossError, examine: Callable[[], Any], run_dir: RunDir, runtime: Runtime
) -> NonFiniteLossError:
    """The error with its cause, after repeating the steps since the newest checkpoint; unchanged if it is not found."""
    logger.warning(
        f"Something became NaN or infinite by step {failed.step} of epoch {failed.epoch}. The steps since the newest "
        "checkpoint are repeated to find the cause; Ctrl-C ends this."
    )
    _start_again(run_dir, runtime)
    writes = run_dir.writes
    try:
        examine()
    except NonFiniteLossError as found:
        return found.with_traceback(None) if found.step is not None else failed
    except (NotRepeated, BatchTooLarge, DataError):  # DataError: a dataset that can be iterated over once only
        pass
    except (KeyboardInterrupt, RunStopped):
        raise failed from None
    finally:
        run_dir.writes = writes
    return failed


def _leave_out(failed: NonFiniteLossError, dropped: frozenset[tuple[int, int]], run_dir: RunDir, plan: Plan) -> None:
    """Notes in the run directory that the batch is left out from now on.

    Raises:
        NonFiniteLossError: if too many batches would be.
    """
    position = (failed.epoch or 1) - 1, (failed.step or 1) - 1
    if len(dropped) >= MAX_ROLLBACKS or position in dropped:
        raise NonFiniteLossError(
            f"{failed} {len(dropped)} batches have already been left out of this run, so training stops; earlier "
            "checkpoints are left as they are."
        )
    run_dir.leave_out(*position, plan.accumulation_steps)
    logger.warning(f"{failed} Training goes back to the newest checkpoint, and goes on without that batch.")


def positions(left_out: list[list[int]], accumulation_steps: int) -> frozenset[tuple[int, int]]:
    """The epochs and steps, from 0, of batches that are left out.

    Args:
        left_out: epoch, step and accumulation steps of each, as noted in the run directory.
        accumulation_steps: of the plan, which may since have been multiplied, so that batches are smaller.

    Example:
        >>> sorted(positions([[0, 3, 1]], 2))
        [(0, 6), (0, 7)]
    """
    found = set()
    for epoch, step, earlier_steps in left_out:
        parts = accumulation_steps // earlier_steps
        found |= {(epoch, step * parts + part) for part in range(parts)}
    return frozenset(found)


class NotRepeated(Exception):
    """Signals that repeating the steps has not repeated the fault."""


class UntilFault(keras.callbacks.Callback):
    """Ends a session that looks for a fault where it must have occurred.

    Args:
        position: the epoch and the step by which it has occurred, from 1.
    """

    tfaccel_windows = True

    def __init__(self, position: tuple[int, int]) -> None:
        super().__init__()
        self._position = position
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Takes note of the epoch."""
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Ends after the step."""
        if (self._epoch + 1, batch + 1) >= self._position:
            raise NotRepeated
