"""Checkpoints of the complete training state: what they hold, read from a model and written to one.

A checkpoint holds what an uninterrupted run has in memory between two steps: weights, optimizer state, dropout seeds
and states of recurrent layers (neither of which Keras saves), accumulated gradients, metric state, callback state, and
the position in the data. A resumed run ends with the same weights as an uninterrupted one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.errors import RunDirError
from tfaccel.training.private.private_api import tf_variable
from tfaccel.training.private.private_random import SEED_STRIDE, global_seed_state
from tfaccel.training.private.private_slots import AbsentSlot
from tfaccel.training.run.checkpoint_files import Checkpoint, get_bytes, plain, typed
from tfaccel.training.steps.model_parts import (
    accumulators_by_replica,
    get_optimizers,
    unlisted_variables,
    untracked_variables,
)
from tfaccel.training.steps.replica_state import align_seeds, average_drifting, seed_variables, write_seeds
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.steps.slots import placed_slots, rounded_slots, value_of_slot

_MESSAGE_BYTES = 1 << 26

Arrays = dict[str, np.ndarray]
_CSV = "csv"


def read_state(model: keras.Model, replicas: Replicas) -> dict[str, np.ndarray]:
    """The state of a model and its optimizers as arrays. All workers must call it together.

    Moving statistics are averaged over the replicas first. Metrics and accumulated gradients are partial sums; they are
    stored per replica, along a new first axis, so that a resumed sum is bit-identical. So are the states of recurrent
    layers, which belong to the replica's rows. Slots that other workers hold are gathered one by one, for the chief.
    """
    align_seeds(model, replicas)
    average_drifting(model, replicas)
    state = {f"seed/{i}": v.numpy() for i, v in enumerate(seed_variables(model))}
    placed, rounded = placed_slots(model), rounded_slots(model)
    for name, variable, is_by_replica in _variables(model):
        components = _components(variable, replicas)
        if id(variable) in placed:
            value = value_of_slot(variable, placed[id(variable)], replicas)
            state[name] = value if replicas.is_chief else np.zeros((), value.dtype)  # only the chief keeps them all
        elif is_by_replica:
            parts = [component.numpy() for component in components]
            state[name] = _of_all_workers(parts[0][None] if len(parts) == 1 else np.stack(parts), replicas)
        else:
            state[name] = components[0].numpy()
        if id(variable) in rounded:
            state[name] = state[name].astype(np.float32)
    return state


def write_state(model: keras.Model, replicas: Replicas, state: dict[str, np.ndarray]) -> None:
    """Writes the state that `read_state` returned to all replicas."""
    seeds = seed_variables(model)
    if f"seed/{len(seeds)}" in state:  # the stopped run had created Keras's global seed generator
        keras.random.uniform(())
        seeds = seed_variables(model)
    elif seeds and f"seed/{len(seeds) - 1}" not in state and global_seed_state() is seeds[-1]:
        # Only strategies create it before anything is drawn from it: one device, which wrote this, has drawn nothing.
        state = {**state, f"seed/{len(seeds) - 1}": _first_replicas_state(seeds[-1], replicas)}
    expected = {f"seed/{i}" for i in range(len(seeds))} | {name for name, _, _ in _variables(model)}
    if expected != set(state):
        odd = sorted(expected ^ set(state))[0]
        if all(name.startswith("state/") for name in expected - set(state)) and not set(state) - expected:
            names = ", ".join(variable.path for variable in untracked_variables(model))
            raise RunDirError(
                "The checkpoint was written by an older version of tfaccel, without the states of recurrent layers "
                f"({names:.200}), so the run cannot continue exactly. Start over in a new run directory."
            )
        raise RunDirError(f"The checkpoint belongs to another model or optimizer: {odd} is in only one of them.")
    rounded = rounded_slots(model)
    for name, variable, is_by_replica in _variables(model):
        parts = [state[name]] * replicas.num_replicas
        if is_by_replica:
            split = _rows_for if name.startswith("state/") else _parts_for
            parts = split(state[name], replicas.num_replicas)
        if tuple(parts[0].shape) != tuple(variable.shape):
            raise RunDirError(
                f"The checkpoint belongs to another model: {name} ({variable.path}) has shape {tuple(parts[0].shape)} "
                f"there and {tuple(variable.shape)} here."
            )
        for replica, component in enumerate(_components(variable, replicas)):
            value = parts[replicas.first_replica + replica]
            component.assign(tf.cast(value, component.dtype) if id(variable) in rounded else value)
    if seeds:
        write_seeds(seeds, replicas, [state[f"seed/{i}"] for i in range(len(seeds))])


def _first_replicas_state(variable: keras.Variable, replicas: Replicas) -> np.ndarray:
    """The state of a seed generator on the first of all replicas, from which the others' are derived."""
    seed, counter = replicas.components([variable], 0)[0].numpy()
    return np.array([seed - np.uint32(replicas.first_replica * SEED_STRIDE), counter], np.uint32)


def bad_weight(model: keras.Model, state: Mapping[str, np.ndarray]) -> str | None:
    """The path of the first weight that has a NaN, or if it is trained, an infinite value; None if there is none."""
    for i, variable in enumerate(model.weights):
        value = state[f"weight/{i}"]
        if np.issubdtype(np.asarray(value).dtype, np.integer) or value.dtype == bool:
            continue
        wide = value.astype(np.float32) if value.dtype.itemsize < 4 else value
        if np.isnan(wide).any() or (variable.trainable and not np.isfinite(wide).all()):
            return str(variable.path)
    return None


def _variables(model: keras.Model) -> Iterator[tuple[str, keras.Variable, bool]]:
    """Yields name, variable, and whether each replica has a value of its own: a partial sum, or states of its rows."""
    for i, variable in enumerate(model.weights):
        yield f"weight/{i}", variable, False
    for i, variable in enumerate(model.metrics_variables):
        yield f"metric/{i}", variable, True
    for i, variable in enumerate(untracked_variables(model)):
        yield f"state/{i}", variable, True
    for owner, optimizer in get_optimizers(model).items():
        accumulators = {id(v) for v in accumulators_by_replica(optimizer)}
        for i, variable in enumerate(optimizer.variables):
            yield f"{owner}/{i}", variable, id(variable) in accumulators
        for i, variable in enumerate(unlisted_variables(optimizer)):
            yield f"{owner}/unlisted/{i}", variable, False


def _components(variable: keras.Variable, replicas: Replicas) -> list[tf.Variable]:
    """The values of the local replicas; none of a slot that another worker holds."""
    if isinstance(tf_variable(variable), AbsentSlot):
        return []
    return replicas.copies([variable])


def _parts_for(parts: np.ndarray, num_replicas: int) -> list[np.ndarray]:
    """Partial sums for another number of replicas: the total on the first one, zeros on the others."""
    if len(parts) == num_replicas:
        return list(parts)
    total = np.sum(parts, axis=0, dtype=parts.dtype)
    return [total] + [np.zeros_like(total)] * (num_replicas - 1)


def _rows_for(parts: np.ndarray, num_replicas: int) -> list[np.ndarray]:
    """The states of the rows of a global batch for another number of replicas, in the order of the rows."""
    if len(parts) == num_replicas:
        return list(parts)
    rows = parts.reshape(-1, *parts.shape[2:])
    return np.array_split(rows, num_replicas)


def _of_all_workers(parts: np.ndarray, replicas: Replicas) -> np.ndarray:
    """The values of all replicas, in order, gathered from the local ones of each worker."""
    if replicas.num_workers == 1:
        return parts
    strategy, first = replicas.strategy, replicas.first_replica
    values = strategy.experimental_distribute_values_from_function(
        lambda context: tf.convert_to_tensor(parts[context.replica_id_in_sync_group - first][None])
    )
    gathered: np.ndarray = strategy.gather(values, axis=0).numpy()
    return gathered


def checkpoint_of_chief(found: Checkpoint | None, replicas: Replicas) -> Checkpoint | None:
    """The checkpoint that the chief has read, on all workers, which need no access to its disk.

    It is sent in messages of about 64 MB, or of one array if that is larger.
    """
    if replicas.num_workers == 1:
        return found
    arrays, position = found or ({}, {})
    names = [(name, str(array.dtype), str(plain(array).dtype), array.shape) for name, array in arrays.items()]
    header = replicas.bytes_of_chief(json.dumps([names, position]).encode() if found else b"")
    if not header:
        return None
    names, position = json.loads(header)
    received: dict[str, np.ndarray] = {}
    for group in _messages(names):
        sent = [get_bytes(plain(arrays[name])) for name, *_ in group] if replicas.is_chief else []
        content, start = bytearray(replicas.bytes_of_chief(b"".join(sent))), 0
        for name, dtype, stored, shape in group:
            array = np.frombuffer(content, stored, int(np.prod(shape)), start).reshape(shape)
            received[name], start = typed(array, dtype), start + array.nbytes
    return (arrays if replicas.is_chief else received), position


def _messages(names: list[Any]) -> Iterator[list[Any]]:
    """Consecutive arrays in groups of at most `_MESSAGE_BYTES`, or of one."""
    group: list[Any] = []
    num_bytes = 0
    for one in names:
        size = np.dtype(one[2]).itemsize * int(np.prod(one[3]))
        if group and num_bytes + size > _MESSAGE_BYTES:
            yield group
            group, num_bytes = [], 0
        group.append(one)
        num_bytes += size
    if group:
        yield group
