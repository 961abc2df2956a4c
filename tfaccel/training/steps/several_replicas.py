"""The steps of a model with several replicas.

A custom `train_step` or `test_step` runs unchanged. Keras's `train_step` runs without its optimizer update, so that
forward and backward pass are one function per replica, which XLA can compile under any strategy; the summed gradients
are applied afterwards (`GradientUpdate`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfaccel.data.graph_batches import GraphBatches
from tfaccel.graph_function import graph_function
from tfaccel.training.private import private_api
from tfaccel.training.steps.batch_statistics import replica_statistics
from tfaccel.training.steps.gathered_loss import gathered_loss
from tfaccel.training.steps.global_batch import (
    NeedsEveryReplica,
    Share,
    current_share,
    global_losses,
    keeps_values,
    replica_share,
    weighted_by_rows,
    zero_if_borrowed,
)
from tfaccel.training.steps.gradient_update import GradientUpdate, recording
from tfaccel.training.steps.gradients import applying_pairs, count_overflows, scaled
from tfaccel.training.steps.left_out import ReplicasGuard, bad_gradients, bad_logs
from tfaccel.training.steps.merged_metrics import NotedResults, gathered_updates, metrics_in
from tfaccel.training.steps.model_parts import (
    get_optimizers,
    get_variables,
    has_own_logs,
    has_own_test_step,
    has_own_train_step,
    xla_refusal,
)
from tfaccel.training.steps.overrides import instance_attributes
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.steps.step_on_rows import StepOnRows
from tfaccel.training.steps.step_summaries import summaries_of_all

logger = logging.getLogger("tfaccel")

Step = Callable[[Any], Any]


class SeveralReplicas:
    """Train, test and predict steps on global batches, each replica on its own rows.

    Args:
        model: a built and compiled Keras model.
        replicas: the replicas of the strategy that it was built under.
        jit_compile: compile forward pass, backward pass and update with XLA (see `model_parts.xla_refusal`).
        compiles_update: whether XLA compiles the update, too.
        leaves_out: leave out batches whose loss or gradients are not finite on any replica.
        of_updates: `combine_slices`, `bytes_per_pack` and `optimizer_state` of each `GradientUpdate`.
    """

    update_class = GradientUpdate

    def __init__(
        self,
        model: keras.Model,
        replicas: Replicas,
        *,
        jit_compile: bool,
        compiles_update: bool = True,
        leaves_out: bool = False,
        **of_updates: Any,
    ) -> None:
        self._model = model
        self._replicas = replicas
        self._leaves_out = leaves_out
        self._guard = ReplicasGuard(model, replicas, leaves_out=leaves_out)
        refusal = xla_refusal(model) if jit_compile else None
        if refusal:
            logger.warning("XLA stays off for training: %s", refusal)
        jit_compile = jit_compile and not model.run_eagerly
        self._jit_train = jit_compile and not refusal
        self._rows = StepOnRows(model, replicas)
        self.noted_results = NotedResults()
        self.gathers_rows = False  # in a step that was traced
        self._updates = {
            name: self.update_class(optimizer, replicas, jit_compile=self._jit_train and compiles_update, **of_updates)
            for name, optimizer in get_optimizers(model).items()
        }
        self._make_functions(jit_compile=jit_compile)

    def _make_functions(self, *, jit_compile: bool) -> None:
        model = self._model
        self._forward_backward = self._with_share(self._gradients, jit_compile=self._jit_train)
        self._own_train = self._with_share(self._own_step("train"), jit_compile=False, weighs_gradients=True)
        self._test = self._with_share(
            lambda data: self._own_logs(model.test_step(data), "test"), jit_compile=jit_compile
        )
        self._own_test = self._with_share(self._own_step("test"), jit_compile=False)
        self._predict = self._with_share(lambda data: model.predict_step(data), jit_compile=jit_compile)

    @property
    def finite(self) -> tf.Tensor | None:
        """With `leaves_out`, while tracing: whether the loss and gradients of the last step were finite."""
        return self._guard.finite

    @property
    def has_sparse_gradients(self) -> bool:
        """Whether the gradients of a traced step include `IndexedSlices`."""
        return any(update.saw_sparse_gradients for update in self._updates.values())

    @property
    def own_rows(self) -> list[tuple[keras.optimizers.Optimizer, keras.Variable]]:
        """The variables whose sparse gradients have rows of each replica's own, with their optimizers."""
        return [(one.optimizer, variable) for one in self._updates.values() for variable in one.own_rows.values()]

    def train(self, batches: GraphBatches, batch: Any) -> Any:
        """One training step; returns the averaged logs of a custom `train_step` or `compute_metrics`, if any."""
        return self._with_every_replica(self._train_all, batches, batch)

    def test(self, batches: GraphBatches, batch: Any) -> Any:
        """One evaluation step; returns the averaged logs of a custom `test_step` or `compute_metrics`, if any."""
        return self._with_every_replica(self._test_all, batches, batch)

    def _with_every_replica(self, step: Callable[[Any, Any], Any], batches: GraphBatches, batch: Any) -> Any:
        """Traces a step, and again if it turns out to gather rows, which every replica must take part in."""
        metrics = metrics_in(self._model)
        batch = self._rows.checked(batches, batch)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.noted_results.while_tracing(metrics))
            stack.enter_context(summaries_of_all(self._replicas.num_replicas))
            for metric, attributes in gathered_updates(metrics):
                stack.enter_context(instance_attributes(metric, attributes))
            stack.enter_context(instance_attributes(self._model, gathered_loss(self._model)))
            try:
                return step(batches, batch)
            except NeedsEveryReplica:
                if self._jit_train:
                    logger.warning("XLA stays off: it cannot compile a step that gathers rows over the replicas.")
                self._rows.needs_every_replica, self._jit_train = True, False
                self._make_functions(jit_compile=False)
                return step(batches, batch)

    def _train_all(self, batches: GraphBatches, batch: Any) -> Any:
        with self._replicas.strategy.scope(), global_losses(self._model):
            self._guard.begin()
            if has_own_train_step(self._model):
                with contextlib.ExitStack() as stack:
                    stack.enter_context(self._statistics())
                    for update in self._updates.values():
                        apply = self._merged_apply(update)
                        attributes = {"apply": apply, "apply_gradients": applying_pairs(apply)}
                        stack.enter_context(instance_attributes(update.optimizer, attributes))
                    logs, bad = self._rows.run(batches, batch, self._own_train, if_empty="borrow")
                self._guard.end(bad)
                return self._replicas.mean_of_weighted(logs)
            update = self._updates["optimizer"]
            recorded = recording(update.optimizer, leaves_out=self._leaves_out)
            with instance_attributes(update.optimizer, recorded), self._statistics():
                denominators = self._denominators(batches, batch, training=True)
                if_empty = "borrow" if has_own_logs(self._model, "train") else "skip"
                outputs = self._rows.run(batches, batch, self._forward_backward, denominators, if_empty=if_empty)
            gradients, overflows, bad, logs = outputs

            num = self._rows.num_contributors(batches.num_rows(batch), if_empty)

            def apply_sum() -> None:
                update.apply(gradients, self._model.trainable_variables, overflows, num_contributors=num)

            self._guard.end(bad, apply_sum)
            return self._replicas.mean_of_weighted(logs)

    def _statistics(self) -> contextlib.AbstractContextManager[None]:
        return replica_statistics(self._model, self._replicas.num_replicas, timed=self._replicas.timed)

    def _test_all(self, batches: GraphBatches, batch: Any) -> Any:
        with self._replicas.strategy.scope(), global_losses(self._model):
            if has_own_test_step(self._model):
                return self._replicas.mean_of_weighted(
                    self._rows.run(batches, batch, self._own_test, if_empty="borrow")
                )
            if_empty = "borrow" if has_own_logs(self._model, "test") else "skip"
            denominators = self._denominators(batches, batch, training=False)
            return self._replicas.mean_of_weighted(
                self._rows.run(batches, batch, self._test, denominators, if_empty=if_empty)
            )

    def predict(self, batches: GraphBatches, batch: Any) -> list[Any]:
        """Predictions for one global batch: a nest per local replica, in row order."""
        batch = self._rows.checked(batches, batch)
        with self._replicas.strategy.scope():
            outputs = self._rows.run(batches, batch, self._predict, if_empty="borrow", returns_rows=True)
            return self._replicas.local_results(outputs)

    # --- What a replica runs --------------------------------------------------------------------------------------

    def _with_share(self, step: Step, *, jit_compile: bool, weighs_gradients: bool = False) -> Callable[..., Any]:
        """`step` as a function of (data, row_weight, denominators)."""

        def run(data: Any, row_weight: Any, denominators: Any) -> Any:
            may_gather = not (jit_compile or self._rows.inside_branch)
            share = Share(
                row_weight,
                self._replicas.num_replicas,
                denominators,
                data=data,
                may_gather=may_gather,
                weighs_gradients=weighs_gradients,
                keeps_values=keeps_values(self._model),
            )
            with replica_share(share):
                results = step(data)
            self.gathers_rows |= share.gathers
            return results

        if jit_compile:
            return graph_function(run, jit_compile=True, reduce_retracing=True)
        return run

    def _own_step(self, kind: str) -> Step:
        if kind == "test":
            return lambda data: weighted_by_rows(self.noted_results.look_at(self._model.test_step(data)))

        def train(data: Any) -> tuple[Any, Any]:
            logs = self._model.train_step(data)
            share, bad = current_share(), None
            if share is not None and self._leaves_out:
                bad = tf.add_n([bad_logs(logs, self._model, private_api.tf_variable), *share.bad])
            return weighted_by_rows(self.noted_results.look_at(logs)), bad

        return train

    def _gradients(self, data: Any) -> tuple[list[Any], tf.Tensor, Any, Any]:
        """Runs Keras's train step up to the gradients.

        Returns:
            The gradients, the number of those that are not finite, the same with losses if batches are left out (else
            None), and custom logs.
        """
        logs = self._model.train_step(data)
        share = current_share()
        gradients = list(share.gradients) if share is not None else []
        optimizer, bad = self._updates["optimizer"].optimizer, None
        self._updates["optimizer"].note_same_rows(gradients, self._model.trainable_variables, data)
        if share is not None and self._leaves_out:
            bad = tf.add_n([bad_gradients(gradients, optimizer), *share.bad])
        return gradients, count_overflows(gradients), bad, self._own_logs(logs, "train")

    def _own_logs(self, logs: Any, kind: str) -> Any:
        """Logs that may differ from the metric results; the latter are read at the end of a window."""
        return weighted_by_rows(self.noted_results.look_at(logs)) if has_own_logs(self._model, kind) else {}

    def _merged_apply(self, update: GradientUpdate) -> Callable[..., None]:
        """`optimizer.apply` inside a custom train step: weights, sums and applies the gradients on every replica."""

        def apply(gradients: Any, trainable_variables: Any = None) -> None:
            share = current_share()
            weight = 1.0 if share is None else share.row_weight
            weighted = [None if g is None else scaled(g, weight) for g in gradients]
            variables = list(trainable_variables or self._model.trainable_variables)
            present = [g is not None for g in weighted]
            update.note_same_rows(weighted, variables, None if share is None else share.data)
            if share is not None and self._leaves_out:
                share.bad.append(bad_gradients(weighted, update.optimizer))

            def merge(_: tf.distribute.Strategy, kept: Any, overflows: Any) -> None:
                update.build(variables)
                kept = iter(kept)
                update.apply([next(kept) if p else None for p in present], variables, overflows)

            tf.distribute.get_replica_context().merge_call(
                merge, args=([g for g in weighted if g is not None], count_overflows(weighted))
            )

        return tf.autograph.experimental.do_not_convert(apply)

    def _denominators(self, batches: GraphBatches, batch: Any, *, training: bool) -> Any:
        """The global denominators of masked and weighted losses, from a forward pass that changes no state.

        TensorFlow prunes what they do not need, except for reductions over the replicas. A training step that has such
        reductions sums its denominators itself.
        """
        if training and self._rows.needs_every_replica and not self._jit_train:
            return None
        counted_by_first: list[int] = []

        def count(data: Any, row_weight: Any, denominators: None) -> tf.Tensor:
            share = Share(
                row_weight, self._replicas.num_replicas, counting=True, keeps_values=keeps_values(self._model)
            )
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
            frozen = [(v, tf.identity(private_api.tf_variable(v))) for v in get_variables(self._model)]
            with replica_share(share), keras.StatelessScope(state_mapping=frozen, collect_losses=True):
                y_pred = private_api.call_model(self._model, x, training=training)
                private_api.compute_loss(self._model, x, y, y_pred, sample_weight, training=training)
            counted_by_first[:] = [len(share.counted)]
            counts = tf.stack(share.counted) if share.counted else tf.zeros([0])
            return zero_if_borrowed(counts, row_weight)

        counts = self._rows.run(batches, batch, count, if_empty="borrow")
        return None if counted_by_first == [0] else self._replicas.sum([counts])[0]
