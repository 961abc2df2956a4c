"""The tf.data service of a workload's training data: what it can prepare, and its epochs in their own order.

Every batch is sent with its step. A worker that was started again begins its part of the epoch again; its batches
before the one that is due are dropped, and a batch after it is an error. So no batch is seen twice or left out.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor
from typing import Any

import tensorflow as tf

from tfaccel.data.epochs import Every, untuned
from tfaccel.data.given_batches import GivenDataset
from tfaccel.data.given_data import GivenArrays
from tfaccel.data.private_pipelines import draws_without_seed, get_nodes, is_in_any_order
from tfaccel.errors import DataError, PlanError
from tfaccel.extras.data_service.data_servers import DataServers
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload

_NUM_KEPT = 3  # epochs of which the dispatchers keep the pipeline: the current one, and the next

Make = Callable[..., tf.data.Dataset]
MAX_BYTES = 256 << 20  # a pipeline is sent to each worker in every epoch; Protocol Buffers end at 2 GiB
_FAIL = 2  # the external state policy of DatasetToGraphV2
_STATEFUL = re.compile(r"(\w+) is stateful")
_PYTHON = re.compile(r"^(Eager)?PyFunc")
_RANDOM = re.compile(r"Random|Rng|Multinomial|ParameterizedTruncatedNormal")
_service = tf.data.experimental.service


class DataService:
    """Prepares the epochs of a workload in data workers: worker i of N the batches i, i + N, ... of each.

    Args:
        workload, plan: what is trained, with `plan.data_service` workers.
        taken: the names of the parameters of `train_data`.
    """

    def __init__(self, workload: Workload, plan: Plan, taken: Collection[str]) -> None:
        self._name, self._num_workers = workload.name, plan.data_service or 1
        self._num_threads, self._num_ahead = plan.data_threads, max(2, plan.prefetch_batches)
        self._splits = "every" in taken
        self._servers: DataServers | None = None
        self._numbers = itertools.count()
        self._check_kind(workload.train_data)

    def parts(self, make: Make, epoch: int, start_step: int) -> list[tf.data.Dataset]:
        """The batches that each worker prepares.

        Args:
            make: `make(epoch, start_step, every=...)` returns a dataset of batches; see `tfaccel.Workload`.
            epoch, start_step: arguments for it.
        """
        every: list[Every | None] = [None]
        if self._splits:
            every = [(index, self._num_workers) for index in range(self._num_workers)]
        parts = [make(epoch, start_step, every=one) for one in every]
        if any(part.cardinality() == tf.data.UNKNOWN_CARDINALITY for part in parts):
            raise PlanError(
                f"The number of batches of train_data of workload {self._name!r} is unknown, so that the end of an "
                f"epoch and the loss of a data worker look alike. Received: data_service={self._num_workers}. Add "
                "`.apply(tf.data.experimental.assert_cardinality(NUMBER))`, or use data_service=None."
            )
        return parts

    def start(self, parts: Sequence[tf.data.Dataset]) -> None:
        """Starts the processes, which takes seconds in the background, if they can prepare these parts.

        Raises:
            PlanError: if they cannot.
        """
        check_sendable(self._numbered(parts)[0], self._name, self._num_workers)
        self._servers = DataServers(self._num_workers)

    def epoch(self, parts: Sequence[tf.data.Dataset]) -> tf.data.Dataset:
        """The batches of an epoch in order, received from the workers; it can be iterated over once."""
        if self._servers is None:
            raise DataError("The data service was not started, or is closed.")
        self._servers.wait()
        number = next(self._numbers)
        self._servers.forget(_dataset_id(number - _NUM_KEPT))
        return served_epoch(
            self._numbered(parts), self._servers.services, dataset_id=_dataset_id(number), num_ahead=self._num_ahead
        )

    def failures_named(self) -> contextlib.AbstractContextManager[None]:
        """Within the block, an error that a failure of the processes caused becomes a `DataError` that says so."""
        return contextlib.nullcontext() if self._servers is None else self._servers.failures_named()

    @property
    def process_ids(self) -> dict[str, int]:
        """The processes that serve; see `DataServers`."""
        return {} if self._servers is None else self._servers.process_ids

    def close(self, thread: Executor | None = None) -> None:
        """Ends the processes.

        Args:
            thread: makes epochs; it is shut down before, since it would wait without end for processes that are gone.
        """
        if self._servers is not None:
            self._servers.stop_waiting()
            if thread is not None:
                thread.shutdown(wait=True, cancel_futures=True)
            self._servers.close()
            self._servers = None

    def _numbered(self, parts: Sequence[tf.data.Dataset]) -> list[tf.data.Dataset]:
        return [numbered(part, index, len(parts), self._num_threads) for index, part in enumerate(parts)]

    def _check_kind(self, train_data: Any) -> None:
        received = f"Received: data_service={self._num_workers}."
        if isinstance(train_data, GivenArrays):
            raise PlanError(
                "The training data are arrays in memory: each step takes its rows from them, and there is nothing for "
                f"data workers to prepare. {received} Use data_service=None (leave out --data_service)."
            )
        if isinstance(train_data, GivenDataset) and not train_data.prepares_ahead:
            raise PlanError(
                "The order of this tf.data.Dataset may depend on how often it was iterated over before, which data "
                f"workers do not know: their epochs could be other ones. {received} Use data_service=None, or pass a "
                "tfaccel.Workload, whose train_data makes each epoch from seed and epoch."
            )
        if self._num_workers > 1 and not self._splits:
            raise PlanError(
                f"train_data of workload {self._name!r} takes no `every`, without which each of {self._num_workers} "
                f"data workers would prepare all batches. {received} Use data_service=1, or let train_data take "
                "`every=(index, count)`, as described for tfaccel.Workload."
            )


def _dataset_id(number: int) -> str:
    return f"epoch-{number}"


def check_sendable(dataset: tf.data.Dataset, name: str, num_workers: int) -> None:
    """Raises PlanError if data workers cannot prepare a dataset, or not the same batches in the same order."""
    reason = _why_not(dataset)
    if reason:
        raise PlanError(
            f"tf.data service workers cannot prepare train_data of workload {name!r}: {reason} "
            f"Received: data_service={num_workers}. Or use data_service=None (leave out --data_service)."
        )


def _why_not(dataset: tf.data.Dataset) -> str:
    varies = draws_without_seed(dataset)
    if varies:
        return f"{varies[0].lower()}{varies[1:]}."
    variant = tf.data.experimental.to_variant(dataset)
    try:
        graph = tf.raw_ops.DatasetToGraphV2(
            input_dataset=variant, external_state_policy=_FAIL, strip_device_assignment=True
        )
    except tf.errors.OpError as error:
        found = _STATEFUL.search(str(error.message))
        return _about_state(found[1]) if found else f"TensorFlow cannot send it ({error.message:.200})."
    content = graph.numpy()
    if not 0 < len(content) <= MAX_BYTES:  # 0: larger than a message can be
        size = f"it holds {len(content) >> 20} MiB" if content else "it holds 2 GiB or more"
        return (
            f"{size} of arrays, which would be sent to each worker in every epoch; at most {MAX_BYTES >> 20} MiB are. "
            "Read the examples from files in the pipeline."
        )
    return _about_graph(tf.compat.v1.GraphDef.FromString(content))


def _about_graph(graph: tf.compat.v1.GraphDef) -> str:
    for node in get_nodes(graph):
        if _PYTHON.search(node.op):
            return _about_state(node.op)
        if is_in_any_order(node):
            return f"{node.op} is not deterministic. Leave out `deterministic=False`."
    return ""


def _about_state(operation: str) -> str:
    if _PYTHON.search(operation):
        return (
            "it runs Python code (tf.py_function, tf.numpy_function, from_generator, a PyDataset), which exists in "
            "this process only. Use TensorFlow's operations."
        )
    if _RANDOM.search(operation):
        return (
            f"{operation} draws random numbers that depend on earlier draws. Use tf.random.stateless_* with seeds that "
            "depend on seed, epoch and step."
        )
    return f"{operation} reads or changes state of this process, such as a variable. Use constants."


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
