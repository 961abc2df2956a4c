"""The steps of a model with several replicas.

A model's own `train_step` and `test_step` run as they are. Of Keras's `train_step` only the optimizer's update is taken
out: forward and backward pass then are one function for each replica, which XLA can compile under any strategy, and the
summed gradients are applied afterwards (`GradientUpdate`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfaccel.training import private_api
from tfaccel.training.global_batch import Share, current_share, global_losses, replica_share, weighted_by_rows
from tfaccel.training.gradient_update import GradientUpdate, build_optimizer
from tfaccel.training.gradients import applying_pairs, count_overflows, empty_gradient, scaled
from tfaccel.training.model_parts import (
    has_own_logs,
    has_own_test_step,
    has_own_train_step,
    optimizers_of,
    synchronized_layers,
    variables_of,
    xla_refusal,
)
from tfaccel.training.overrides import instance_attributes
from tfaccel.training.replica_state import drifting_variables, kept_if
from tfaccel.training.replicas import Replicas, split_rows

logger = logging.getLogger("tfaccel")

Step = Callable[[Any], Any]


class SeveralReplicas:
    """Train, test and predict steps on global batches, each replica on its rows.

    Args:
        model: a built and compiled Keras model.
        replicas: the replicas of the strategy that it was built in.
        jit_compile: compile forward and backward pass, and the update, with XLA (see `model_parts.xla_refusal`).
        sum_duplicate_indices: see `gradient_update.densify`.
        bytes_per_pack: see `GradientUpdate`.
    """

    def __init__(self, model: keras.Model, replicas: Replicas, *, jit_compile: bool,
                 sum_duplicate_indices: bool = False, bytes_per_pack: int = 0) -> None:  # fmt: skip
        self._model = model
        self._replicas = replicas
        refusal = xla_refusal(model) if jit_compile else None
        if refusal:
            logger.warning("XLA stays off for training: %s", refusal)
        jit_compile = jit_compile and not model.run_eagerly
        self._jit_train = jit_compile and not refusal
        self._synchronized = bool(synchronized_layers(model))
        self._updates = {
            name: GradientUpdate(optimizer, replicas, jit_compile=self._jit_train, bytes_per_pack=bytes_per_pack,
                                 sum_duplicate_indices=sum_duplicate_indices)
            for name, optimizer in optimizers_of(model).items()
        }  # fmt: skip
        self._forward_backward = self._with_share(self._gradients, jit_compile=self._jit_train)
        self._own_train = self._with_share(lambda data: weighted_by_rows(model.train_step(data)), jit_compile=False)
        self._test = self._with_share(self._test_logs, jit_compile=jit_compile)
        self._own_test = self._with_share(lambda data: weighted_by_rows(model.test_step(data)), jit_compile=False)
        self._predict = self._with_share(model.predict_step, jit_compile=jit_compile)

    @property
    def has_sparse_gradients(self) -> bool:
        """Whether a traced step had `IndexedSlices` among its gradients."""
        return any(update.saw_sparse_gradients for update in self._updates.values())

    def train(self, batches: Any, batch: Any) -> Any:
        """One training step; returns the logs of an own `train_step` or `compute_metrics`, averaged, else nothing."""
        with self._replicas.strategy.scope(), global_losses(self._model):
            if has_own_train_step(self._model):
                with contextlib.ExitStack() as stack:
                    self._let_synchronized_layers_see_own_rows(stack)
                    for update in self._updates.values():
                        apply = self._merged_apply(update)
                        attributes = {"apply": apply, "apply_gradients": applying_pairs(apply)}
                        stack.enter_context(instance_attributes(update.optimizer, attributes))
                    return self._replicas.mean_of_weighted(
                        self._run(batches, batch, self._own_train, if_empty="borrow")
                    )
            update = self._updates["optimizer"]
            with contextlib.ExitStack() as stack:
                stack.enter_context(instance_attributes(update.optimizer, _recording(update.optimizer)))
                self._let_synchronized_layers_see_own_rows(stack)
                denominators = self._denominators(batches, batch, training=True)
                if_empty = "borrow" if has_own_logs(self._model, "train") else "skip"
                outputs = self._run(batches, batch, self._forward_backward, denominators, if_empty=if_empty)
            gradients, overflows, logs = outputs
            update.apply(gradients, self._model.trainable_variables, overflows,
                         num_contributors=self._num_contributors(batches.num_rows(batch), if_empty))  # fmt: skip
            return self._replicas.mean_of_weighted(logs)

    def test(self, batches: Any, batch: Any) -> Any:
        """One evaluation step; returns the logs of an own `test_step` or `compute_metrics`, averaged, else nothing."""
        with self._replicas.strategy.scope(), global_losses(self._model):
            if has_own_test_step(self._model):
                return self._replicas.mean_of_weighted(self._run(batches, batch, self._own_test, if_empty="borrow"))
            if_empty = "borrow" if has_own_logs(self._model, "test") else "skip"
            denominators = self._denominators(batches, batch, training=False)
            return self._replicas.mean_of_weighted(
                self._run(batches, batch, self._test, denominators, if_empty=if_empty)
            )

    def predict(self, batches: Any, batch: Any) -> list[Any]:
        """Predictions of one global batch: a nest for each local replica, in the order of the rows."""
        with self._replicas.strategy.scope():
            outputs = self._run(batches, batch, self._predict, if_empty="borrow", returns_rows=True)
            return self._replicas.local_results(outputs)

    # --- What a replica runs --------------------------------------------------------------------------------------

    def _with_share(self, step: Step, *, jit_compile: bool) -> Callable[..., Any]:
        """`step` as a function of (data, row_weight, denominators)."""

        def run(data: Any, row_weight: Any, denominators: Any) -> Any:
            with replica_share(Share(row_weight, self._replicas.num_replicas, denominators, data=data)):
                return step(data)

        if jit_compile:
            return tf.function(run, jit_compile=True, autograph=False, reduce_retracing=True)
        return run

    def _gradients(self, data: Any) -> tuple[list[Any], tf.Tensor, Any]:
        """Keras's train step up to the gradients, how many of them are not finite, and the model's own logs."""
        logs = self._model.train_step(data)
        share = current_share()
        gradients = list(share.gradients) if share is not None else []
        self._updates["optimizer"].note_same_rows(gradients, self._model.trainable_variables, data)
        return gradients, count_overflows(gradients), self._own_logs(logs, "train")

    def _test_logs(self, data: Any) -> Any:
        return self._own_logs(self._model.test_step(data), "test")

    def _own_logs(self, logs: Any, kind: str) -> Any:
        """Logs as tensors where they may differ from the metrics' results, which are read at the window's end."""
        return weighted_by_rows(logs) if has_own_logs(self._model, kind) else {}

    def _merged_apply(self, update: GradientUpdate) -> Callable[..., None]:
        """`optimizer.apply` inside a model's own train step: weighted, summed, then applied on every replica."""

        def apply(gradients: Any, trainable_variables: Any = None) -> None:
            share = current_share()
            weight = 1.0 if share is None else share.row_weight
            weighted = [None if g is None else scaled(g, weight) for g in gradients]
            variables = list(trainable_variables or self._model.trainable_variables)
            present = [g is not None for g in weighted]
            update.note_same_rows(weighted, variables, None if share is None else share.data)

            def merge(strategy: tf.distribute.Strategy, kept: Any, overflows: Any) -> None:
                build_optimizer(update.optimizer, variables, strategy)
                kept = iter(kept)
                update.apply([next(kept) if p else None for p in present], variables, overflows)

            tf.distribute.get_replica_context().merge_call(
                merge, args=([g for g in weighted if g is not None], count_overflows(weighted))
            )

        return apply

    # --- Rows -----------------------------------------------------------------------------------------------------

    def _run(self, batches: Any, batch: Any, step: Callable[..., Any], denominators: Any = None, *,
             if_empty: str = "skip", returns_rows: bool = False) -> Any:  # fmt: skip
        """Runs `step` on every replica with its rows of the global batch.

        A replica without rows skips the step ("skip"). Where every replica has to take part, because the step reduces
        over the replicas or returns rows, it runs on a borrowed row of weight 0 and its state is put back ("borrow");
        TensorFlow's convolutions do not take batches without rows.
        """
        num_rows, num_replicas = batches.num_rows(batch), self._replicas.num_replicas
        of_first: list[Any] = []

        def on_replica(denominators: Any) -> Any:
            replica = static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)
            start, stop = split_rows(num_rows, replica, num_replicas)
            row_weight = tf.cast(stop - start, tf.float32) / tf.cast(num_rows, tf.float32)

            def run(start: Any = start, stop: Any = stop) -> Any:
                outputs = step(batches.rows(batch, start, stop), row_weight, denominators)
                of_first[:] = of_first or [outputs]
                return outputs

            if isinstance(num_rows, int) and stop > start:
                return run()
            skips = if_empty == "skip" and not self._synchronized
            if skips and not isinstance(num_rows, int):
                return tf.cond(stop > start, run, lambda: self._nothing_like(of_first[0]))
            if skips and of_first:
                return self._nothing_like(of_first[0])
            is_empty = tf.equal(stop, start)
            borrowed = tf.minimum(start, num_rows - 1)
            with kept_if(is_empty, self._local_state()):
                outputs = run(borrowed, tf.where(is_empty, borrowed + 1, stop))
            if skips:
                return self._nothing_like(outputs)
            return keras.tree.map_structure(lambda v: v[: stop - start], outputs) if returns_rows else outputs

        return self._replicas.strategy.run(on_replica, args=(denominators,))

    def _num_contributors(self, num_rows: Any, if_empty: str) -> Any:
        """Replicas whose gradients come from a step, be it on a borrowed row: all, or those with rows."""
        num_replicas = self._replicas.num_replicas
        if if_empty == "borrow" or self._synchronized:
            return num_replicas
        return min(num_rows, num_replicas) if isinstance(num_rows, int) else tf.minimum(num_rows, num_replicas)

    def _let_synchronized_layers_see_own_rows(self, stack: contextlib.ExitStack) -> None:
        """A borrowed row must not count in statistics over all replicas."""

        def own_rows(inputs: tf.Tensor) -> tf.Tensor:
            share = current_share()
            if share is None:
                return inputs
            return inputs[: tf.where(share.row_weight > 0, tf.shape(inputs)[0], 0)]

        for layer in synchronized_layers(self._model):
            attributes = private_api.moments_of(layer, own_rows)
            stack.enter_context(instance_attributes(layer, attributes))

    def _nothing_like(self, outputs: Any) -> Any:
        """Outputs of a replica that has no rows: zero gradients and no overflows, of the structure of the others."""
        if not outputs:
            return outputs
        gradients, overflows, _ = outputs
        zeros = [
            None if g is None else empty_gradient(g, v)
            for g, v in zip(gradients, self._model.trainable_variables, strict=True)
        ]
        return zeros, tf.zeros_like(overflows), {}

    def _local_state(self) -> list[Any]:
        """What a replica's own rows change in its state: metrics and moving statistics."""
        return [private_api.tf_variable(v) for v in [*self._model.metrics_variables, *drifting_variables(self._model)]]

    def _denominators(self, batches: Any, batch: Any, *, training: bool) -> Any:
        """The global denominators of masked and weighted losses, from a pass that changes nothing.

        TensorFlow keeps of that pass only what the denominators need: usually the masks alone.
        """
        counted_by_first: list[int] = []

        def count(data: Any, row_weight: Any, denominators: None) -> tf.Tensor:
            share = Share(row_weight, self._replicas.num_replicas, counting=True)
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
            frozen = [(v, tf.identity(private_api.tf_variable(v))) for v in variables_of(self._model)]
            with replica_share(share), keras.StatelessScope(state_mapping=frozen, collect_losses=True):
                y_pred = private_api.call_model(self._model, x, training=training)
                private_api.compute_loss(self._model, x, y, y_pred, sample_weight, training=training)
            counted_by_first[:] = [len(share.counted)]
            counts = tf.stack(share.counted) if share.counted else tf.zeros([0])
            return tf.where(row_weight > 0, counts, tf.zeros_like(counts))

        counts = self._run(batches, batch, count, if_empty="borrow")
        if counted_by_first == [0]:
            return None
        (total,) = self._replicas.sum([counts])
        return total


def _recording(optimizer: keras.optimizers.Optimizer) -> dict[str, Callable[..., Any]]:
    """Attributes that let an optimizer weight the loss by the replica's rows and hand out gradients unapplied."""

    def scale_loss(loss: Any) -> Any:
        share = current_share()
        weight = 1.0 if share is None else tf.cast(share.row_weight, loss.dtype)
        return type(optimizer).scale_loss(optimizer, loss * weight)

    def apply(gradients: Any, trainable_variables: Any = None) -> None:
        del trainable_variables
        share = current_share()
        if share is not None:
            share.gradients = list(gradients)

    return {"scale_loss": scale_loss, "apply": apply, "apply_gradients": applying_pairs(apply)}


def static_value(value: Any) -> Any:
    """A number as a Python int where it is known while tracing."""
    known = tf.get_static_value(value)
    return value if known is None else int(known)
