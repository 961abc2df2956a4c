"""The update of weights in the memory of the host, where the optimizer's slots are.

Gradients travel to the host, and new weights back. The host's copies of the weights are read from the device before
each update, so that a weight that something else has changed is never stale.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfaccel.graph_function import graph_function
from tfaccel.training.private import private_api, private_slots
from tfaccel.training.private.private_step_state import SCRATCH
from tfaccel.training.steps.gradients import same_numbers_on_all
from tfaccel.training.steps.model_parts import accumulators_by_replica, stepping_optimizers, unlisted_variables
from tfaccel.training.steps.overrides import instance_attributes
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.steps.slot_places import get_places, host_device


class HostUpdate:
    """Runs an optimizer on the host, once in each process.

    Args:
        optimizer: a built optimizer whose slots are on the host.
        replicas: of its model.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer, replicas: Replicas) -> None:
        self._optimizer, self._replicas = optimizer, replicas
        self._copies: dict[int, tf.Variable] = {}

    def run(self, gradients: list[Any], apply: Callable[[list[Any]], None], *, jit_compile: bool) -> None:
        """Updates the weights of all local replicas.

        Args:
            gradients: the summed gradients of one replica.
            apply: calls the optimizer with gradients on the host.
            jit_compile: compile the update with XLA.
        """
        with tf.device(host_device(self._replicas)):
            moved = self._moved()
            copies = [self._get_copy(variable) for variable in moved]
            for copy, component in zip(copies, self._replicas.components(moved, 0), strict=True):
                copy.assign(tf.identity(component))

            steppers = {id(one): one for one in (self._optimizer, *stepping_optimizers(self._optimizer))}
            keys = [(one, private_slots.get_keys(one, moved, copies)) for one in steppers.values()]

            def update(gradients: list[Any]) -> None:
                with contextlib.ExitStack() as stack:
                    stack.enter_context(private_api.local_variables(moved, copies))
                    stack.enter_context(private_api.single_device_optimizer(self._optimizer))
                    for one, attributes in keys:
                        stack.enter_context(instance_attributes(one, attributes))
                    stack.enter_context(self._without_accumulators())
                    stack.enter_context(same_numbers_on_all(self._replicas.num_workers))
                    apply(gradients)

            run = graph_function(update, jit_compile=True) if jit_compile else update
            run([_on_this_device(gradient) for gradient in gradients])
            new = [copy.read_value() for copy in copies]
        for replica, device in enumerate(self._replicas.devices):
            with tf.device(device or None):
                for component, value in zip(self._replicas.components(moved, replica), new, strict=True):
                    component.assign(tf.identity(value))

    def _moved(self) -> list[keras.Variable]:
        """The weights, and what the optimizer keeps beside slots and accumulated gradients, such as its counter."""
        places = get_places(self._optimizer)
        stay = set() if places is None else set(places.replica_of_slot)
        stay |= {id(one) for one in accumulators_by_replica(self._optimizer)}
        weights = [v for one in stepping_optimizers(self._optimizer) for v in private_slots.trained_variables(one)]
        every = {id(one): one for one in (*weights, *self._optimizer.variables, *unlisted_variables(self._optimizer))}
        return [one for key, one in every.items() if key not in stay]

    def _get_copy(self, variable: keras.Variable) -> tf.Variable:
        if id(variable) not in self._copies:
            value = self._replicas.components([variable], 0)[0]
            with tf.init_scope(), tf.device(host_device(self._replicas)):
                copy = private_slots.plain_variable(tf.identity(value), variable.name)
            setattr(copy, SCRATCH, True)
            self._copies[id(variable)] = copy
        return self._copies[id(variable)]

    @contextlib.contextmanager
    def _without_accumulators(self) -> Iterator[None]:
        """The gradients include what was accumulated on the devices, where the accumulators are."""
        with contextlib.ExitStack() as stack:
            if accumulators_by_replica(self._optimizer):
                for one in stepping_optimizers(self._optimizer):
                    stack.enter_context(instance_attributes(one, private_slots.accumulating_nothing(one)))
            yield


def _on_this_device(gradient: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        shape = gradient.dense_shape
        return tf.IndexedSlices(
            tf.identity(gradient.values), tf.identity(gradient.indices), None if shape is None else tf.identity(shape)
        )
    return tf.identity(gradient)
