"""Graph calls with batches of one shape, for evaluation and prediction on TPUs.

A TPU runs programs compiled for fixed shapes, but the last batch of a dataset is often smaller than the others. So a
call ends before a batch of another shape, and each shape has its own graph: usually there are two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfaccel.data.graph_batches import ArrayBatches, CallFeed, IteratorBatches, without_optionals


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
    return FixedShapeFeed(feed, FixedShapeBatches(feed.batches, shapes))


class FixedShapeFeed:
    """The batches of a feed up to the next one of another shape, for one graph call.

    Args:
        feed: the feed.
        batches: its batches, for the graph call.
    """

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
class FixedShapeBatches:
    """Batches from a `tf.data` iterator up to the first of another shape.

    Attributes:
        batches: the iterator's.
        shapes: of each tensor of a batch.
    """

    batches: IteratorBatches
    shapes: tuple[tuple[int, ...], ...]

    def start(self, arguments: Any) -> Any:
        """The loop state before the first step."""
        return self.batches.start(arguments)

    def has_next(self, state: Any) -> tf.Tensor:
        """Whether the iterator had another batch of these shapes."""

        def fits() -> tf.Tensor:
            leaves = _tensors(without_optionals(state[0].get_value()))
            same = [tf.reduce_all(tf.shape(leaf) == shape) for leaf, shape in zip(leaves, self.shapes, strict=True)]
            return tf.reduce_all(same)

        return tf.cond(self.batches.has_next(state), fits, lambda: tf.constant(False))

    def fetch(self, arguments: Any, state: Any, step: tf.Tensor) -> tuple[Any, Any]:
        """The global batch of one step, and the next loop state."""
        batch, state = self.batches.fetch(arguments, state, step)
        shapes = iter(self.shapes)
        batch = keras.tree.map_structure(lambda a: None if a is None else tf.ensure_shape(a, next(shapes)), batch)
        return batch, state

    def num_rows(self, batch: Any) -> int | tf.Tensor:
        """Rows of the global batch."""
        return self.batches.num_rows(batch)

    def with_checked_rows(self, batch: Any, num_replicas: int) -> Any:
        """The batch, after checking that its components have the same number of rows."""
        return self.batches.with_checked_rows(batch, num_replicas)

    def rows(self, batch: Any, start: Any = None, stop: Any = None) -> Any:
        """Rows `start` to `stop` of the global batch; all rows by default."""
        return self.batches.rows(batch, start, stop)


def _tensors(batch: Any) -> list[tf.Tensor]:
    return [leaf for leaf in keras.tree.flatten(batch) if leaf is not None]
