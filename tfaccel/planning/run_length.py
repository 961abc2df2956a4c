"""The length of a run, and the compile arguments of a workload for that length."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from tfaccel.errors import WorkloadError
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload
from tfaccel.planning.workload_calls import call_own, takes_num_steps


def get_run_epochs(workload: Workload, epochs: int | None) -> int:
    """The epochs of a run: those requested, or else the workload's recommendation.

    Raises:
        WorkloadError: if there is neither.
    """
    epochs = workload.epochs if epochs is None else epochs
    if epochs is None:
        raise WorkloadError(
            f"Workload {workload.name!r} does not say how many epochs it needs. Give epochs (--epochs=NUMBER)."
        )
    return epochs


def num_optimizer_steps(
    workload: Workload, plan: Plan | None = None, *, epochs: int | None = None, num_batches: int | None = None
) -> int | None:
    """The number of optimizer steps of a run.

    Args:
        workload: the workload.
        plan: the plan; None for the batch size that the workload recommends.
        epochs: epochs of the run; None for the workload's recommendation, or else 1.
        num_batches: batches in an epoch, before accumulation; None if unknown: it is then computed from
            `num_train_examples`, with full batches only.

    Returns:
        The number; None if the length of an epoch is unknown.

    Example:
        >>> work = Workload("made_up", object, dict, lambda *args, **kwargs: None, global_batch_size=32,
        ...                 num_train_examples=100, epochs=5)
        >>> num_optimizer_steps(work)
        15
    """
    accumulation = 1 if plan is None else plan.accumulation_steps
    if num_batches is None:
        if workload.num_train_examples is None:
            return None
        size = workload.global_batch_size if plan is None else plan.global_batch_size
        num_batches = workload.num_train_examples // max(1, size // accumulation)
    return max(1, (epochs or workload.epochs or 1) * num_batches // accumulation)


def compile_arguments(workload: Workload, *, num_steps: int | None) -> dict[str, Any]:
    """The compile arguments of a workload for a run of `num_steps` optimizer steps.

    Raises:
        WorkloadError: if `compile_args` fails, does not return a dict, or needs `num_steps` when it is unknown.
    """
    name = f"compile_args of workload {workload.name!r}"
    named = {}
    if takes_num_steps(workload.compile_args):
        needed = inspect.signature(workload.compile_args).parameters["num_steps"].default is inspect.Parameter.empty
        if num_steps is None and needed:
            raise WorkloadError(
                f"{name} takes num_steps, but the number of batches in an epoch is not known. Give the workload "
                "num_train_examples, or its dataset a length (`tf.data.experimental.assert_cardinality`)."
            )
        named = {} if num_steps is None else {"num_steps": num_steps}
    arguments = call_own(name, workload.compile_args, **named)
    if not isinstance(arguments, Mapping):
        raise WorkloadError(
            f"{name} must return a dict of the arguments of `Model.compile`, such as "
            f"{{'optimizer': 'adam', 'loss': 'mse'}}. Received: {arguments!r:.200}"
        )
    return dict(arguments)
