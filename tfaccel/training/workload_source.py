"""The training data of a workload, one data set an epoch, to be resumed at any step."""

from __future__ import annotations

import inspect
from typing import Any

import tensorflow as tf

from tfaccel.data.sources import IteratorFeed, IteratorSource
from tfaccel.errors import PlanError, WorkloadError
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload


class WorkloadSource(IteratorSource):
    """Batches of `workload.train_data`; the order of an epoch follows from seed and epoch alone.

    Args:
        workload, plan, seed: what is trained, how, and with which seed.
        start_epoch, start_step: where to begin; the step is skipped to in the first epoch only.
    """

    def __init__(self, workload: Workload, plan: Plan, *, seed: int, start_epoch: int = 0, start_step: int = 0) -> None:
        self._workload = workload
        self._plan = plan
        self._seed = seed
        self._epoch = start_epoch
        self._skip = start_step
        self.batch_size = plan.global_batch_size // plan.accumulation_steps
        first = self._dataset_of(start_epoch)
        super().__init__(first, num_batches=_length(first, workload))
        self._first: tf.data.Dataset | None = first

    def feed(self) -> IteratorFeed:
        """The batches of the next epoch."""
        dataset = self._first if self._first is not None else self._dataset_of(self._epoch)
        self._first = None
        if self._skip:
            dataset = dataset.skip(self._skip)
        self.close()
        self._feed = IteratorFeed(dataset)
        self._epoch += 1
        self._skip = 0
        return self._feed

    def _dataset_of(self, epoch: int) -> tf.data.Dataset:
        options: dict[str, Any] = {"seed": self._seed, "epoch": epoch}
        if self._plan.cache_data:
            if "cache" not in inspect.signature(self._workload.train_data).parameters:
                raise PlanError(
                    f"The plan caches data, but train_data of workload {self._workload.name!r} takes no `cache`. Set "
                    "cache_data=False."
                )
            options["cache"] = True
        return with_plan(self._workload.train_data(self.batch_size, **options), self._plan, "train_data")


def with_plan(dataset: Any, plan: Plan, name: str) -> tf.data.Dataset:
    """A data set with the plan's threads and prefetching.

    Raises:
        WorkloadError: if it is no `tf.data.Dataset`.
    """
    if not isinstance(dataset, tf.data.Dataset):
        raise WorkloadError(f"A workload's {name} must return a tf.data.Dataset of batches. Received: {dataset!r:.200}")
    if plan.data_threads is not None:
        options = tf.data.Options()
        options.threading.private_threadpool_size = plan.data_threads
        dataset = dataset.with_options(options)
    return dataset.prefetch(plan.prefetch_batches) if plan.prefetch_batches else dataset


def _length(dataset: tf.data.Dataset, workload: Workload) -> int | None:
    length = int(dataset.cardinality())
    if length == tf.data.INFINITE_CARDINALITY:
        raise WorkloadError(
            f"train_data of workload {workload.name!r} returned an infinite data set. Return one epoch, without "
            "`.repeat()`."
        )
    if length == 0:
        raise WorkloadError(
            f"train_data of workload {workload.name!r} returned no batch at all. Use a smaller global_batch_size, or "
            "more data."
        )
    return length if length > 0 else None
