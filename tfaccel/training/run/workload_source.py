"""The training data of a workload: one dataset per epoch, resumable at any step, with the threads of a plan."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from tfaccel.data.epochs import Every, Shard, shard_rows
from tfaccel.data.feeds import HOST, IteratorBatches, IteratorFeed, ResumedPlace, may_save_state
from tfaccel.data.given_data import GivenArrays
from tfaccel.data.private_pipelines import pipeline_classes
from tfaccel.data.sources import ArrayFeed, IteratorSource, arrays_on, num_bytes_of_batch
from tfaccel.errors import PlanError, WorkloadError
from tfaccel.load_extra import load_extra
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload, call_own
from tfaccel.training.runtime import background_thread
from tfaccel.training.steps.replicas import Replicas

_BEGIN = ResumedPlace()
_MAX_JOINED_EPOCHS = 64
_BYTES_OF_JOINED_EPOCHS = 4 << 20


class WorkloadSource(IteratorSource):
    """Batches of `workload.train_data`; the order of an epoch depends only on seed and epoch.

    If `train_data` takes `start_step`, an epoch starts there directly; otherwise at a saved position. If it
    takes `shard`, each of several workers reads only its own rows; otherwise every worker reads all rows and keeps its
    own. If it takes `num_epochs`, a single worker requests several consecutive small epochs at once. If the plan
    augments on the device, batches are read without augmentation, and the replicas augment their rows. Arrays given to
    `tfaccel.train` are not read through a dataset on CPUs: each step gathers its rows.

    While an epoch trains, a thread calls `train_data` for the next one and fetches its first batch; not if
    `train_data.prepares_ahead` is False, because an epoch changes the contents of the next one.

    The position in a dataset that `train_data` cannot begin at a step is saved with each checkpoint; where tf.data
    cannot do that, the first batches are read again, and the time is logged.

    If the plan has data workers, they prepare the same batches in the same order.

    Args:
        epochs: total number of epochs; no more are prepared.
        start: where in this epoch to start; its `step` counts.
    """

    open_feed: Any  # an IteratorFeed, or ArrayFeed
    is_ahead = False  # whether batches of the next epoch have been taken

    def __init__(
        self,
        workload: Workload,
        plan: Plan,
        replicas: Replicas,
        *,
        seed: int,
        epochs: int = 1,
        start_epoch: int = 0,
        start: ResumedPlace = _BEGIN,
    ) -> None:
        self._workload = workload
        self._plan = plan
        self._replicas, self._device = replicas, HOST
        self._seed = seed
        self._epoch = start_epoch
        self._epochs = epochs
        self._thread = background_thread()
        self._next: Future[tuple[IteratorFeed | ArrayFeed, int]] | None = None
        self._epochs_in_feed = 0
        self._pipeline, self._saves_state = "", False
        self._start, self._start_step = start, start.step
        self._left_out: Collection[tuple[int, int]] = ()
        self._shares_reading = replicas.num_workers > 1
        self._prepares_ahead = getattr(workload.train_data, "prepares_ahead", True)
        self._taken = inspect.signature(workload.train_data).parameters
        self.batch_size = plan.global_batch_size // plan.accumulation_steps
        self._batches = IteratorBatches()
        self._shard: Shard | None = None
        self._augment = _augment_on_device(workload, plan)
        readable = "shard" in self._taken and not (self._augment is not None and workload.augment_mixes_rows)
        if replicas.num_workers > 1 and readable and self.batch_size >= replicas.num_replicas:
            self._shard = (replicas.worker_index, replicas.num_workers)
            self._batches = IteratorBatches(self.batch_size, shard_rows(self.batch_size, self._shard)[0])
        self._service = load_extra("data_service")(workload, plan, self._taken) if plan.data_service else None
        first = self._get_parts(start_epoch, start.step)
        before = start.step if self._begins_anywhere else 0
        super().__init__(first[0], num_batches=_length(first, workload, before))
        if self._shard is not None:
            self._check_rows()
        if self._augment is not None:
            self._batches = replace(self._batches, augment=self._augment, mixes_rows=workload.augment_mixes_rows)
            self.batch_spec = _get_specs(self._augment, self.batch_spec)
        self._first: list[tf.data.Dataset] | None = first
        if self._service is not None:
            self._service.start(first)

    def leave_out(self, positions: Collection[tuple[int, int]]) -> None:
        """Leaves out the batches at some positions: epoch, and step in it, from 0."""
        self._left_out = positions

    def feed(self) -> Any:
        """The batches of the next epoch."""
        self.dropped = {step for epoch, step in self._left_out if epoch == self._epoch}
        if self._epochs_in_feed:
            self.open_feed.begin(self.num_batches)
        else:
            super().close()
            self.open_feed, self._epochs_in_feed = self._next.result() if self._next else self._feed_from(self._epoch)
            self._first, behind = None, self._epoch + self._epochs_in_feed
            ahead = self._prepares_ahead and behind < self._epochs
            self._next = self._thread.submit(self._feed_from, behind) if ahead else None
        self._epoch += 1
        self._epochs_in_feed -= 1
        return self.open_feed

    def _feed_from(self, epoch: int) -> tuple[IteratorFeed | ArrayFeed, int]:
        """The batches from an epoch on, and the number of epochs that they cover."""
        joined = max(1, min(self._epochs - epoch, self._num_joined_epochs))
        first_step = self._start_step if self._first is not None else 0
        if self._arrays is not None:
            which = {"seed": self._seed, "epoch": epoch, "start_step": first_step, "num_epochs": joined}
            order = np.concatenate(self._arrays.row_numbers(self.batch_size, **which))
            feed = ArrayFeed.of_rows(self._tensors, order, self.batch_size, self._device)
        elif joined == 1:
            is_first = self._first is not None
            return self._opened(self._first or self._get_parts(epoch), self._start if is_first else _BEGIN), 1
        else:
            dataset = self._make_dataset(epoch, first_step, num_epochs=joined)
            feed = ArrayFeed.of_dataset(dataset, self.batch_size)
        feed.begin((self.num_batches or 0) - first_step)
        return feed, joined

    @functools.cached_property
    def _arrays(self) -> GivenArrays | None:
        """The arrays that steps gather their batches from, where they run; None if batches are copied there."""
        plan, data = self._plan, self._workload.train_data
        if type(data) is not GivenArrays or self._augment is not None or self._shares_reading:
            return None
        if all(device.startswith("CPU") for device in plan.devices):
            return data
        if plan.prefetch_to_device or plan.embeddings_on == "host":  # ids are read on the host
            return None
        self._device = self._replicas.device_of_arrays(data.tensors)
        return None if self._device == HOST else data

    @functools.cached_property
    def _tensors(self) -> Any:
        return arrays_on(self._device, self._arrays.tensors) if self._arrays is not None else None

    @functools.cached_property
    def _num_joined_epochs(self) -> int:
        """How many epochs are small enough to prepare together, since preparing one takes as long as several steps."""
        if (
            self._service is not None
            or "num_epochs" not in self._taken
            or self._augment is not None
            or self._shares_reading
        ):
            return 1
        num_bytes = (self.num_batches or 0) * num_bytes_of_batch(self.batch_spec, self.batch_size)
        return min(_MAX_JOINED_EPOCHS, _BYTES_OF_JOINED_EPOCHS // num_bytes) if num_bytes else 1

    def close(self) -> None:
        """Releases the iterator and the thread."""
        super().close()
        if self._service is not None:
            self._service.close(self._thread)
        self._thread.shutdown(wait=False, cancel_futures=True)

    @property
    def _begins_anywhere(self) -> bool:
        """Whether `train_data` can begin at any step."""
        return "start_step" in self._taken

    def place_of_data(self, step: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Where the next batch is after `step` steps of the epoch: JSON values, and arrays."""
        if not step or self._begins_anywhere or self.is_ahead or not isinstance(self.open_feed, IteratorFeed):
            return {}, {}
        state = self.open_feed.state() if self._saves_state else None
        self._saves_state = state is not None
        return {"next": self.open_feed.checksum_of_next(), "reading": self._reading}, state or {}

    def failures_named(self) -> contextlib.AbstractContextManager[None]:
        """Within the block, an error that lost data workers caused becomes a `DataError` that names them."""
        return contextlib.nullcontext() if self._service is None else self._service.failures_named()

    def _opened(self, parts: list[tf.data.Dataset], start: ResumedPlace) -> IteratorFeed:
        dataset = parts[0] if self._service is None else self._service.epoch(parts)
        dataset = with_plan(dataset, self._plan, "train_data")
        if self._plan.prefetch_to_device:
            dataset = fetched_to("/GPU:0", dataset)  # no other GPU is visible
        self._saves_state = may_save_state(dataset)
        self._pipeline = pipeline_classes(dataset)
        return self._checked_start(start).feed(dataset, self._batches)

    def _checked_start(self, start: ResumedPlace) -> ResumedPlace:
        """Where to start in the dataset itself, with what is known of that place if the batches are the same ones."""
        if self._begins_anywhere or not start.step:
            return _BEGIN
        return start if start.saved_by == self._reading else replace(start, state=None, next_checksum=None)

    @property
    def _reading(self) -> str:
        """What the contents and the state of an iterator depend on."""
        return f"{self._pipeline} {self.batch_size} {self._shard} {self._augment is not None}"

    def _get_parts(self, epoch: int, start_step: int = 0) -> list[tf.data.Dataset]:
        """The batches of an epoch: all, or those of each data worker."""
        if self._service is None:
            return [self._make_dataset(epoch, start_step)]
        return self._service.parts(self._make_dataset, epoch, start_step)

    def _make_dataset(
        self, epoch: int, start_step: int = 0, num_epochs: int = 1, every: Every | None = None
    ) -> tf.data.Dataset:
        options: dict[str, Any] = {"seed": self._seed, "epoch": epoch}
        if num_epochs > 1:
            options["num_epochs"] = num_epochs
        if every is not None:
            options["every"] = every
        if self._plan.cache_data:
            if "cache" not in self._taken:
                raise PlanError(
                    f"The plan caches data, but train_data of workload {self._workload.name!r} takes no `cache`. Set "
                    "cache_data=False."
                )
            options["cache"] = True
        if self._shard is not None:
            options["shard"] = self._shard
        if self._augment is not None:
            options["augmented"] = False
        if self._begins_anywhere and start_step:
            options["start_step"] = start_step
        of = f"train_data of workload {self._workload.name!r}"
        dataset = checked(call_own(of, self._workload.train_data, self.batch_size, **options), "train_data")
        return dataset.skip(start_step) if num_epochs > 1 and not self._begins_anywhere else dataset

    def _check_rows(self) -> None:
        """Raises WorkloadError unless every batch has this worker's rows; sets `batch_spec` to the global batch's."""
        start, stop = shard_rows(self.batch_size, self._shard)
        rows = {
            spec.shape[0] if isinstance(spec, tf.TensorSpec) and spec.shape.rank else None
            for spec in tf.nest.flatten(self.batch_spec)
        }
        if rows != {stop - start}:
            found = ", ".join("an unknown number of" if n is None else str(n) for n in sorted(rows, key=str))
            raise WorkloadError(
                f"train_data of workload {self._workload.name!r} takes `shard`, so that with shard={self._shard} every "
                f"batch of {self.batch_size} must have {stop - start} rows, known beforehand. Received: {found} rows. "
                "Use full batches (`drop_remainder=True`) only, or leave out the argument `shard`."
            )
        self.batch_spec = tf.nest.map_structure(
            lambda spec: tf.TensorSpec([self.batch_size, *spec.shape[1:]], spec.dtype), self.batch_spec
        )


def _augment_on_device(workload: Workload, plan: Plan) -> Callable[[Any], Any] | None:
    """The function with which replicas augment their rows; None if `train_data` augments."""
    if plan.augment_on == "host":
        return None
    if workload.augment is None:
        raise PlanError(
            f"The plan augments on the device, but workload {workload.name!r} has no `augment`. Set augment_on='host'."
        )
    return workload.augment


def _get_specs(augment: Callable[[Any], Any], batch_spec: Any) -> Any:
    """The specs of augmented batches, from the specs before augmentation."""
    outputs = tf.function(augment, autograph=False).get_concrete_function(batch_spec).structured_outputs
    return tf.nest.map_structure(lambda output: tf.TensorSpec(output.shape, output.dtype), outputs)


def _length(parts: list[tf.data.Dataset], workload: Workload, start_step: int) -> int | None:
    """Number of batches in the whole epoch, given its datasets from `start_step` on; None if unknown."""
    lengths = [int(part.cardinality()) for part in parts]
    length = sum(lengths)
    if tf.data.INFINITE_CARDINALITY in lengths:
        raise WorkloadError(
            f"train_data of workload {workload.name!r} returned an infinite dataset. Return one epoch, without "
            "`.repeat()`."
        )
    if length == 0 and not start_step:
        raise WorkloadError(
            f"train_data of workload {workload.name!r} returned no batches. Use a smaller global_batch_size, or "
            "more data."
        )
    return length + start_step if length >= 0 else None


def with_plan(dataset: Any, plan: Plan, name: str) -> tf.data.Dataset:
    """A dataset with the plan's threads and prefetching."""
    dataset = checked(dataset, name)
    if plan.data_threads is not None:
        options = tf.data.Options()
        options.threading.private_threadpool_size = plan.data_threads
        dataset = dataset.with_options(options)
    return dataset.prefetch(plan.prefetch_batches) if plan.prefetch_batches else dataset


def fetched_to(device: str, dataset: tf.data.Dataset) -> tf.data.Dataset:
    """A dataset whose next batch is prefetched to a device's memory; it can only be iterated."""
    specs = tf.nest.flatten(dataset.element_spec)
    odd = [spec for spec in specs if not isinstance(spec, tf.TensorSpec) or spec.dtype == tf.string]
    if odd:
        raise PlanError(
            f"The plan prefetches to the device, but batches hold {odd[0]}, which cannot be stored in GPU memory. "
            "Set prefetch_to_device=False."
        )
    options = tf.data.Options()  # added to the dataset's own options
    options.autotune.enabled = False
    return dataset.apply(tf.data.experimental.prefetch_to_device(device, 1)).with_options(options)


def checked(dataset: Any, name: str) -> tf.data.Dataset:
    """The dataset that a workload's function `name` returned."""
    if not isinstance(dataset, tf.data.Dataset):
        raise WorkloadError(f"A workload's {name} must return a tf.data.Dataset of batches. Received: {dataset!r:.200}")
    return dataset
