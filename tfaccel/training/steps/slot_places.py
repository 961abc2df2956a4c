"""Where an optimizer's slots are: on every replica, each on the replica that updates its weight, or on the host.

With `optimizer_state="sharded"`, each weight has an owner: the replica that updates it, and alone has its slots. Owners
are chosen greedily by size, as in PyTorch's `ZeroRedundancyOptimizer`, and alike on all workers. With "host", all slots
are in the memory of each process's CPU. A slot keeps its shape, dtype and Keras variable wherever it is, so that
checkpoints and files have the same format.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.training.private import private_collectives, private_slots
from tfaccel.training.private.private_api import tf_variable
from tfaccel.training.steps.absent_slot import AbsentSlot
from tfaccel.training.steps.model_parts import get_optimizers, inner_optimizer, stepping_optimizers
from tfaccel.training.steps.refused_apply import allow_apply, refuse_apply
from tfaccel.training.steps.replicas import Replicas

REPLICATED, SHARDED, HOST = "replicated", "sharded", "host"
_ON_HOST = -1  # in place of a replica
_SLOTS_ELSEWHERE = (
    "This optimizer's slots are not on every replica, since its model was trained with an optimizer_state other than "
    "'replicated'. Train with tfaccel.fit, or compile the model with a new optimizer for Model.fit."
)


@dataclass
class SlotPlaces:
    """The places of the slots of one optimizer.

    Attributes:
        how: "sharded" or "host".
        owners: the replica that updates each weight, by the optimizer that steps it (by id) and position there; -1 for
            the host.
        replica_of_slot: the replica that holds a slot, by id; -1 for the host of each process.
    """

    how: str
    owners: dict[int, list[int]] = field(default_factory=dict)
    replica_of_slot: dict[int, int] = field(default_factory=dict)


_places: weakref.WeakKeyDictionary[keras.optimizers.Optimizer, SlotPlaces] = weakref.WeakKeyDictionary()


def get_places(optimizer: keras.optimizers.Optimizer) -> SlotPlaces | None:
    """Where the slots of an optimizer are; None if they are on every replica."""
    return _places.get(inner_optimizer(optimizer))


def owners_of_weights(optimizer: keras.optimizers.Optimizer, places: SlotPlaces) -> dict[int, int]:
    """The replica that updates each weight of an optimizer, by the weight's id."""
    return {
        id(weight): owner
        for one in stepping_optimizers(optimizer)
        for weight, owner in zip(_weights(one), places.owners[id(one)], strict=True)
    }


def placed_slots(model: keras.Model) -> dict[int, SlotPlaces]:
    """The slots of a model's optimizers that are not on every replica, by id, with their optimizer's places."""
    each = [get_places(optimizer) for optimizer in get_optimizers(model).values()]
    return {key: places for places in each if places is not None for key in places.replica_of_slot}


def copy_absent_slots(model: keras.Model, replicas: Replicas) -> None:
    """Gives the chief, which saves, copies of the slots that other workers hold. All workers call it together."""
    placed = placed_slots(model) if replicas.num_workers > 1 else {}
    for slot in (slot for optimizer in get_optimizers(model).values() for slot in optimizer.variables):
        if id(slot) in placed:
            value = value_of_slot(slot, placed[id(slot)], replicas)
            if replicas.is_chief and isinstance(tf_variable(slot), AbsentSlot):
                tf_variable(slot).copy = value


def drop_copies(model: keras.Model) -> None:
    """Frees what `copy_absent_slots` has copied."""
    for optimizer in get_optimizers(model).values():
        for slot in optimizer.variables:
            if isinstance(tf_variable(slot), AbsentSlot):
                tf_variable(slot).copy = None


def owners_by_size(sizes: Sequence[int], num_replicas: int) -> list[int]:
    """The owner of each of several things: the largest first, each to the replica with the least so far.

    Example:
        >>> owners_by_size([5, 90, 40, 50, 5], 2)
        [1, 0, 1, 1, 1]
    """
    loads, owners = [0] * num_replicas, [0] * len(sizes)
    for place in sorted(range(len(sizes)), key=lambda place: (-sizes[place], place)):
        owners[place] = loads.index(min(loads))
        loads[owners[place]] += sizes[place]
    return owners


def place_slots(optimizer: keras.optimizers.Optimizer, replicas: Replicas, how: str) -> SlotPlaces | None:
    """Moves the slots of a built optimizer to their places, with their values, unless they are there.

    Args:
        optimizer: the optimizer; all workers call it together.
        replicas: of its model.
        how: "replicated", "sharded" or "host".

    Returns:
        The places; None for "replicated".
    """
    inner = inner_optimizer(optimizer)
    known = _places.get(inner)
    if known is not None and known.how != how:
        _replicate(known, inner, replicas)
        allow_apply(optimizer, _SLOTS_ELSEWHERE)
        known = None
    if known is not None or how == REPLICATED:
        return known
    places = SlotPlaces(how)
    for one in stepping_optimizers(optimizer):
        slots = private_slots.slots_by_weight(one) if one.built else []
        sizes = [sum(map(num_bytes, own)) or num_bytes(v) for own, v in zip(slots, _weights(one), strict=True)]
        owners = owners_by_size(sizes, replicas.num_replicas) if how == SHARDED else [_ON_HOST] * len(sizes)
        places.owners[id(one)] = owners
        for slot, owner in ((slot, owner) for owner, own in zip(owners, slots, strict=True) for slot in own):
            places.replica_of_slot[id(slot)] = owner
            _move(slot, replicas, owner)
    _places[inner] = places
    if replicas.num_replicas > 1:  # Keras would update each slot once for every replica
        refuse_apply(optimizer, _SLOTS_ELSEWHERE)
    return places


def _weights(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    return private_slots.trained_variables(optimizer) if optimizer.built else []


def _move(slot: keras.Variable, replicas: Replicas, replica: int) -> None:
    """Stores a slot on one replica's device, or on the host for -1; drops it on other workers."""
    local = 0 if replica < 0 else replica - replicas.first_replica
    if not 0 <= local < len(replicas.devices):
        worker = replica // len(replicas.devices)
        private_slots.set_stored(slot, AbsentSlot(slot.path, slot.dtype, worker))
        return
    with tf.init_scope(), tf.device(host_device(replicas) if replica < 0 else replicas.devices[local]):
        value = tf.identity(replicas.components([slot], local)[0])
        private_slots.set_stored(slot, private_slots.plain_variable(value, slot.name))


def _replicate(places: SlotPlaces, inner: keras.optimizers.Optimizer, replicas: Replicas) -> None:
    """Gives every replica all slots again, with their values."""
    for slot in inner.variables:
        if id(slot) in places.replica_of_slot:
            value = value_of_slot(slot, places, replicas)
            with tf.init_scope(), replicas.strategy.scope():
                private_slots.set_stored(slot, tf.Variable(value, trainable=False, dtype=slot.dtype, name=slot.name))
    del _places[inner]


def value_of_slot(slot: keras.Variable, places: SlotPlaces, replicas: Replicas) -> np.ndarray:
    """The value of a slot, wherever it is. All workers call it together."""
    replica = places.replica_of_slot[id(slot)]
    stored: Any = tf_variable(slot)
    if replicas.num_workers == 1 or replica < 0:
        return np.asarray(stored.numpy())
    value = None if isinstance(stored, AbsentSlot) else stored
    local = replica - replicas.first_replica
    return private_collectives.broadcast_array(
        replicas.strategy, value, local, tuple(slot.shape), tf.as_dtype(slot.dtype)
    )


def host_device(replicas: Replicas) -> str:
    """The CPU of this process."""
    before, device, _ = replicas.devices[0].rpartition("/device:")
    return f"{before}{device or '/device:'}CPU:0"


def num_bytes(variable: keras.Variable) -> int:
    """The size of a variable's value."""
    return int(math.prod(variable.shape)) * int(tf.as_dtype(variable.dtype).size)


def slot_bytes(optimizer: keras.optimizers.Optimizer, replicas: Replicas) -> dict[str, int]:
    """Bytes of an optimizer's slots on each device of this process."""
    found: dict[str, int] = {}
    for one in stepping_optimizers(optimizer):
        for slot in (slot for own in private_slots.slots_by_weight(one) for slot in own):
            for part in replicas.strategy.experimental_local_results(tf_variable(slot)):
                size = int(math.prod(part.shape)) * int(tf.as_dtype(part.dtype).size)
                found[part.device] = found.get(part.device, 0) + size
    found.pop("", None)
    return found
