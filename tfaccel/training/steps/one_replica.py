"""The steps of a model with one replica: Keras's own steps, as on one device, under any strategy."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from tfaccel.data.feeds import GraphBatches
from tfaccel.graph_function import graph_function
from tfaccel.training.private import private_api
from tfaccel.training.private.private_tensorflow import updates_of_copies
from tfaccel.training.steps.gradient_update import build_optimizer, descend, is_plain
from tfaccel.training.steps.gradients import CombineSlices
from tfaccel.training.steps.left_out import OneReplicaGuard
from tfaccel.training.steps.model_parts import get_optimizers, get_variables, have_values
from tfaccel.training.steps.overrides import instance_attributes, left_by_user
from tfaccel.training.steps.replicas import Replicas


class OneReplica:
    """Train, test and predict steps on one device.

    Under a strategy with one replica, Keras code uses the plain variables inside the distributed ones, so a whole step,
    including the optimizer update, is one function that XLA can compile.

    Args:
        combine_slices: what to do with `IndexedSlices`, such as `densify`; None to leave them to Keras.
        leaves_out: leave out batches whose loss or gradients are not finite; the model must be built.

    Attributes:
        finite: with `leaves_out`, while tracing: whether the loss and gradients of the last step were finite.
    """

    takes_fixed_shapes = gathers_rows = False
    has_sparse_gradients = False  # there is nothing to reduce
    own_rows = ()

    def __init__(
        self,
        model: keras.Model,
        replicas: Replicas,
        *,
        jit_compile: bool,
        combine_slices: CombineSlices | None = None,
        leaves_out: bool = False,
    ) -> None:
        self.model = model
        self.replicas = replicas
        self._combine_slices = combine_slices
        self._jit_compile = jit_compile and not model.run_eagerly
        self._leaves_out = leaves_out
        self.finite: tf.Tensor | None = None
        guard = OneReplicaGuard(model, lambda variable: replicas.components([variable], 0)[0])
        self._train = self.on_replica(lambda: partial(guard.run, model.train_step) if leaves_out else model.train_step)
        self._test = self.on_replica(lambda: model.test_step)
        self._predict = self.on_replica(lambda: model.predict_step)

    def train(self, batches: GraphBatches, batch: Any) -> Any:
        """One training step; returns what `train_step` returns."""
        with self.on_device():  # batches are augmented here if the plan says so
            logs = self._train(batches.rows(batch))
        if self._leaves_out:
            logs, self.finite = logs
        return logs

    def test(self, batches: GraphBatches, batch: Any) -> Any:
        """One evaluation step; returns what `test_step` returns."""
        data = batches.rows(batch)
        with self.on_device():
            return self._test(data)

    def predict(self, batches: GraphBatches, batch: Any) -> Any:
        """Predictions for one batch."""
        data = batches.rows(batch)
        with self.on_device():
            return self._predict(data)

    def on_device(self) -> contextlib.AbstractContextManager[None]:
        """The replica's device."""
        device: contextlib.AbstractContextManager[None] = tf.device(self.replicas.devices[0] or None)
        return device

    def on_replica(self, get_step: Callable[[], Callable[[Any], Any]]) -> Callable[[Any], Any]:
        """A step as a function of the batch's rows, with the replica's plain variables; call it `on_device`.

        Args:
            get_step: returns the step when it is traced: a context of the trace may replace those of the model.
        """

        def run(data: Any) -> Any:
            with contextlib.ExitStack() as stack:
                variables = get_variables(self.model)
                distributed = [private_api.tf_variable(v) for v in variables]
                stack.enter_context(self.replicas.local(variables, 0))
                stack.enter_context(private_api.compiled_parts_built(self.model))
                stack.enter_context(updates_of_copies())
                for optimizer in get_optimizers(self.model).values():
                    stack.enter_context(private_api.single_device_optimizer(optimizer))

                    def build(trainable: list[keras.Variable], optimizer: Any = optimizer) -> bool:
                        with private_api.local_variables(variables, distributed):
                            if not optimizer.built and not self._are_in_scope(trainable):
                                return False
                            build_optimizer(optimizer, trainable, self.replicas.strategy)
                            return True

                    attributes = {"apply": self._local_apply(optimizer, build)}
                    stack.enter_context(instance_attributes(optimizer, attributes))
                return keras.tree.map_structure(_as_value, get_step()(data))

        return graph_function(run, jit_compile=True, reduce_retracing=True) if self._jit_compile else run

    def _are_in_scope(self, variables: list[keras.Variable]) -> bool:
        """Whether slots can be placed beside variables: whether all were created under the strategy."""
        created = self.replicas.strategy.extended.variable_created_in_scope
        return self.replicas.is_default or all(created(private_api.tf_variable(one)) for one in variables)

    def _local_apply(
        self, optimizer: keras.optimizers.Optimizer, build: Callable[[list[keras.Variable]], bool]
    ) -> Callable[..., None]:
        """`optimizer.apply` on plain variables; a custom step may apply an optimizer that is not built yet."""

        def apply(gradients: Any, trainable_variables: Any = None) -> None:
            trainable = None if trainable_variables is None else list(trainable_variables)
            if (
                trainable is not None
                and (not self.replicas.is_default or have_values(trainable))
                and not build(trainable)
            ):
                return  # a trace has built the model: it only tells whether the step can be traced
            if is_plain():
                descend(gradients, self.model.trainable_variables if trainable is None else trainable)
                return
            gradients = gradients if self._combine_slices is None else self._combine_slices(list(gradients))
            with self.replicas.local(optimizer.variables, 0), private_api.one_learning_rate(optimizer):
                left_by_user(optimizer, "apply")(gradients, trainable)

        return apply


def _as_value(result: Any) -> Any:
    """The value of a variable that a metric returns as its result: elsewhere it stands for those of all replicas."""
    return tf.convert_to_tensor(result.value) if isinstance(result, keras.Variable) else result
