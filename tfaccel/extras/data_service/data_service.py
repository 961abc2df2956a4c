"""The tf.data service of a workload's training data: what it can prepare, and its epochs."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor
from typing import Any

import tensorflow as tf

from tfaccel.data.epochs import Every
from tfaccel.data.given_data import GivenArrays
from tfaccel.data.given_datasets import GivenDataset
from tfaccel.errors import DataError, PlanError
from tfaccel.extras.data_service.data_servers import DataServers
from tfaccel.extras.data_service.sendable import check_sendable
from tfaccel.extras.data_service.served_epoch import numbered, served_epoch
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload

_NUM_KEPT = 3  # epochs of which the dispatchers keep the pipeline: the current one, and the next

Make = Callable[..., tf.data.Dataset]


class DataService:
    """Prepares the epochs of a workload in data workers: worker i of N the batches i, i + N, ... of each.

    Args:
        workload, plan: what is trained, with `plan.data_service` workers.
        taken: the names of the parameters of `train_data`.

    Raises:
        PlanError: if the workers could not prepare the same batches in the same order; the message says why.
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

        Raises:
            PlanError: if their number is unknown.
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
        """The batches of an epoch in order, received from the workers; it can be iterated over once.

        Raises:
            DataError: if the processes did not start, or one of them cannot be started any more.
        """
        if self._servers is None:
            raise DataError("The data service was not started, or is closed.")
        self._servers.wait()
        number = next(self._numbers)
        self._servers.forget(_dataset_id(number - _NUM_KEPT))
        return served_epoch(
            self._numbered(parts),
            self._servers.services,
            dataset_id=_dataset_id(number),
            num_ahead=self._num_ahead,
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
