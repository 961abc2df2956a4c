"""The steps of a model whose replicas each run the whole step, including the optimizer update, as a TPU requires.

`TPUStrategy` traces one function for all its cores: no part of a step may run between them on the host. So the
gradients are summed inside the step (`ReplicaContext.all_reduce`), and every replica then updates as one device does,
with Keras's own optimizer code on the summed gradients. Rows are divided on the host into shares of a fixed size.

The arithmetic is that of `SeveralReplicas`, with two differences: gradients of embeddings are summed densely, since
TPUs have no sparse ones, and gradients are summed for every batch, even while they accumulate.

Evaluation and prediction also accept a smaller last batch: it gets a separate graph (`fixed_shapes`), and a replica
without rows runs on a borrowed row of weight 0.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from tfaccel.data.graph_batches import GraphBatches, augmented_by_replicas
from tfaccel.errors import DataError, PlanError
from tfaccel.training.private import private_api
from tfaccel.training.steps.batch_statistics import replica_statistics
from tfaccel.training.steps.global_batch import (
    Share,
    current_share,
    global_losses,
    gradient_weight,
    replica_share,
    weighted_by_rows,
)
from tfaccel.training.steps.gradient_update import build_optimizer
from tfaccel.training.steps.gradients import (
    apply_as_class,
    applying_pairs,
    densify,
    refuse_overwritten,
    same_numbers_on_all,
    scaled,
)
from tfaccel.training.steps.merged_metrics import NotedResults, metrics_in
from tfaccel.training.steps.model_parts import (
    get_optimizers,
    has_own_logs,
    has_own_test_step,
    has_own_train_step,
    inner_optimizer,
)
from tfaccel.training.steps.overrides import instance_attributes, left_by_user
from tfaccel.training.steps.replica_state import drifting_variables, kept_if
from tfaccel.training.steps.replicas import Replicas, split_rows

Step = Callable[[Any], Any]


class WholeStep:
    """Train, test and predict steps on global batches, where each replica runs its rows and its own update.

    Args:
        model: a built and compiled Keras model.
        replicas: the replicas of the strategy that it was built under.

    Raises:
        PlanError: for a `LossScaleOptimizer`, since each replica would have to decide on the loss scale separately.
    """

    has_sparse_gradients = False

    def __init__(self, model: keras.Model, replicas: Replicas) -> None:
        self._model = model
        self._replicas = replicas
        self.noted_results = NotedResults()
        self._thread = threading.local()  # `updates`: whether a replica's thread traces the update
        for name, optimizer in get_optimizers(model).items():
            if inner_optimizer(optimizer) is not optimizer:
                raise PlanError(
                    f"model.{name} is a LossScaleOptimizer. TPUs compute in bfloat16, which has float32's range and "
                    "needs no loss scale. Compile with the optimizer itself, and use dtype_policy='mixed_bfloat16'."
                )

    def train(self, batches: GraphBatches, batch: Any) -> Any:
        """One training step; returns the averaged logs of a custom `train_step` or `compute_metrics`, if any."""
        own = has_own_train_step(self._model)
        batches, augment = augmented_by_replicas(batches)
        with self._replicas.strategy.scope(), global_losses(self._model), contextlib.ExitStack() as stack:
            stack.enter_context(self.noted_results.while_tracing(metrics_in(self._model)))
            for optimizer in get_optimizers(self._model).values():
                stack.enter_context(private_api.single_device_optimizer(optimizer))
                apply = self._summed_apply(optimizer)
                attributes: dict[str, Any] = {"apply": apply, "apply_gradients": applying_pairs(apply)}
                if not own:
                    attributes["scale_loss"] = _weighted_scale_loss(optimizer)
                stack.enter_context(instance_attributes(optimizer, attributes))
            stack.enter_context(replica_statistics(self._model, self._replicas.num_replicas))
            updates = partial(getattr, self._thread, "updates", False)
            stack.enter_context(same_numbers_on_all(self._replicas.num_replicas, when=updates))
            return self._replicas.mean_of_weighted(
                self._run(batches, batch, lambda data: self._logs(self._model.train_step(augment(data)), "train"))
            )

    def test(self, batches: GraphBatches, batch: Any) -> Any:
        """One evaluation step; returns the averaged logs of a custom `test_step` or `compute_metrics`, if any."""
        kind = "test"
        noting = self.noted_results.while_tracing(metrics_in(self._model))
        with self._replicas.strategy.scope(), global_losses(self._model), noting:
            return self._replicas.mean_of_weighted(
                self._run(batches, batch, lambda data: self._logs(self._model.test_step(data), kind), borrows=True)
            )

    def predict(self, batches: GraphBatches, batch: Any) -> list[Any]:
        """Predictions for one global batch: a nest per local replica, in row order."""
        with self._replicas.strategy.scope():
            results = self._replicas.local_results(self._run(batches, batch, self._model.predict_step, borrows=True))
            return [
                result
                for result, (start, stop) in zip(results, self._shares(batches, batch), strict=True)
                if stop > start
            ]

    def _shares(self, batches: GraphBatches, batch: Any) -> list[tuple[int, int]]:
        """Start and stop row of each replica."""
        num_replicas = self._replicas.num_replicas
        return [split_rows(batches.num_rows(batch), replica, num_replicas) for replica in range(num_replicas)]

    def _logs(self, logs: Any, kind: str) -> Any:
        own = has_own_train_step(self._model) if kind == "train" else has_own_test_step(self._model)
        self.noted_results.look_at(logs if own else None)
        return weighted_by_rows(logs) if own or has_own_logs(self._model, kind) else {}

    def _run(self, batches: GraphBatches, batch: Any, step: Step, *, borrows: bool = False) -> Any:
        """Runs `step` on every replica with its rows of the global batch.

        With `borrows`, there may be fewer rows than replicas: a replica without rows runs on a borrowed row of weight
        0, and its state is restored.
        """
        num_rows, num_replicas = batches.num_rows(batch), self._replicas.num_replicas
        _check_rows(num_rows, 1 if borrows else num_replicas)
        shares = self._shares(batches, batch)
        distribute = self._replicas.strategy.experimental_distribute_values_from_function
        leaves = [
            tf.nest.flatten(batches.rows(batch, start if stop > start else start - 1, stop)) for start, stop in shares
        ]
        structure = batches.rows(batch, *shares[0])
        of_leaf = [
            distribute(lambda context, i=i: leaves[context.replica_id_in_sync_group][i])
            for i, leaf in enumerate(leaves[0])
            if leaf is not None
        ]
        parts = [(stop - start) / num_rows for start, stop in shares]
        weights = distribute(lambda context: tf.constant(parts[context.replica_id_in_sync_group], tf.float32))
        state = [] if all(parts) else [*self._model.metrics_variables, *drifting_variables(self._model)]

        def on_replica(weight: tf.Tensor, present: list[tf.Tensor]) -> Any:
            rest = iter(present)
            data = tf.nest.pack_sequence_as(structure, [None if leaf is None else next(rest) for leaf in leaves[0]])
            with (
                replica_share(Share(weight, num_replicas, data=data, weighs_gradients=has_own_train_step(self._model))),
                kept_if(tf.equal(weight, 0.0), [private_api.tf_variable(variable) for variable in state]),
            ):
                return step(data)

        return self._replicas.strategy.run(on_replica, args=(weights, of_leaf))

    def _summed_apply(self, optimizer: keras.optimizers.Optimizer) -> Callable[..., None]:
        """`optimizer.apply` inside a replica: sums gradients over the replicas, then updates as one device does."""

        def apply(gradients: Any, trainable_variables: Any = None) -> None:
            share, context = current_share(), tf.distribute.get_replica_context()
            variables = list(trainable_variables or self._model.trainable_variables)
            if self._replicas.num_replicas > 1:
                refuse_overwritten(variables, self._replicas.num_replicas)
            if not optimizer.built:
                context.merge_call(lambda strategy: build_optimizer(optimizer, variables, strategy))
            pairs = [(g, v) for g, v in zip(densify(list(gradients)), variables, strict=True) if g is not None]
            weighted = share is not None and share.weighs_gradients
            own = [scaled(gradient, gradient_weight()) if weighted else gradient for gradient, _ in pairs]
            summed = context.all_reduce(tf.distribute.ReduceOp.SUM, own) if self._replicas.num_replicas > 1 else own
            self._thread.updates = True
            try:
                apply_as_class(optimizer, list(summed), [v for _, v in pairs])
            finally:
                self._thread.updates = False

        return apply


def _weighted_scale_loss(optimizer: keras.optimizers.Optimizer) -> Callable[[Any], Any]:
    """`optimizer.scale_loss`, with the loss weighted by the replica's fraction of the rows."""

    def scale_loss(loss: Any) -> Any:
        share = current_share()
        weight = 1.0 if share is None else tf.cast(share.row_weight, loss.dtype)
        return left_by_user(optimizer, "scale_loss")(loss * weight)

    return scale_loss


def _check_rows(num_rows: Any, fewest: int) -> None:
    """Refuses batches without a fixed number of rows, or with too few rows."""
    if not isinstance(num_rows, int):
        raise DataError(
            "On a TPU every batch must have a fixed number of rows, known before it is read; here the last batch may "
            "be smaller. Use dataset.batch(n, drop_remainder=True), or arrays whose number of rows the batch divides."
        )
    if num_rows < fewest:
        raise DataError(
            f"On a TPU every core needs rows to train on. Received: {num_rows} rows for {fewest} cores. Use a larger "
            "global batch size, or fewer cores."
        )
