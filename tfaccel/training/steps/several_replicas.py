"""The steps of a model with several replicas.

A custom `train_step` or `test_step` runs unchanged. Keras's `train_step` runs without its optimizer update, so that
forward and backward pass are one function per replica, which XLA can compile under any strategy; the summed gradients
are applied afterwards (`GradientUpdate`).

On TPUs, each replica runs the whole step, including the update: `TPUStrategy` traces one function for all cores, and no
part of a step may run between them on the host. There, `FixedShares` splits the rows and `UpdateInStep` sums the
gradients. The arithmetic is the same, with two differences: gradients of embeddings are summed densely, since TPUs have
no sparse ones, and gradients are summed for every batch, even while they accumulate. Evaluation and prediction also
accept a smaller last batch: it gets a separate graph, and a replica without rows runs on a borrowed row of weight 0.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfaccel.data.feeds import GraphBatches
from tfaccel.graph_function import graph_function
from tfaccel.training.private import private_api
from tfaccel.training.private.private_tensorflow import writes_undone
from tfaccel.training.steps.all_reduce import all_reduce
from tfaccel.training.steps.batch_statistics import replica_statistics
from tfaccel.training.steps.gather_rows import gathered_loss, losses_of_all, summaries_of_all
from tfaccel.training.steps.global_batch import (
    VALUES_KEPT,
    NeedsEveryReplica,
    Share,
    current_share,
    replica_share,
    weighted_by_rows,
    zero_if_borrowed,
)
from tfaccel.training.steps.gradient_update import GradientUpdate, UpdateInStep
from tfaccel.training.steps.left_out import ReplicasGuard, bad_gradients, bad_logs
from tfaccel.training.steps.loss_scaling import count_overflows
from tfaccel.training.steps.merged_metrics import attributes_in_steps, check_results, metrics_in, states_used
from tfaccel.training.steps.model_parts import (
    get_optimizers,
    get_variables,
    has_own_logs,
    has_own_test_step,
    has_own_train_step,
)
from tfaccel.training.steps.overrides import attributes_of_each
from tfaccel.training.steps.python_numbers import numbers_kept
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.steps.step_on_rows import StepOnRows
from tfaccel.training.steps.xla import Compiled

Step = Callable[[Any], Any]


class SeveralReplicas:
    """Train, test and predict steps on global batches, each replica on its own rows.

    Args:
        rows: splits the rows of a batch over the replicas, and runs steps on them.
        make_update: makes of an optimizer what sums and applies its gradients.
        leaves_out: leave out batches whose loss or gradients are not finite on any replica.
        placed: a context, while tracing a replica, that decides where the operations on its gradients are.

    Attributes:
        gathers_rows: whether a step that was traced gathers rows over the replicas.
    """

    def __init__(
        self,
        model: keras.Model,
        replicas: Replicas,
        *,
        rows: StepOnRows,
        make_update: Callable[[keras.optimizers.Optimizer], GradientUpdate | UpdateInStep],
        compiled: Compiled,
        leaves_out: bool = False,
        placed: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self.model, self.replicas, self.rows = model, replicas, rows
        self.gathers_rows = False
        self.updates: dict[str, Any] = {name: make_update(one) for name, one in get_optimizers(model).items()}
        self._leaves_out, self._compiled, self._placed = leaves_out, compiled, placed
        self._guard = ReplicasGuard(model, replicas, leaves_out=leaves_out)
        self._make_functions()

    def _make_functions(self) -> None:
        model, compiled = self.model, self._compiled
        self._forward_backward = self._with_share(self._gradients, jit_compile=compiled.training)
        self._own_train = self._with_share(self._own_train_step, weighs_gradients=has_own_train_step(model))
        self._test = self._with_share(
            lambda data: self._own_logs(model.test_step(data), "test"), jit_compile=compiled.steps
        )
        self._own_test = self._with_share(lambda data: self._own_logs(model.test_step(data), "test"))
        self._predict = self._with_share(lambda data: model.predict_step(data), jit_compile=compiled.steps)

    @property
    def takes_fixed_shapes(self) -> bool:
        """Whether the rows of all batches of a graph call must be known before it."""
        return self.rows.are_fixed

    @property
    def finite(self) -> tf.Tensor | None:
        """With `leaves_out`, while tracing: whether the loss and gradients of the last step were finite."""
        return self._guard.finite

    @property
    def has_sparse_gradients(self) -> bool:
        """Whether the gradients of a traced step include `IndexedSlices`."""
        return any(update.saw_sparse_gradients for update in self.updates.values())

    @property
    def own_rows(self) -> list[tuple[keras.optimizers.Optimizer, keras.Variable]]:
        """The variables whose sparse gradients have rows of each replica's own, with their optimizers."""
        return [(one.optimizer, variable) for one in self.updates.values() for variable in one.own_rows.values()]

    def train(self, batches: GraphBatches, batch: Any) -> Any:
        """One training step; returns the averaged logs of a custom `train_step` or `compute_metrics`, if any."""
        return self._with_every_replica(self._train_all, batches, batch)

    def test(self, batches: GraphBatches, batch: Any) -> Any:
        """One evaluation step; returns the averaged logs of a custom `test_step` or `compute_metrics`, if any."""
        return self._with_every_replica(self._test_all, batches, batch)

    def _with_every_replica(self, step: Callable[[Any, Any], Any], batches: GraphBatches, batch: Any) -> Any:
        """Traces a step, and again if it turns out to gather rows, which every replica must take part in."""
        metrics = metrics_in(self.model)
        batch = self.rows.checked(batches, batch)
        with (
            summaries_of_all(self.replicas.num_replicas),
            attributes_of_each([*attributes_in_steps(metrics), (self.model, gathered_loss(self.model))]),
        ):
            try:
                return step(batches, batch)
            except NeedsEveryReplica:
                self.rows.needs_every_replica, self._compiled = True, self._compiled.after_gathering()
                self._make_functions()
                return step(batches, batch)

    def _train_all(self, batches: GraphBatches, batch: Any) -> Any:
        with self.replicas.strategy.scope(), losses_of_all(self.model):
            self._guard.begin()
            if has_own_train_step(self.model) or self.rows.are_fixed:
                return self._train_in_step(batches, batch)
            if_empty = "borrow" if has_own_logs(self.model, "train") else "skip"
            gradients, overflows, bad, logs = self.get_gradients(batches, batch, if_empty=if_empty)
            num = self.rows.num_contributors(batches.num_rows(batch), if_empty)

            def apply_sum() -> None:
                variables = self.model.trainable_variables
                self.updates["optimizer"].apply(gradients, variables, overflows, num_contributors=num)

            self._guard.end(bad, apply_sum)
            return self.replicas.mean_of_weighted(logs)

    def _train_in_step(self, batches: GraphBatches, batch: Any) -> Any:
        """A step in which the replicas sum gradients and update weights themselves."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._statistics())
            for update in self.updates.values():
                stack.enter_context(update.in_step(self.model, leaves_out=self._leaves_out))
            if_empty = "refuse" if self.rows.are_fixed else "borrow"
            outputs = self.rows.run(batches, batch, self._own_train, if_empty=if_empty)
        logs, bad = outputs if self._leaves_out else (outputs, None)
        self._guard.end(bad)
        return self.replicas.mean_of_weighted(logs)

    def get_gradients(self, batches: GraphBatches, batch: Any, *, if_empty: str) -> Any:
        """The forward and backward pass of all replicas, in the strategy's scope.

        Returns:
            Per-replica gradients, numbers of overflows, numbers above 0 for what is not finite if batches are left out,
            and custom logs.
        """
        with self.updates["optimizer"].captured(leaves_out=self._leaves_out), self._statistics():
            denominators = self._denominators(batches, batch, training=True)
            return self.rows.run(batches, batch, self._forward_backward, denominators, if_empty=if_empty)

    def _statistics(self) -> contextlib.AbstractContextManager[None]:
        timed = {} if self.rows.are_fixed else {"timed": self.replicas.timed}
        return replica_statistics(self.model, self.replicas.num_replicas, **timed)

    def _test_all(self, batches: GraphBatches, batch: Any) -> Any:
        with self.replicas.strategy.scope(), losses_of_all(self.model):
            if has_own_test_step(self.model):
                logs = self.rows.run(batches, batch, self._own_test, if_empty="borrow")
            else:
                if_empty = "borrow" if has_own_logs(self.model, "test") else "skip"
                denominators = self._denominators(batches, batch, training=False)
                logs = self.rows.run(batches, batch, self._test, denominators, if_empty=if_empty)
            return self.replicas.mean_of_weighted(logs)

    def predict(self, batches: GraphBatches, batch: Any) -> list[Any]:
        """Predictions for one global batch: a nest per local replica, in row order."""
        batch = self.rows.checked(batches, batch)
        with self.replicas.strategy.scope():
            outputs = self.rows.run(batches, batch, self._predict, if_empty="borrow", returns_rows=True)
            return self.rows.with_rows(batches, batch, self.replicas.local_results(outputs))

    # --- What a replica runs --------------------------------------------------------------------------------------

    def _with_share(
        self, step: Step, *, jit_compile: bool = False, weighs_gradients: bool = False
    ) -> Callable[..., Any]:
        """`step` as a function of (data, row_weight, denominators)."""

        def run(data: Any, row_weight: Any, denominators: Any) -> Any:
            may_gather = not (jit_compile or self.rows.inside_branch)
            share = Share(
                row_weight,
                denominators,
                data=data,
                may_gather=may_gather,
                weighs_gradients=weighs_gradients,
                keeps_values=self.model in VALUES_KEPT,
                metric_states=states_used(self.model),
            )
            with replica_share(share):
                results = step(data)
            self.gathers_rows |= share.gathers
            return results

        if jit_compile:
            return graph_function(run, jit_compile=True, reduce_retracing=True)
        return run

    def _own_train_step(self, data: Any) -> Any:
        """The logs of a step that applies gradients itself; if batches are left out, also whether this one is."""
        logs = self.model.train_step(data)
        share = current_share()
        if share is None or not self._leaves_out:
            return self._own_logs(logs, "train")
        bad = tf.add_n([bad_logs(logs, self.model, private_api.tf_variable), *share.bad])
        return self._own_logs(logs, "train"), bad

    def _gradients(self, data: Any) -> tuple[list[Any], tf.Tensor, Any, Any]:
        """Runs Keras's train step up to the gradients.

        Returns:
            The gradients, the number of those that are not finite, the same with losses if batches are left out (else
            None), and custom logs.
        """
        with self._placed():
            logs, share = self.model.train_step(data), current_share()
            gradients = list(share.gradients) if share is not None else []
            update, bad = self.updates["optimizer"], None
            update.note_same_rows(gradients, self.model.trainable_variables, data)
            if share is not None and self._leaves_out:
                bad = tf.add_n([bad_gradients(gradients, update.optimizer), *share.bad])
            return gradients, count_overflows(gradients), bad, self._own_logs(logs, "train")

    def _own_logs(self, logs: Any, kind: str) -> Any:
        """Logs that may differ from the metric results; the latter are read at the end of a window."""
        if not has_own_logs(self.model, kind):
            return {}
        check_results(self.model, logs, self.replicas)
        return weighted_by_rows(logs or {})

    def _denominators(self, batches: GraphBatches, batch: Any, *, training: bool) -> Any:
        """The global denominators of masked and weighted losses, from a forward pass that changes no state.

        TensorFlow prunes what they do not need, except for reductions over the replicas. A training step that has such
        reductions sums its denominators itself, and so does one that runs as a whole on each replica.
        """
        if self.rows.are_fixed or (training and self.rows.needs_every_replica and not self._compiled.training):
            return None
        counted_by_first: list[int] = []

        def count(data: Any, row_weight: Any, denominators: None) -> tf.Tensor:
            share = Share(row_weight, counting=True, keeps_values=self.model in VALUES_KEPT)
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
            frozen = [(v, tf.identity(private_api.tf_variable(v))) for v in get_variables(self.model)]
            with replica_share(share), keras.StatelessScope(state_mapping=frozen, collect_losses=True):
                y_pred = private_api.call_model(self.model, x, training=training)
                private_api.compute_loss(self.model, x, y, y_pred, sample_weight, training=training)
            counted_by_first[:] = [len(share.counted)]
            counts = tf.stack(share.counted) if share.counted else tf.zeros([0])
            return zero_if_borrowed(counts, row_weight)

        with numbers_kept(), writes_undone():
            counts = self.rows.run(batches, batch, count, if_empty="borrow")
        return None if counted_by_first == [0] else all_reduce(self.replicas, [counts])[0]
