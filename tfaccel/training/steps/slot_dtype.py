"""Slots of optimizers in bfloat16, which take half of the memory; the arithmetic of each update stays in float32.

An update reads the slots of a weight as float32, computes as Keras does, and rounds the new values to bfloat16, which
keeps 8 bits of precision. That is another algorithm, not only another rounding of the same: a slot that changes by less
than 0.4 % in a step keeps its value.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfaccel.errors import PlanError
from tfaccel.training.private import private_slots
from tfaccel.training.private.private_api import tf_variable, variable_index
from tfaccel.training.steps.absent_slot import AbsentSlot
from tfaccel.training.steps.model_parts import get_optimizers, stepping_optimizers
from tfaccel.training.steps.overrides import instance_attributes, left_by_user
from tfaccel.training.steps.replicas import Replicas

FLOAT32, BFLOAT16 = "float32", "bfloat16"


def has_other_slots(optimizer: keras.optimizers.Optimizer, dtype: str) -> bool:
    """Whether slots of a built optimizer are stored in another dtype."""
    every = [slot for one in stepping_optimizers(optimizer) for own in _slots(one) for slot in own]
    return any(slot.dtype != dtype for slot in every)


def store_slots(optimizer: keras.optimizers.Optimizer, replicas: Replicas, dtype: str) -> None:
    """Stores the slots of a built optimizer, which are on every replica, in a dtype.

    Raises:
        PlanError: for an optimizer whose slots are copies of weights.
    """
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


@contextlib.contextmanager
def updated_in_float32(model: keras.Model) -> Iterator[None]:
    """While tracing a training step: optimizers compute in float32 with slots that are bfloat16."""
    with contextlib.ExitStack() as stack:
        for optimizer in get_optimizers(model).values():
            for one in stepping_optimizers(optimizer):
                stack.enter_context(instance_attributes(one, {"update_step": _update_step(one)}))
        yield


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

        attributes = {
            "assign": assign,
            "assign_add": lambda target, value: assign(target, target + tf.cast(value, _get_dtype(target))),
            "assign_sub": lambda target, value: assign(target, target - tf.cast(value, _get_dtype(target))),
        }
        with contextlib.ExitStack() as stack:
            stack.enter_context(scope)
            stack.enter_context(instance_attributes(optimizer, attributes))
            for slot in slots:
                stack.enter_context(instance_attributes(slot, private_slots.dtype_attribute(slot, FLOAT32)))
            dense = tf.convert_to_tensor(gradient)
            left_by_user(optimizer, "update_step")(dense, variable, learning_rate)
        for slot in slots:
            tf_variable(slot).assign(tf.cast(scope.get_current_value(slot), BFLOAT16))

    return update_step


def _get_dtype(target: Any) -> Any:
    return target.value.dtype if isinstance(target, keras.Variable) else target.dtype
