"""Where an optimizer's slots are, in which dtype, and whether they can be as a plan asks.

With `optimizer_state="sharded"`, each weight has an owner: the replica that updates it, and alone has its slots. Owners
are chosen greedily by size, as in PyTorch's `ZeroRedundancyOptimizer`, and alike on all workers. With "host", all slots
are in the memory of each process's CPU. A slot keeps its shape, dtype and Keras variable wherever it is, so that
checkpoints and files have the same format.

Slots in bfloat16 take half of the memory; the arithmetic of each update stays in float32. An update reads the slots of
a weight as float32, computes as Keras does, and rounds the new values to bfloat16, which keeps 8 bits of precision.
That is another algorithm, not only another rounding of the same: a slot that changes by less than 0.4 % in a step keeps
its value.
"""

from __future__ import annotations

import contextlib
import logging
import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.errors import PlanError
from tfaccel.training.private import private_slots, private_workers
from tfaccel.training.private.private_api import tf_variable, variable_index
from tfaccel.training.private.private_slots import AbsentSlot
from tfaccel.training.steps.model_parts import (
    get_accumulators,
    get_optimizers,
    get_seeds,
    inner_optimizer,
    stepping_optimizers,
)
from tfaccel.training.steps.overrides import (
    allow_apply,
    attributes_of_each,
    instance_attributes,
    left_by_user,
    refuse_apply,
)
from tfaccel.training.steps.replicas import Replicas

REPLICATED, SHARDED, HOST = "replicated", "sharded", "host"
_ON_HOST = -1  # in place of a replica
_SLOTS_ELSEWHERE = (
    "This optimizer's slots are not on every replica, since its model was trained with an optimizer_state other than "
    "'replicated'. Train with tfaccel.fit, or compile the model with a new optimizer for Model.fit."
)

logger = logging.getLogger("tfaccel")

_places: weakref.WeakKeyDictionary[keras.optimizers.Optimizer, SlotPlaces] = weakref.WeakKeyDictionary()
FLOAT32, BFLOAT16 = "float32", "bfloat16"
_INSTEAD = "Use optimizer_state='replicated'."
# What an optimizer of the user's own may define; other methods may look at all weights together.
_OWN_METHODS = frozenset(("__init__", "build", "update_step", "get_config", "from_config"))
_OWN_PACKAGES = ("keras.", "tfaccel.")


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
        [0, 0, 1, 1, 1]
    """
    loads, owners = [0] * num_replicas, [0] * len(sizes)
    for place in sorted(range(len(sizes)), key=lambda place: (-sizes[place], place)):
        owners[place] = loads.index(min(loads))
        loads[owners[place]] += sizes[place]
    return owners


def place_slots(optimizer: keras.optimizers.Optimizer, replicas: Replicas, how: str) -> SlotPlaces | None:
    """Moves the slots of a built optimizer to their places, with their values, unless they are there.

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
    return private_workers.broadcast_array(replicas.strategy, value, local, tuple(slot.shape), tf.as_dtype(slot.dtype))


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


def has_other_slots(optimizer: keras.optimizers.Optimizer, dtype: str) -> bool:
    """Whether slots of a built optimizer are stored in another dtype."""
    every = [slot for one in stepping_optimizers(optimizer) for own in _slots(one) for slot in own]
    return any(slot.dtype != dtype for slot in every)


def store_slots(optimizer: keras.optimizers.Optimizer, replicas: Replicas, dtype: str) -> None:
    """Stores the slots of a built optimizer, which are on every replica, in a dtype."""
    for one in stepping_optimizers(optimizer):
        if dtype == BFLOAT16 and isinstance(one, keras.optimizers.ScheduleFreeAdamW):
            raise PlanError(
                "optimizer_slots_dtype='bfloat16' is for slots that are statistics of gradients. Received: "
                "ScheduleFreeAdamW, which keeps weights in its slots. Use optimizer_slots_dtype='float32'."
            )
        for slot in (slot for own in _slots(one) for slot in own):
            if slot.dtype != dtype and not isinstance(tf_variable(slot), AbsentSlot):
                value = tf.cast(replicas.components([slot], 0)[0], dtype)
                with tf.init_scope(), replicas.strategy.scope():
                    private_slots.set_stored(slot, tf.Variable(value, trainable=False, name=slot.name))
                private_slots.set_dtype(slot, dtype)


def _slots(optimizer: keras.optimizers.Optimizer) -> list[list[keras.Variable]]:
    """The slots of each float32 weight that are float32 or bfloat16, but not the moving averages of weights."""
    if not optimizer.built:
        return []
    averages = {id(one) for one in private_slots.moving_averages(optimizer)} if optimizer.use_ema else set()
    each = zip(private_slots.trained_variables(optimizer), private_slots.slots_by_weight(optimizer), strict=True)
    return [
        [one for one in own if one.dtype in (FLOAT32, BFLOAT16) and weight.dtype == FLOAT32 and id(one) not in averages]
        for weight, own in each
    ]


def rounded_slots(model: keras.Model) -> set[int]:
    """The slots of a model's optimizers that are bfloat16, by id. Checkpoints have them in float32."""
    every = [one for optimizer in get_optimizers(model).values() for one in stepping_optimizers(optimizer)]
    return {id(slot) for one in every for own in _slots(one) for slot in own if slot.dtype == BFLOAT16}


def updated_in_float32(model: keras.Model) -> contextlib.AbstractContextManager[None]:
    """While tracing a training step: optimizers compute in float32 with slots that are bfloat16."""
    every = (one for optimizer in get_optimizers(model).values() for one in stepping_optimizers(optimizer))
    return attributes_of_each((one, {"update_step": _update_step(one)}) for one in every)


class _ScopeOf(keras.StatelessScope):
    """A scope that has the values of some variables; others are assigned as usual, such as an optimizer's counters."""

    def __init__(self, variables: Sequence[keras.Variable]) -> None:
        super().__init__()
        self._known = {id(variable) for variable in variables}

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        variable, value = update
        if id(variable) in self._known:
            super().add_update(update)
        else:
            tf_variable(variable).assign(value)


def _update_step(optimizer: Any) -> Any:
    def update_step(gradient: Any, variable: Any, learning_rate: Any) -> None:
        slots = [one for one in _slots(optimizer)[variable_index(optimizer, variable)] if one.dtype == BFLOAT16]
        known = {id(slot) for slot in slots}
        scope = _ScopeOf(slots)  # in which a slot's value is a float32 tensor
        for slot in slots:
            scope.add_update((slot, tf.cast(tf_variable(slot), FLOAT32)))

        def assign(target: Any, value: Any) -> None:
            if id(target) in known:
                scope.add_update((target, tf.cast(value, FLOAT32)))
            else:
                left_by_user(optimizer, "assign")(target, value)

        in_float32 = ((slot, private_slots.dtype_attribute(slot, FLOAT32)) for slot in slots)
        with scope, instance_attributes(optimizer, assigning_by(assign)), attributes_of_each(in_float32):
            dense = tf.convert_to_tensor(gradient)
            left_by_user(optimizer, "update_step")(dense, variable, learning_rate)
        for slot in slots:
            tf_variable(slot).assign(tf.cast(scope.get_current_value(slot), BFLOAT16))

    return update_step


def assigning_by(assign: Callable[[Any, Any], None]) -> dict[str, Any]:
    """Attributes of an optimizer that assigns variables by `assign(variable, value)`."""

    def cast(value: Any, target: Any) -> Any:
        return tf.cast(value, (target.value if isinstance(target, keras.Variable) else target).dtype)

    return {
        "assign": assign,
        "assign_add": lambda target, value: assign(target, target + cast(value, target)),
        "assign_sub": lambda target, value: assign(target, target - cast(value, target)),
    }


def placed_as_asked(model: keras.Model, replicas: Replicas, options: Any) -> str:
    """Stores the slots of a model's optimizers, as far as they are built, where and as they were asked for.

    Returns:
        Where slots are: "sharded", "host" or "replicated", also if a single replica has nobody to share them with.
    """
    how, dtype = _checked(model, replicas, options.optimizer_state, options.whole_step), options.optimizer_slots_dtype
    for optimizer in get_optimizers(model).values():
        if not optimizer.built and dtype != FLOAT32:
            raise PlanError(
                f"optimizer_slots_dtype={dtype!r} is for optimizers that are built before the first step. Received: "
                f"{type(optimizer).__name__}, which is not. Call its `build` with the weights that it trains."
            )
        if optimizer.built:
            if has_other_slots(optimizer, dtype):
                place_slots(optimizer, replicas, REPLICATED)
                store_slots(optimizer, replicas, dtype)
            place_slots(optimizer, replicas, how)
    return how


def _checked(model: keras.Model, replicas: Replicas, how: str, whole_step: bool) -> str:
    if how == REPLICATED:
        return how
    if whole_step or isinstance(replicas.strategy, tf.distribute.TPUStrategy):
        raise PlanError(
            "Replicas that run the whole step, as TPU cores do, each have their own optimizer state. Received: "
            f"optimizer_state={how!r} for such a model. {_INSTEAD}"
        )
    if how == SHARDED and replicas.num_replicas == 1:
        logger.warning("optimizer_state='sharded' changes nothing: there is one replica, which has all slots.")
        return REPLICATED
    if how == HOST and replicas.devices[0] in ("", host_device(replicas)) and not tf.config.list_logical_devices("GPU"):
        logger.warning("optimizer_state='host' saves nothing: the model is in the host's memory, as the slots are.")
    for name, optimizer in get_optimizers(model).items():
        for one in stepping_optimizers(optimizer):
            _check(name, one, how, is_part=one not in (optimizer, getattr(optimizer, "inner_optimizer", None)))
    return how


def check_callbacks(callbacks: Sequence[keras.callbacks.Callback], model: keras.Model, replicas: Replicas) -> None:
    """Checks that no callback of Keras reads slots where they are not."""
    if not placed_slots(model) or replicas.num_replicas == 1:
        return
    for callback in callbacks:
        name, instead = type(callback).__name__, None
        if isinstance(callback, keras.callbacks.SwapEMAWeights):
            instead = "the optimizer's use_ema alone"
        elif replicas.num_workers > 1 and isinstance(callback, keras.callbacks.BackupAndRestore):
            instead = "tfaccel.Resume"
        elif replicas.num_workers > 1 and isinstance(callback, keras.callbacks.ModelCheckpoint):
            instead = None if callback.save_weights_only else "save_weights_only=True or tfaccel.Resume"
        if instead is not None:
            raise PlanError(
                f"{name} reads the optimizer's slots on every replica, and they are not there. Use {instead}, or "
                "optimizer_state='replicated'."
            )


def _check(name: str, optimizer: Any, how: str, *, is_part: bool) -> None:
    kind = type(optimizer)
    if is_part and optimizer.gradient_accumulation_steps:
        raise PlanError(
            f"optimizer_state={how!r} is not for parts of a MultiOptimizer that accumulate gradients. Received: "
            f"{kind.__name__} in model.{name}. Set accumulation_steps in the plan, or use optimizer_state='replicated'."
        )
    if how == HOST and optimizer.use_ema and optimizer.gradient_accumulation_steps:
        raise PlanError(
            "optimizer_state='host' updates the moving average of weights once per update, and Keras at every "
            f"accumulated batch. Received: {kind.__name__} with use_ema=True and gradient_accumulation_steps="
            f"{optimizer.gradient_accumulation_steps}. Use optimizer_state='sharded' or 'replicated'."
        )
    own = sorted(
        attribute
        for one in kind.__mro__
        if not f"{one.__module__}.".startswith((*_OWN_PACKAGES, "builtins.", "tensorflow."))
        for attribute, value in vars(one).items()
        if callable(value) and attribute not in _OWN_METHODS
    )
    if own:
        raise PlanError(
            f"optimizer_state={how!r} is for optimizers that update each weight by itself, in `update_step`. Received: "
            f"{kind.__name__} in model.{name}, which also defines {', '.join(own)}. {_INSTEAD}"
        )
    if optimizer.built:
        _check_variables(name, optimizer, how)


def _check_variables(name: str, optimizer: Any, how: str) -> None:
    known = {id(slot) for slots in private_slots.slots_by_weight(optimizer) for slot in slots}
    known |= {id(one) for one in get_accumulators(optimizer)}
    odd = [one.path for one in optimizer.variables if id(one) not in known and len(one.shape)]
    if odd:
        raise PlanError(
            f"optimizer_state={how!r} is for optimizers that keep their slots in lists, with one for each weight. "
            f"Received: {type(optimizer).__name__} in model.{name}, which keeps {', '.join(odd[:3])} elsewhere. "
            f"{_INSTEAD}"
        )
    shared = [one.path for one in (*private_slots.shared_variables(optimizer), *get_seeds(optimizer))]
    if shared and how == SHARDED:
        raise PlanError(
            "optimizer_state='sharded' updates each weight on one replica, which knows nothing of the others' updates. "
            f"Received: {type(optimizer).__name__} in model.{name}, which keeps {', '.join(shared[:3])} for several "
            "weights together. Use optimizer_state='host' or 'replicated'."
        )
