"""Trains a run to its end: again with smaller batches if memory is short, again without batches that spoil it.

When memory is short on one of several replicas, TensorFlow may show only that the others were cancelled. Then the steps
since the newest checkpoint are repeated, at most twice in a row, to the same results or to the error itself.

Weights that have been updated with gradients that are NaN or infinite are lost. So the steps since the newest
checkpoint are repeated once, with steps that leave out such a batch (`tfaccel.training.steps.left_out`) and then end:
the weights are those from before the batch, and tell what it does to them. To go on ("rollback"), they are repeated
once more, without the batch.
"""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tfaccel.errors import DataError, NonFiniteLossError, RunStopped
from tfaccel.hardware.hardware import Hardware
from tfaccel.planning.option_checks import ROLLBACK, SKIP
from tfaccel.planning.plan import Plan, override_flag
from tfaccel.planning.workload import Workload
from tfaccel.training.run.augmentation_place import place_for_run
from tfaccel.training.run.faulty_batch import input_errors_named
from tfaccel.training.run.out_of_memory import BatchTooLarge, StepCancelled
from tfaccel.training.run.run_dir import RunDir
from tfaccel.training.run.run_options import RunOptions
from tfaccel.training.run.stop_signals import StopSignals
from tfaccel.training.run.train_session import NotRepeated, Outcome, TrainSession
from tfaccel.training.runtime import Runtime
from tfaccel.training.workers.lost_worker import lost_workers_named

logger = logging.getLogger("tfaccel")

MAX_CANCELLED = 2
MAX_ROLLBACKS = 10
_GO_ON = (
    'Start all workers again with the same command and resume="auto" (--resume=auto): training continues from the '
    "newest checkpoint in {}."
)


@contextlib.contextmanager
def errors_of_run_named(workload: Workload, run_dir: RunDir, runtime: Runtime) -> Iterator[None]:
    """Within the block, TensorFlow's errors about damaged input or lost workers become errors that name them."""
    with input_errors_named(workload), lost_workers_named(runtime.strategy, _GO_ON.format(run_dir.path)):
        yield


def train_until_done(
    workload: Workload,
    plan: Plan,
    run_dir: RunDir,
    options: RunOptions,
    *,
    runtime: Runtime,
    hardware: Hardware,
    signals: StopSignals,
) -> tuple[Plan, Outcome]:
    """Trains the run of a directory in one session, or in several that continue one another.

    A failed session's model and data are released, regardless of what its last step changed. The next one starts from
    the newest checkpoint of the run, or over, with the same random generators: no example is lost or trained twice.

    Args:
        workload, plan, run_dir, options: what to train, how, and where to.
        runtime, hardware: the plan's runtime, entered, and the machine.
        signals: what asks to stop.

    Returns:
        The plan that the run ended with, and its outcome.

    Raises:
        OutOfMemoryError: if the batch may not be split further.
        NonFiniteLossError: if the run stops; the message names the cause, if it was found.
    """
    shortage: tuple[Plan, str] | None = None
    num_cancelled = 0
    where: dict[str, Any] = {"runtime": runtime, "hardware": hardware, "signals": signals}
    while True:
        fault: NonFiniteLossError | None = None
        plan = place_for_run(workload, plan, run_dir, runtime, epochs=options.epochs)
        session = TrainSession(workload, plan, run_dir, options, **where)
        if shortage is not None:
            logger.warning(retry_text(*shortage, session.place, plan))
        shortage = None
        try:
            return plan, session.run()
        except BatchTooLarge as error:
            shortage, plan, num_cancelled = (plan, error.detail), error.plan, 0
        except StepCancelled as error:
            num_cancelled += 1
            if num_cancelled > MAX_CANCELLED:
                raise error.__cause__ or error from None
            logger.warning(
                "A replica was cancelled, because another one had failed; TensorFlow does not say how (often: out "
                "of memory). The steps since the newest checkpoint are repeated."
            )
        except NonFiniteLossError as error:
            fault, num_cancelled = error.with_traceback(None), 0
        dropped = session.dropped
        del session
        if fault is not None:
            if options.on_nonfinite == SKIP or fault.step is None:
                raise fault
            if not (fault.is_explained or plan.strategy == "tpu"):  # no step of a TPU can leave out its batch
                fault = _with_cause(fault, workload, plan, run_dir, options, **where)
            if options.on_nonfinite != ROLLBACK:
                raise fault
            _leave_out(fault, dropped, run_dir, plan)
        _start_again(run_dir, runtime)


def _start_again(run_dir: RunDir, runtime: Runtime) -> None:
    gc.collect()  # models and their graphs refer to each other
    run_dir.start_again()
    runtime.seed_generators()


def _with_cause(
    failed: NonFiniteLossError, workload: Workload, plan: Plan, run_dir: RunDir, options: RunOptions, **where: Any
) -> NonFiniteLossError:
    """The error with its cause, after repeating the steps since the newest checkpoint; unchanged if it is not found."""
    logger.warning(
        f"Something became NaN or infinite by step {failed.step} of epoch {failed.epoch}. The steps since the newest "
        "checkpoint are repeated to find the cause; Ctrl-C ends this."
    )
    _start_again(run_dir, where["runtime"])
    writes = run_dir.writes
    until = failed.epoch or 1, failed.step or 1
    try:
        TrainSession(workload, plan, run_dir, replace(options, until=until), **where).run()
    except NonFiniteLossError as found:
        return found.with_traceback(None) if found.step is not None else failed
    except (NotRepeated, BatchTooLarge, StepCancelled, DataError):  # DataError: a dataset that can be read once only
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


def retry_text(before: Plan, detail: str, place: str, after: Plan) -> str:
    """The line that is logged when a run continues with smaller batches."""
    steps = after.accumulation_steps
    return (
        f"Out of memory with batches of {before.micro_batch_size} rows per replica ({detail}): training continues "
        f"{place} with {after.micro_batch_size} rows and accumulation_steps={steps}, so that the global batch stays "
        f"{after.global_batch_size}. To start with it: {override_flag('accumulation_steps')}={steps}"
    )
