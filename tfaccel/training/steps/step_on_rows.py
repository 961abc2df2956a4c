"""One step on all replicas, each on its rows of the global batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfaccel.data.graph_batches import GraphBatches
from tfaccel.errors import PlanError
from tfaccel.training.private import private_api
from tfaccel.training.private.private_random import same_generator_in_all_threads
from tfaccel.training.steps.batch_statistics import layers_alike
from tfaccel.training.steps.gradients import empty_gradient
from tfaccel.training.steps.merged_metrics import GATHERED, metrics_in
from tfaccel.training.steps.replica_state import drifting_variables, kept_if
from tfaccel.training.steps.replicas import Replicas, split_rows


class StepOnRows:
    """Runs steps on every replica with its rows of the global batch.

    Args:
        model: a built model.
        replicas: the replicas of the strategy that it was built under.

    Attributes:
        needs_every_replica: whether every replica must run the step, because it reduces or gathers over the replicas,
            or updates state that is equal on all of them.
        inside_branch: while tracing: whether some replicas may skip the code being traced.
    """

    def __init__(self, model: keras.Model, replicas: Replicas) -> None:
        self._model = model
        self._replicas = replicas
        self.needs_every_replica = bool(layers_alike(model))
        self.inside_branch = False

    def run(
        self,
        batches: GraphBatches,
        batch: Any,
        step: Callable[..., Any],
        denominators: Any = None,
        *,
        if_empty: str = "skip",
        returns_rows: bool = False,
    ) -> Any:
        """Runs `step` on every replica with its rows of the global batch.

        A replica without rows skips the step ("skip"). If every replica must take part, because the step reduces over
        the replicas or returns rows, it runs on a borrowed row of weight 0 and its state is restored ("borrow"), since
        TensorFlow's convolutions reject empty batches.
        """
        num_rows, num_replicas = batches.num_rows(batch), self._replicas.num_replicas
        of_first: list[Any] = []
        skips = if_empty == "skip" and not self.needs_every_replica

        def on_replica(denominators: Any) -> Any:
            replica = static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)
            start, stop = split_rows(num_rows, replica, num_replicas)
            row_weight = tf.cast(stop - start, tf.float32) / tf.cast(num_rows, tf.float32)

            def own(start: Any = start, stop: Any = stop) -> Any:
                outputs = step(batches.rows(batch, start, stop), row_weight, denominators)
                of_first[:] = of_first or [outputs]
                return outputs

            if isinstance(num_rows, int) and stop > start:
                return own()
            if skips and not isinstance(num_rows, int):
                return tf.cond(stop > start, own, lambda: self._nothing_like(of_first[0]))
            if skips and of_first:
                return self._nothing_like(of_first[0])
            is_empty = tf.equal(stop, start)
            borrowed = tf.minimum(start, num_rows - 1)
            with kept_if(is_empty, self._local_state()):
                outputs = own(borrowed, tf.where(is_empty, borrowed + 1, stop))
            if skips:
                return self._nothing_like(outputs)
            return keras.tree.map_structure(lambda v: v[: stop - start], outputs) if returns_rows else outputs

        self.inside_branch = skips and not (isinstance(num_rows, int) and num_rows >= num_replicas)
        try:
            with same_generator_in_all_threads():
                return self._replicas.strategy.run(on_replica, args=(denominators,))
        finally:
            self.inside_branch = False

    def checked(self, batches: GraphBatches, batch: Any) -> Any:
        """The batch; refused if its rows cannot be split, or if the model is built for another number of rows."""
        num_replicas = self._replicas.num_replicas
        batch = batches.with_checked_rows(batch, num_replicas)
        num_rows = batches.num_rows(batch)
        for tensor in getattr(self._model, "inputs", None) or []:
            fixed = tensor.shape[0]
            if fixed is not None and isinstance(num_rows, int) and num_rows != fixed * num_replicas:
                stateful = [one.name for one in private_api.all_layers(self._model) if getattr(one, "stateful", False)]
                raise PlanError(
                    f"Model {self._model.name!r} is built for batches of {fixed} rows (input {tensor.name!r}"
                    + (f", stateful layers {', '.join(stateful)}" if stateful else "")
                    + f"), but {num_rows} rows are split over {num_replicas} replicas. Build it with "
                    f"batch_size={num_rows // num_replicas}, the rows of one replica, or train on one replica."
                )
        return batch

    def num_contributors(self, num_rows: Any, if_empty: str) -> Any:
        """Number of replicas that contribute gradients, including those with a borrowed row."""
        num_replicas = self._replicas.num_replicas
        if if_empty == "borrow" or self.needs_every_replica:
            return num_replicas
        return min(num_rows, num_replicas) if isinstance(num_rows, int) else tf.minimum(num_rows, num_replicas)

    def _nothing_like(self, outputs: Any) -> Any:
        """Outputs for a replica without rows: zero gradients and no overflows, in the structure of the others."""
        if not outputs:
            return outputs
        gradients, overflows, bad, _ = outputs
        zeros = [
            None if g is None else empty_gradient(g, v)
            for g, v in zip(gradients, self._model.trainable_variables, strict=True)
        ]
        return zeros, tf.zeros_like(overflows), None if bad is None else tf.zeros_like(bad), {}

    def _local_state(self) -> list[Any]:
        """The state that a replica's rows change: metrics and moving statistics."""
        alike = {id(v) for metric in metrics_in(self._model) if metric in GATHERED for v in metric.variables}
        changed = [v for v in self._model.metrics_variables if id(v) not in alike]
        return [private_api.tf_variable(v) for v in [*changed, *drifting_variables(self._model)]]


def static_value(value: Any) -> Any:
    """A number as a Python int if it is known while tracing."""
    known = tf.get_static_value(value)
    return value if known is None else int(known)
