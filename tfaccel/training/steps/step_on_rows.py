"""How the rows of a global batch are split over the replicas, and one step on all of them.

`StepOnRows` lets each replica take its rows from the batch. `FixedShares` splits them on the host, into shares of fixed
sizes, as TPUs need them: these run programs compiled for fixed shapes. The last batch of a dataset is often smaller
than the others, so a graph call ends before a batch of another shape (`with_fixed_shapes`), and each shape has its own
graph: usually there are two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfaccel.data.feeds import (
    ArrayBatches,
    CallFeed,
    GraphBatches,
    IteratorBatches,
    augmented_by_replicas,
    slice_rows,
    without_optionals,
)
from tfaccel.errors import DataError, PlanError
from tfaccel.training.private import private_api
from tfaccel.training.private.private_random import same_generator_in_all_threads
from tfaccel.training.steps.batch_statistics import layers_alike
from tfaccel.training.steps.gradients import empty_gradient
from tfaccel.training.steps.merged_metrics import GATHERED, metrics_in
from tfaccel.training.steps.python_numbers import same_numbers_on_replicas
from tfaccel.training.steps.replica_state import drifting_variables, kept_if
from tfaccel.training.steps.replicas import Replicas, split_rows


class StepOnRows:
    """Runs steps on every replica with its rows of the global batch.

    Attributes:
        are_fixed: whether replicas get shares of fixed sizes, and run the whole step with nothing between them.
        needs_every_replica: whether every replica must run the step, because it reduces or gathers over the replicas,
            or updates state that is equal on all of them.
        inside_branch: while tracing: whether some replicas may skip the code being traced.
    """

    are_fixed = False

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

            if num_replicas == 1 or (isinstance(num_rows, int) and stop > start):
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
            if not returns_rows:
                return outputs
            return keras.tree.map_structure(lambda v: slice_rows(v, 0, stop - start), outputs)

        self.inside_branch = skips and num_replicas > 1 and not (isinstance(num_rows, int) and num_rows >= num_replicas)
        try:
            with same_generator_in_all_threads():
                return self._replicas.strategy.run(same_numbers_on_replicas(on_replica), args=(denominators,))
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

    def with_rows(self, batches: GraphBatches, batch: Any, results: list[Any]) -> list[Any]:
        """The results of the local replicas that have rows."""
        del batches, batch  # a borrowed row is none of the results
        return results

    def num_contributors(self, num_rows: Any, if_empty: str) -> Any:
        """Number of replicas that contribute gradients, including those with a borrowed row."""
        num_replicas = self._replicas.num_replicas
        if if_empty == "borrow" or self.needs_every_replica or num_replicas == 1:
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


class FixedShares(StepOnRows):
    """Runs whole steps on every replica with a share of the rows that is known before it."""

    are_fixed = True

    def run(
        self,
        batches: GraphBatches,
        batch: Any,
        step: Callable[..., Any],
        denominators: Any = None,
        *,
        if_empty: str = "refuse",
        returns_rows: bool = False,
    ) -> Any:
        """Runs `step` on every replica with its rows of the global batch.

        There may be fewer rows than replicas unless that is to be refused ("refuse"): a replica without rows runs on a
        borrowed row of weight 0, and its state is restored.
        """
        del denominators, returns_rows  # replicas sum their denominators, and `with_rows` leaves out borrowed rows
        batches, augment = augmented_by_replicas(batches)
        num_rows, num_replicas = batches.num_rows(batch), self._replicas.num_replicas
        _check_rows(num_rows, num_replicas if if_empty == "refuse" else 1)
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
        state = [] if all(parts) else self._local_state()

        def on_replica(weight: tf.Tensor, present: list[tf.Tensor]) -> Any:
            rest = iter(present)
            data = tf.nest.pack_sequence_as(structure, [None if leaf is None else next(rest) for leaf in leaves[0]])
            with kept_if(tf.equal(weight, 0.0), state):
                return step(augment(data), weight, None)

        return self._replicas.strategy.run(same_numbers_on_replicas(on_replica), args=(weights, of_leaf))

    def checked(self, batches: GraphBatches, batch: Any) -> Any:
        """The batch; `run` checks its rows."""
        del batches
        return batch

    def with_rows(self, batches: GraphBatches, batch: Any, results: list[Any]) -> list[Any]:
        """The results of the local replicas that have rows."""
        shares = self._shares(batches, batch)
        return [result for result, (start, stop) in zip(results, shares, strict=True) if stop > start]

    def _shares(self, batches: GraphBatches, batch: Any) -> list[tuple[int, int]]:
        """Start and stop row of each replica."""
        num_replicas = self._replicas.num_replicas
        return [split_rows(batches.num_rows(batch), replica, num_replicas) for replica in range(num_replicas)]


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


def with_fixed_shapes(feed: CallFeed) -> CallFeed:
    """The feed of an epoch, with all shapes of a graph call known in advance.

    Args:
        feed: the feed; at least one batch must be left. It is returned unchanged if its tensors are ragged or sparse.
    """
    if isinstance(feed.batches, ArrayBatches):
        return FixedShapeFeed(feed, ArrayBatches(has_partial_batch=False))
    if not isinstance(feed.batches, IteratorBatches):
        return feed
    _, following = feed.arguments(1)[0]
    leaves = keras.tree.flatten(without_optionals(following.get_value()))
    if not all(leaf is None or isinstance(leaf, tf.Tensor) for leaf in leaves):
        return feed
    shapes = tuple(tuple(leaf.shape) for leaf in leaves if leaf is not None)
    return FixedShapeFeed(feed, FixedShapeBatches(**vars(feed.batches), shapes=shapes))


class FixedShapeFeed:
    """The batches of a feed up to the next one of another shape, for one graph call."""

    def __init__(self, feed: CallFeed, batches: ArrayBatches | FixedShapeBatches) -> None:
        self._feed = feed
        self.batches = batches

    @property
    def spec(self) -> Any:
        """Specs of its batches."""
        return self._feed.spec

    def signature(self, *, any_rows: bool = False) -> Any:
        """Specs of the arguments: for arrays, with the rows of the next batch; None for an iterator."""
        specs = self._feed.signature()
        if specs is None:
            return None
        of_arrays, order, first = specs
        num_rows = self._feed.arguments(1)[0][1].shape[1]
        return of_arrays, tf.TensorSpec([None, num_rows], order.dtype), first

    def arguments(self, num_steps: int) -> tuple[Any, int]:
        """Arguments of the graph call, and its maximum number of steps."""
        return self._feed.arguments(num_steps)

    def finished(self, num_steps: int, state: Any) -> None:
        """Records the number of steps that the graph call ran, and its final loop state."""
        self._feed.finished(num_steps, state)


@dataclass(frozen=True)
class FixedShapeBatches(IteratorBatches):
    """Batches from a `tf.data` iterator up to the first of another shape.

    Attributes:
        shapes: of each tensor of a batch.
    """

    shapes: tuple[tuple[int, ...], ...] = ()

    def has_next(self, state: Any) -> tf.Tensor:
        """Whether the iterator had another batch of these shapes."""

        def fits() -> tf.Tensor:
            leaves = _tensors(without_optionals(state[0].get_value()))
            same = [tf.reduce_all(tf.shape(leaf) == shape) for leaf, shape in zip(leaves, self.shapes, strict=True)]
            return tf.reduce_all(same)

        return tf.cond(super().has_next(state), fits, lambda: tf.constant(False))

    def fetch(self, arguments: Any, state: Any, step: tf.Tensor) -> tuple[Any, Any]:
        """The global batch of one step, and the next loop state."""
        batch, state = super().fetch(arguments, state, step)
        shapes = iter(self.shapes)
        batch = keras.tree.map_structure(lambda a: None if a is None else tf.ensure_shape(a, next(shapes)), batch)
        return batch, state


def _tensors(batch: Any) -> list[tf.Tensor]:
    return [leaf for leaf in keras.tree.flatten(batch) if leaf is not None]


def static_value(value: Any) -> Any:
    """A number as a Python int if it is known while tracing."""
    known = tf.get_static_value(value)
    return value if known is None else int(known)
