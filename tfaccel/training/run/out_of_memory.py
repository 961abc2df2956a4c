"""Out of memory while training: what may be done about it, and the plan with smaller batches.

The batch of a replica is halved and the accumulation steps are doubled, which keeps the global batch. That computes the
same mean gradient, except where a model or its data depend on which rows are processed together, or an epoch is not
made of whole batches: then it is refused.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import keras
import tensorflow as tf

from tfaccel.data.given_datasets import GivenDataset, GivenPyDataset
from tfaccel.errors import OutOfMemoryError
from tfaccel.planning.placements import SET_BY_YOU
from tfaccel.planning.plan import Plan, override_flag
from tfaccel.planning.workload import Workload
from tfaccel.training.proof.micro_batches import what_depends_on_micro_batches
from tfaccel.training.run.changed_accumulation import why_epochs_differ
from tfaccel.training.steps.model_parts import has_own_train_step, stepping_optimizers
from tfaccel.training.steps.replicas import Replicas

if TYPE_CHECKING:
    from tfaccel.training.run.run_dir import RunDir
    from tfaccel.training.run.train_session import Outcome, TrainSession
    from tfaccel.training.runtime import Runtime

logger = logging.getLogger("tfaccel")

# TensorFlow also raises ResourceExhaustedError for a full disk, too many open files and long messages.
_SHORT_OF_MEMORY = re.compile(r"\bOOM\b|out of memory|failed to allocate|allocating \d+ bytes", re.IGNORECASE)
_DETAIL = re.compile(r"OOM when allocating tensor with shape\[[\d,]*\]")
MAX_CANCELLED = 2
_REMEDIES = (
    "a smaller model, dtype_policy='mixed_bfloat16' or 'mixed_float16' (--dtype_policy), rematerialization=True "
    "(--set=rematerialization=on), or more devices"
)


class StepCancelled(Exception):
    """Signals that one of several replicas has failed, and that TensorFlow shows only that another was cancelled."""


class BatchTooLarge(Exception):
    """Signals that a run ran out of memory, and may continue with smaller batches.

    Attributes:
        plan: the plan with half the batch of a replica.
        detail: what could not be allocated.
    """

    def __init__(self, plan: Plan, detail: str) -> None:
        super().__init__(detail)
        self.plan = plan
        self.detail = detail


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of TensorFlow means that memory is short, on the host or on a device.

    Example:
        >>> is_out_of_memory(tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor with shape[9]"))
        True
        >>> is_out_of_memory(tf.errors.ResourceExhaustedError(None, None, "model.keras; No space left on device"))
        False
    """
    is_shortage = isinstance(error, tf.errors.ResourceExhaustedError | tf.errors.InternalError)
    return is_shortage and _SHORT_OF_MEMORY.search(str(error)) is not None


@contextlib.contextmanager
def smaller_batches_if_out_of_memory(
    model: keras.Model, workload: Workload, plan: Plan, replicas: Replicas
) -> Iterator[None]:
    """Within the block, running out of memory raises `BatchTooLarge`.

    Args:
        model: the compiled model that is trained.
        workload, plan, replicas: what it is trained with.

    Raises:
        BatchTooLarge: if the run may continue with smaller batches.
        StepCancelled: if one of several replicas has failed, and it is not known how.
        OutOfMemoryError: if it may not; the message says why, and what helps.
    """
    try:
        yield
    except tf.errors.CancelledError as error:
        if replicas.num_workers > 1 or replicas.num_replicas == 1:
            raise
        raise StepCancelled from error
    except (tf.errors.ResourceExhaustedError, tf.errors.InternalError) as error:
        if not is_out_of_memory(error):
            raise
        found = _DETAIL.search(str(error))
        detail = found[0] if found else "the device's memory is exhausted"
        reason = why_not_smaller(model, workload, plan, replicas)
        if reason is None:
            raise BatchTooLarge(with_smaller_batches(plan), detail) from None
        raise OutOfMemoryError(
            f"Training ran out of memory with batches of {plan.micro_batch_size} rows per replica ({detail}). {reason}"
        ) from error


def with_smaller_batches(plan: Plan) -> Plan:
    """The plan with half the batch of a replica and twice the accumulation steps: the same global batch.

    Example:
        >>> plan = with_smaller_batches(Plan(strategy="none", devices=("CPU:0",), global_batch_size=8))
        >>> plan.global_batch_size, plan.accumulation_steps, plan.micro_batch_size
        (8, 2, 4)
    """
    reason = f"Batches of {plan.micro_batch_size} rows per replica ran out of memory."
    reasons = {**dict(plan.reasons), "accumulation_steps": reason}
    return replace(plan, accumulation_steps=2 * plan.accumulation_steps, reasons=tuple(reasons.items()))


def why_not_smaller(model: keras.Model, workload: Workload, plan: Plan, replicas: Replicas) -> str | None:
    """Why a run may not continue with half the batch and twice the accumulation steps, and what helps; or None."""
    flag, steps = override_flag("accumulation_steps"), 2 * plan.accumulation_steps
    size = plan.micro_batch_size
    if size == 1:
        return f"One row is the smallest batch. What helps: {_REMEDIES}."
    if size % 2:
        return (
            f"{size} rows cannot be halved. Set accumulation_steps to a multiple of {plan.accumulation_steps} "
            f"({flag}=NUMBER) that divides the global batch into smaller ones, or choose another global_batch_size; or "
            f"use {_REMEDIES}."
        )
    to_allow = f"set accumulation_steps={steps} ({flag}={steps})"
    if dict(plan.reasons).get("accumulation_steps") == SET_BY_YOU:
        return f"accumulation_steps={plan.accumulation_steps} was set by you, and is not changed: {to_allow}."
    if replicas.num_workers > 1:
        return f"Several workers do not change their plan while they train: {to_allow} on all workers, and start again."
    if plan.embedding_updates != "keras":
        return (
            "Accumulated gradients are as large as their tables, so that embedding_updates="
            f"{plan.embedding_updates!r} needs whole batches: use a smaller global_batch_size, or {_REMEDIES}."
        )
    found = _what_depends_on_the_batch(model, workload, plan, replicas)
    if found is None:
        return None
    return f"The batch is not halved by itself, because {found}. If that is acceptable, {to_allow}; or use {_REMEDIES}."


def _what_depends_on_the_batch(model: keras.Model, workload: Workload, plan: Plan, replicas: Replicas) -> str | None:
    """What would give other results with smaller batches; None if nothing is found."""
    if not has_own_train_step(model):
        for optimizer in stepping_optimizers(model.optimizer):
            own = optimizer.gradient_accumulation_steps or 1
            if own != plan.accumulation_steps:
                return f"the optimizer accumulates gradients itself, over {own} batches"
    if isinstance(workload.train_data, GivenDataset | GivenPyDataset):
        return f"the {workload.train_data.what} decides how many rows a batch has: make its batches half as large"
    size = plan.global_batch_size // plan.accumulation_steps
    batch = next(iter(workload.train_data(size, seed=0, epoch=0).take(1)), None)
    if batch is None:
        return None
    sums_duplicates = plan.sum_duplicate_indices or plan.accumulation_steps > 1
    return what_depends_on_micro_batches(model, replicas, batch, sums_duplicates=sums_duplicates) or why_epochs_differ(
        workload, plan
    )


def retry_text(before: Plan, detail: str, place: str, after: Plan) -> str:
    """The line that is logged when a run continues with smaller batches."""
    steps = after.accumulation_steps
    return (
        f"Out of memory with batches of {before.micro_batch_size} rows per replica ({detail}): training continues "
        f"{place} with {after.micro_batch_size} rows and accumulation_steps={steps}, so that the global batch stays "
        f"{after.global_batch_size}. To start with it: {override_flag('accumulation_steps')}={steps}"
    )


def trained_within_memory(
    begin: Callable[[Plan], TrainSession],
    run: Callable[[TrainSession], Outcome],
    plan: Plan,
    run_dir: RunDir,
    runtime: Runtime,
) -> tuple[Plan, Outcome]:
    """Runs a session; if it runs out of memory, another one continues with smaller batches.

    When memory is short on one of several replicas, TensorFlow may show only that the others were cancelled. Then the
    steps since the newest checkpoint are repeated, at most twice in a row, to the same results or to the error itself.

    The failed session's model and data are released, whatever its last step has changed. The new one starts from the
    newest checkpoint of the run, or over, with the same random generators: no example is lost or trained twice.

    Args:
        begin: makes the session of a plan.
        run: runs a session.
        plan: the plan to begin with.
        run_dir, runtime: the run's directory, and its runtime, entered.

    Returns:
        The plan that the run ended with, and its outcome.

    Raises:
        OutOfMemoryError: if the batch may not be split further.
    """
    failed: tuple[Plan, str] | None = None
    num_cancelled = 0
    while True:
        session = begin(plan)
        plan = session.plan
        if failed is not None:
            logger.warning(retry_text(*failed, session.place, plan))
        try:
            return plan, run(session)
        except BatchTooLarge as error:
            failed, plan, num_cancelled = (plan, error.detail), error.plan, 0
        except StepCancelled as error:
            failed, num_cancelled = None, num_cancelled + 1
            if num_cancelled > MAX_CANCELLED:
                raise error.__cause__ or error from None
            logger.warning(
                "A replica was cancelled, because another one had failed; TensorFlow does not say how (often: out of "
                "memory). The steps since the newest checkpoint are repeated."
            )
        del session
        gc.collect()  # models and their graphs refer to each other
        run_dir.start_again()
        runtime.seed_generators()
