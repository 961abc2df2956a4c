"""An epoch that data workers prepare, each its own batches, in the order that it has without them.

Every batch is sent with its step. A worker that was started again begins its part of the epoch again; its batches
before the one that is due are dropped, and a batch after it is an error. So no batch is seen twice or left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfaccel.data.epochs import untuned

_service = tf.data.experimental.service


def numbered(batches: tf.data.Dataset, first: int, count: int, num_threads: int | None) -> tf.data.Dataset:
    """The batches `first`, `first + count`, ... of an epoch with their steps, as a worker prepares them.

    Args:
        batches: those batches; their number must be known.
        first, count: see above.
        num_threads: threads of the pipeline; None for the worker's own.
    """
    options = tf.data.Options()
    options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.FAIL
    if num_threads is not None:
        options.threading.private_threadpool_size = num_threads
    steps = tf.data.Dataset.range(first, first + int(batches.cardinality()) * count, count)
    return untuned(tf.data.Dataset.zip((steps, batches)).with_options(options))


def served_epoch(
    parts: Sequence[tf.data.Dataset], services: Sequence[str], *, dataset_id: str, num_ahead: int
) -> tf.data.Dataset:
    """The batches of an epoch, received from the workers.

    Args:
        parts: for each worker, the `numbered` batches that it prepares.
        services: the address of each worker's dispatcher.
        dataset_id: a name that no epoch had before.
        num_ahead: number of batches that are fetched ahead from each worker.

    Raises:
        tf.errors.OpError: if a dispatcher does not take a part.
    """
    received = []
    for index, (part, service) in enumerate(zip(parts, services, strict=True)):
        _service.register_dataset(service, part, compression=None, dataset_id=dataset_id)
        sent = _service.from_dataset_id(
            _service.ShardingPolicy.OFF,
            service,
            dataset_id,
            element_spec=part.element_spec,
            max_outstanding_requests=num_ahead,
        )
        received.append(_due(sent, index, len(parts)))
    num_batches = sum(int(part.cardinality()) for part in parts)
    turns = tf.data.Dataset.range(num_batches).map(_get_turn(len(parts)))
    merged = received[0] if len(received) == 1 else tf.data.Dataset.choose_from_datasets(received, turns)
    return untuned(merged.apply(tf.data.experimental.assert_cardinality(num_batches)))


def _get_turn(count: int) -> Any:
    return tf.autograph.experimental.do_not_convert(lambda step: step % count)


def _due(sent: tf.data.Dataset, first: int, count: int) -> tf.data.Dataset:
    """Each batch when it is due, without its step: those that were sent before are left out."""

    @tf.autograph.experimental.do_not_convert
    def noted(due: tf.Tensor, numbered_batch: tuple[tf.Tensor, Any]) -> tuple[tf.Tensor, tuple[tf.Tensor, Any]]:
        step, batch = numbered_batch
        in_order = tf.debugging.assert_less_equal(step, due, "A data worker left out a batch")
        with tf.control_dependencies([in_order]):
            is_due = tf.equal(step, due)
        return tf.where(is_due, due + count, due), (is_due, batch)

    @tf.autograph.experimental.do_not_convert
    def is_due(due: tf.Tensor, batch: Any) -> tf.Tensor:
        return due

    @tf.autograph.experimental.do_not_convert
    def only_batch(due: tf.Tensor, batch: Any) -> Any:
        return batch

    return sent.scan(tf.constant(first, tf.int64), noted).filter(is_due).map(only_batch)
