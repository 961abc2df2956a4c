"""The steps of a model with one replica: Keras's own steps, as on one device, under any strategy."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfaccel.data.graph_batches import GraphBatches
from tfaccel.graph_function import graph_function
from tfaccel.training.private import private_api
from tfaccel.training.steps.gradient_update import build_optimizer, descend, is_plain
from tfaccel.training.steps.gradients import CombineSlices
from tfaccel.training.steps.left_out import OneReplicaGuard
from tfaccel.training.steps.merged_metrics import NotedResults
from tfaccel.training.steps.model_parts import get_optimizers, get_variables
from tfaccel.training.steps.overrides import instance_attributes, left_by_user
from tfaccel.training.steps.replicas import Replicas


class OneReplica:
    """Train, test and predict steps on one device.

    Under a strategy with one replica, Keras code uses the plain variables inside the distributed ones, so a whole step,
    including the optimizer update, is one function that XLA can compile.

    Args:
        model: a compiled Keras model.
        replicas: the replica of the strategy that it was built under.
        jit_compile: compile the steps with XLA.
        combine_slices: what to do with `IndexedSlices`, such as `densify`; None to leave them to Keras.
        leaves_out: leave out batches whose loss or gradients are not finite; the model must be built.

    Attributes:
        finite: with `leaves_out`, while tracing: whether the loss and gradients of the last step were finite.
        noted_results: none: the logs of one replica are those of the global batch.
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
        self.noted_results = NotedResults()
        # A context of the trace may replace a model's steps.
        self._train = self.on_replica(self._guarded(self._train_step) if leaves_out else self._train_step)
        self._test = self.on_replica(lambda data: model.test_step(data))
        self._predict = self.on_replica(lambda data: model.predict_step(data))

    def train(self, batches: GraphBatches, batch: Any) -> Any:
        """One training step; returns what `train_step` returns."""
        with tf.device(self.replicas.devices[0] or None):  # batches are augmented here if the plan says so
            data = batches.rows(batch)
        if not self._leaves_out:
            return self._train(data)
        logs, self.finite = self._train(data)
        return logs

    def test(self, batches: GraphBatches, batch: Any) -> Any:
        """One evaluation step; returns what `test_step` returns."""
        return self._test(batches.rows(batch))

    def predict(self, batches: GraphBatches, batch: Any) -> Any:
        """Predictions for one batch."""
        return self._predict(batches.rows(batch))

    def _train_step(self, data: Any) -> Any:
        return self.model.train_step(data)

    def on_replica(self, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The step as a function of the batch's rows on the replica's device, with its plain variables."""

        def run(data: Any) -> Any:
            with contextlib.ExitStack() as stack:
                variables = get_variables(self.model)
                distributed = [private_api.tf_variable(v) for v in variables]
                stack.enter_context(self.replicas.local(variables, 0))
                for optimizer in get_optimizers(self.model).values():
                    stack.enter_context(private_api.single_device_optimizer(optimizer))

                    def build(trainable: list[keras.Variable], optimizer: Any = optimizer) -> None:
                        with private_api.local_variables(variables, distributed):
                            build_optimizer(optimizer, trainable, self.replicas.strategy)

                    attributes = {"apply": self._local_apply(optimizer, build)}
                    stack.enter_context(instance_attributes(optimizer, attributes))
                return keras.tree.map_structure(_as_value, step(data))

        function = run
        if self._jit_compile:
            function = graph_function(run, jit_compile=True, reduce_retracing=True)

        def on_device(data: Any) -> Any:
            with tf.device(self.replicas.devices[0] or None):
                return function(data)

        return on_device

    def _guarded(self, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The step as a function that leaves out batches, and also returns whether everything was finite."""

        guard = OneReplicaGuard(self.model, lambda variable: self.replicas.components([variable], 0)[0])
        return lambda data: guard.run(step, data)

    def _local_apply(
        self, optimizer: keras.optimizers.Optimizer, build: Callable[[list[keras.Variable]], None]
    ) -> Callable[..., None]:
        """`optimizer.apply` on plain variables; a custom step may apply an optimizer that is not built yet."""

        def apply(gradients: Any, trainable_variables: Any = None) -> None:
            trainable = None if trainable_variables is None else list(trainable_variables)
            if trainable is not None and (not self.replicas.is_default or _have_values(trainable)):
                build(trainable)
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


def _have_values(variables: list[keras.Variable]) -> bool:
    """Whether variables were created before the step being traced, so that slots can be computed from them."""
    with tf.init_scope():
        return all(bool(private_api.tf_variable(variable).is_initialized()) for variable in variables)
