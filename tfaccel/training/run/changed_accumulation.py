"""A checkpoint for another number of accumulation steps: the same training state, counted in smaller batches.

A checkpoint counts batches, `accumulation_steps` of them per optimizer step. If each is split into `k` batches, the
position and the optimizers' counters are `k` times as large. Accumulated gradients are sums of the batches' means, and
the sum over `k` parts of a batch is `k` times its mean.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.errors import RunDirError
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload
from tfaccel.training.private.private_api import raw_iterations
from tfaccel.training.steps.model_parts import (
    accumulators_by_replica,
    get_accumulators,
    get_optimizers,
    inner_optimizer,
    stepping_optimizers,
    untracked_variables,
)


def parts_per_batch(position: dict[str, Any], accumulation_steps: int) -> int:
    """The number of batches into which each batch of a checkpoint is split.

    Args:
        position: the position of a checkpoint; without `accumulation_steps`, it has those of the run.
        accumulation_steps: those of the run that continues.

    Raises:
        RunDirError: if batches would have to be joined.

    Example:
        >>> parts_per_batch({"step": 3, "accumulation_steps": 2}, 4)
        2
    """
    before = position.get("accumulation_steps", accumulation_steps)
    if accumulation_steps % before:
        raise RunDirError(
            f"The checkpoint was written with accumulation_steps={before}, and can be continued with a multiple of it "
            f"only. Received: accumulation_steps={accumulation_steps}. Use accumulation_steps={before}, or a new run "
            "directory."
        )
    return int(accumulation_steps // before)


def in_parts(position: dict[str, Any], parts: int) -> dict[str, Any]:
    """A position counted in batches that are `parts` times smaller.

    Example:
        >>> in_parts({"epoch": 1, "step_in_epoch": 3, "step": 8}, 2)
        {'epoch': 1, 'step_in_epoch': 6, 'step': 16}
    """
    return {**position, **{name: parts * position[name] for name in ("step_in_epoch", "step")}}


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


def state_in_parts(
    state: dict[str, np.ndarray], model: keras.Model, parts: int, *, num_replicas: int
) -> dict[str, np.ndarray]:
    """The state of a checkpoint, for optimizers that accumulate over `parts` times as many batches.

    Args:
        state: the arrays of `read_state`, of the same model with fewer accumulation steps.
        model: the built model.
        parts: see `parts_per_batch`.
        num_replicas: number of replicas, each of which has its own accumulated gradients.

    Raises:
        RunDirError: if the model has states, which belong to the rows of a batch.
    """
    if parts == 1:
        return state
    if any(name.startswith("state/") for name in state):
        names = ", ".join(variable.path for variable in untracked_variables(model))
        raise RunDirError(
            f"The checkpoint holds states of recurrent layers ({names:.200}), one for each row of a batch, and cannot "
            "be continued in smaller batches. Use the accumulation_steps of the checkpoint, or a new run directory."
        )
    changed = dict(state)
    for owner, optimizer in get_optimizers(model).items():
        stepping, inner = stepping_optimizers(optimizer), inner_optimizer(optimizer)
        counters = {id(raw_iterations(one)) for one in (inner, *stepping)}  # a `MultiOptimizer` counts as well
        accumulators = {id(v) for one in stepping for v in get_accumulators(one)}
        by_replica = {id(v) for v in accumulators_by_replica(optimizer)}
        old = [state[f"{owner}/{i}"] for i in range(sum(name.startswith(f"{owner}/") for name in state))]
        is_new = len(old) == len(optimizer.variables) - len(accumulators)  # the checkpoint has no accumulators
        rest = iter(old)
        for i, variable in enumerate(optimizer.variables):
            if id(variable) in accumulators and is_new:
                shape = (num_replicas, *variable.shape) if id(variable) in by_replica else tuple(variable.shape)
                changed[f"{owner}/{i}"] = np.zeros(shape, keras.backend.standardize_dtype(variable.dtype))
                continue
            value = next(rest)
            scaled = id(variable) in counters or id(variable) in accumulators
            changed[f"{owner}/{i}"] = (value * np.asarray(parts, value.dtype)) if scaled else value
    return changed


def step_in_split_epoch(workload: Workload, plan: Plan, parts: int, *, seed: int, epoch: int, step: int) -> int:
    """Checks that an epoch can continue in smaller batches; returns its next step, at most the epoch's length.

    Args:
        workload, plan: what is trained, with the smaller batches.
        parts: the number of batches that each batch was split into.
        seed, epoch: of the run.
        step: the next step in the epoch, counted in smaller batches.

    Raises:
        RunDirError: if smaller batches have the rows in another order.
    """
    size = plan.global_batch_size // plan.accumulation_steps
    smaller = workload.train_data(size, seed=seed, epoch=epoch)
    whole = workload.train_data(size * parts, seed=seed, epoch=epoch)
    if not _have_equal_rows(whole.skip(step // parts).take(1), smaller.skip(step).take(parts)):
        raise RunDirError(
            f"The rows of workload {workload.name!r} come in another order, or are augmented differently, in batches "
            f"of {size}, so that an epoch cannot be continued with accumulation_steps={plan.accumulation_steps}. Start "
            "over with it in a new run directory."
        )
    length = int(smaller.cardinality())
    return min(step, length) if length > 0 else step


def why_epochs_differ(workload: Workload, plan: Plan) -> str | None:
    """Why an epoch has other optimizer steps in batches that are half as large; None if it has the same.

    Batches are accumulated across the end of an epoch, and all with equal weights, so an epoch must divide into whole
    batches.
    """
    size = plan.global_batch_size // plan.accumulation_steps
    whole, halves = (workload.train_data(rows, seed=0, epoch=0) for rows in (size, size // 2))
    if _shapes_of_rows(whole.take(1)) != _shapes_of_rows(halves.take(2)):
        return "the rows of a batch are padded to the longest of them"
    batches, half_batches = int(whole.cardinality()), int(halves.cardinality())
    if {_static_rows(whole), _static_rows(halves)} == {size, size // 2} and batches >= 0:  # all batches are full
        if half_batches == 2 * batches:
            return None
        return f"an epoch has {batches} batches of {size} rows, but {half_batches} of {size // 2}"
    rows = int(workload.train_data(1, seed=0, epoch=0).cardinality())
    rows = rows if rows >= 0 else workload.num_train_examples or 0
    if rows <= 0:
        return (
            "it is not known whether an epoch divides into whole batches (give the dataset a length with "
            "`tf.data.experimental.assert_cardinality`, or the workload num_train_examples)"
        )
    return f"an epoch of {rows} rows does not divide into batches of {size}" if rows % size else None


def _static_rows(dataset: tf.data.Dataset) -> int | None:
    """The number of rows of every batch, if it is fixed."""
    leaves = [leaf for leaf in keras.tree.flatten(dataset.element_spec) if leaf is not None and leaf.shape.rank]
    return leaves[0].shape[0] if leaves else None


def _shapes_of_rows(dataset: tf.data.Dataset) -> set[tuple[Any, ...]]:
    """The shapes of the rows of each batch, in the order of the tensors of a batch."""
    return {
        tuple(leaf.shape[1:] for leaf in keras.tree.flatten(batch) if isinstance(leaf, tf.Tensor)) for batch in dataset
    }


def _have_equal_rows(some: tf.data.Dataset, others: tf.data.Dataset) -> bool:
    """Whether the batches of two datasets have the same rows in the same order."""
    if _shapes_of_rows(some) != _shapes_of_rows(others):  # padded to the longest row
        return False
    found = [[keras.tree.flatten(batch) for batch in dataset] for dataset in (some, others)]
    leaves = [[tf.concat(parts, axis=0) for parts in zip(*batches, strict=True)] for batches in found]
    return len(leaves[0]) == len(leaves[1]) and all(
        one.shape == other.shape and bool(tf.reduce_all(tf.equal(one, other)))
        for one, other in zip(*leaves, strict=True)
    )
