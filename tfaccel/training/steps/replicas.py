"""The replicas of a strategy, as plain devices that each hold a component of every distributed variable."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.data.feeds import HOST
from tfaccel.errors import PlanError
from tfaccel.hardware.detect import detect_hardware
from tfaccel.training.private import private_api
from tfaccel.training.private.private_tensorflow import keep_collectives_apart
from tfaccel.training.steps.clocks import ReduceClock

_NUMBERS_AT_ONCE = 1 << 24
_GATHERED_ON_GPU = {"bool", "int32", "int64", "float16", "bfloat16", "float32", "float64"}  # by TensorFlow's kernels
_PARTS_OF_GPU = 32  # arrays of at most one part of its memory are kept there


class Replicas:
    """The replicas of a model: how many there are in all, and which of them this process holds.

    Args:
        strategy: any `tf.distribute.Strategy`; the default strategy has one replica.

    Raises:
        PlanError: for strategies that Keras 3 cannot train under, or whose devices TensorFlow does not have.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        refuse_unsupported(strategy)
        warn_of_keras_distribution()
        self.strategy = strategy
        self.is_default = not is_distributed(strategy)
        self.num_replicas: int = strategy.num_replicas_in_sync
        self.devices: tuple[str, ...] = ("",) if self.is_default else tuple(strategy.extended.worker_devices)
        _refuse_missing_devices(self.devices)
        self.num_workers: int = max(1, self.num_replicas // max(1, len(self.devices)))
        self.worker_index: int = _worker_index(strategy) if self.num_workers > 1 else 0
        self.first_replica: int = self.worker_index * len(self.devices)
        self.is_chief: bool = self.num_workers == 1 or bool(strategy.extended.should_checkpoint)
        self.current_local = 0  # the local replica of the innermost `local` block
        self.reduce_clock: ReduceClock | None = None  # measures the time of reductions between workers
        if self.num_workers == 1 and self.num_replicas > 1:
            keep_collectives_apart(strategy)

    @property
    def are_gpus(self) -> bool:
        """Whether steps run on GPUs."""
        return bool(tf.config.list_logical_devices("GPU")) if self.is_default else "GPU" in self.devices[0]

    def device_of_arrays(self, arrays: Any) -> str:
        """Where batches are gathered from arrays in memory: on the GPU, if there is one and the arrays are small."""
        kept = [array for array in keras.tree.flatten(arrays) if array is not None]
        are_gathered = all(array.dtype.name in _GATHERED_ON_GPU for array in kept)
        if self.num_replicas > 1 or not self.are_gpus or not are_gathered:
            return HOST
        num_bytes = sum(array.dtype.size * array.shape.num_elements() for array in kept)
        gpu = self.devices[0] or "/GPU:0"
        return gpu if num_bytes * _PARTS_OF_GPU <= _memory_bytes_of_gpu() else HOST

    def components(self, variables: Sequence[keras.Variable], replica: int) -> list[tf.Variable]:
        """The plain variables that a local replica (0, 1, …) holds of the given Keras variables."""
        every = (self.strategy.experimental_local_results(private_api.tf_variable(one)) for one in variables)
        return [local[min(replica, len(local) - 1)] for local in every]

    def copies(self, variables: Sequence[keras.Variable]) -> list[tf.Variable]:
        """The plain variables that all local replicas hold of Keras variables, one replica after the other."""
        return [one for replica in range(len(self.devices)) for one in self.components(variables, replica)]

    @contextlib.contextmanager
    def local(self, variables: Sequence[keras.Variable], replica: int) -> Iterator[None]:
        """While tracing: uses the replica's device, and makes Keras variables refer to its components."""
        if self.is_default:
            yield
            return
        with (
            tf.device(self.devices[replica]),
            private_api.local_variables(variables, self.components(variables, replica)),
        ):
            before, self.current_local = self.current_local, replica
            try:
                yield
            finally:
                self.current_local = before

    def local_results(self, values: Any) -> list[Any]:
        """Splits a nest of per-replica values into one nest per local replica."""
        split = [self.strategy.experimental_local_results(value) for value in tf.nest.flatten(values)]
        each = ([local[min(i, len(local) - 1)] for local in split] for i in range(len(self.devices)))
        return [tf.nest.pack_sequence_as(values, flat) for flat in each]

    def timed(self, inputs: Any, reduce: Callable[[], Any]) -> Any:
        """What `reduce()` returns; the time that it takes is measured if there is a clock for that."""
        return reduce() if self.reduce_clock is None else self.reduce_clock.timed(inputs, reduce)

    def mean_of_weighted(self, logs: Any) -> Any:
        """The mean over the replicas of logs weighted by `weighted_by_rows`."""

        def mean(value: Any) -> Any:
            local = self.strategy.experimental_local_results(value)[0]
            return self.strategy.reduce("SUM" if local.dtype.is_floating else "MEAN", value, axis=None)

        return keras.tree.map_structure(mean, logs)

    def concatenate(self, outputs: list[Any]) -> Any:
        """Outputs of the replicas of all workers as one nest, with the rows in order."""
        if self.num_workers > 1:
            with self.strategy.scope():
                return keras.tree.map_structure(lambda v: self.strategy.gather(v, axis=0), outputs[0])

        def joined(*parts: Any) -> Any:
            is_sparse = isinstance(parts[0], tf.SparseTensor)
            return tf.sparse.concat(0, list(parts)) if is_sparse else tf.concat(parts, axis=0)

        return keras.tree.map_structure(joined, *outputs)

    def differs_between_workers(self, value: int) -> bool:
        """Whether any worker's value (below 2**31) differs from the chief's; every worker gets the same answer."""
        differs = value != self.same_on_all_workers(lambda: value)
        return self.sum_over_workers([int(differs)])[0] > 0

    def bytes_of_chief(self, content: bytes) -> bytes:
        """Broadcasts the chief's bytes to every worker."""
        if self.num_workers == 1:
            return content
        num_bytes = self.same_on_all_workers(lambda: len(content))
        padded = (content if self.is_chief else b"").ljust(-(-num_bytes // 4) * 4, b"\0")
        numbers, parts = np.frombuffer(padded, np.int32), []
        for start in range(0, len(numbers), _NUMBERS_AT_ONCE):
            parts.append(self._sum_of_firsts(numbers[start : start + _NUMBERS_AT_ONCE], first=0))
        return b"".join(part.tobytes() for part in parts)[:num_bytes]

    def sum_over_workers(self, numbers: Sequence[int]) -> list[int]:
        """The sums over all workers of each number (below 2**31 in total); every worker gets the same answer."""
        if self.num_workers == 1:
            return list(numbers)
        return list(map(int, self._sum_of_firsts(np.array(numbers, np.int64), first=self.first_replica)))

    def sum_arrays_over_workers(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        """The sums over all workers of each array; every worker gets the same answer."""
        if self.num_workers == 1 or not arrays:
            return arrays
        flat = np.concatenate([np.asarray(one, np.float64).ravel() for one in arrays])
        totals = self._sum_of_firsts(flat, first=self.first_replica)
        parts = np.split(totals, np.cumsum([one.size for one in arrays])[:-1])
        return [part.reshape(one.shape).astype(one.dtype) for part, one in zip(parts, arrays, strict=True)]

    def wait_for_all_workers(self) -> None:
        """Returns when every worker has called this; a worker that ends early makes the others fail."""
        self.same_on_all_workers(lambda: 0)

    def same_on_all_workers(self, draw: Callable[[], int]) -> int:
        """A number below 2**31 that the chief draws and broadcasts to every worker."""
        if self.num_workers == 1:
            return draw()
        return int(self._sum_of_firsts(np.array(draw() if self.first_replica == 0 else 0, np.int64), first=0))

    def _sum_of_firsts(self, values: np.ndarray, *, first: int) -> np.ndarray:
        """The sum over all replicas of an array on one of them, and zeros on the others.

        Args:
            first: the replica that has it; one of another worker gives zeros on all of this one.
        """

        def share(context: tf.distribute.ReplicaContext) -> tf.Tensor:
            return tf.constant(values if context.replica_id_in_sync_group == first else np.zeros_like(values))

        shares = self.strategy.experimental_distribute_values_from_function(share)
        return np.asarray(self.strategy.reduce("SUM", shares, axis=None))


def _worker_index(strategy: tf.distribute.Strategy) -> int:
    resolver = strategy.cluster_resolver
    chiefs = 1 if "chief" in resolver.cluster_spec().jobs and resolver.task_type == "worker" else 0
    return int(resolver.task_id) + chiefs


def is_distributed(strategy: tf.distribute.Strategy) -> bool:
    """Whether a strategy is another than the one outside of all scopes."""
    with tf.Graph().as_default():  # leaves the caller's strategy scopes
        return strategy is not tf.distribute.get_strategy()


def refuse_unsupported(strategy: tf.distribute.Strategy) -> None:
    """Raises PlanError for strategies under which Keras 3 models cannot be trained correctly."""
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        raise PlanError(
            "Received a model built under ParameterServerStrategy. Keras 3 does not support parameter server training "
            "(step counts are lost, so Adam and schedules drift). Build it under MultiWorkerMirroredStrategy instead."
        )
    if isinstance(strategy, tf.distribute.experimental.CentralStorageStrategy):
        raise PlanError(
            "Received a model built under CentralStorageStrategy, which gives wrong logs and clips each replica's "
            "gradients before their sum. Build it under MirroredStrategy instead."
        )


def _refuse_missing_devices(devices: Sequence[str]) -> None:
    """Raises PlanError for devices that TensorFlow does not have: two replicas on one would wait for ever."""
    there = [short_name(device.name) for device in tf.config.list_logical_devices()]
    missing = [name for name in map(short_name, filter(None, devices)) if name not in there]
    if missing:
        raise PlanError(
            f"The model's strategy uses {', '.join(missing)}, which TensorFlow does not have. Received: the devices "
            f"{', '.join(map(short_name, devices))}; there are {', '.join(there)}. Choose among these, or split a CPU "
            "at the start of the program: "
            "tf.config.set_logical_device_configuration(tf.config.list_physical_devices('CPU')[0], "
            f"[tf.config.LogicalDeviceConfiguration()] * {len(devices)})."
        )


def short_name(device: str) -> str:
    """A device as plans name it, such as "GPU:0"."""
    return ":".join(device.split(":")[-2:]).upper()


def warn_of_keras_distribution() -> None:
    """Warns if a `keras.distribution` is set, which Keras ignores on TensorFlow."""
    found = keras.distribution.distribution()
    if found is not None:
        warnings.warn(
            f"keras.distribution does nothing on TensorFlow: {type(found).__name__} is set, but the whole model is on "
            "each device. Build it in the scope of a tf.distribute strategy. For models larger than a device, see "
            "docs/guides/large_models.md.",
            stacklevel=1,  # a fixed stack level, so that Python shows the warning once
        )


def current_replica() -> int:
    """The replica being traced in this thread; 0 outside of replicas, or if it is not known while tracing."""
    context = tf.distribute.get_replica_context()
    number = None if context is None else tf.get_static_value(context.replica_id_in_sync_group)
    return 0 if number is None else int(number)


def split_rows(num_rows: Any, replica: Any, num_replicas: int) -> tuple[Any, Any]:
    """Start and stop row of one replica's contiguous share of a global batch.

    Shares differ by at most one row. If there are fewer rows than replicas, the first replicas get them.

    Example:

    >>> [split_rows(5, r, 2) for r in range(2)]
    [(0, 3), (3, 5)]
    """
    start = (num_rows * replica + num_replicas - 1) // num_replicas
    stop = (num_rows * (replica + 1) + num_replicas - 1) // num_replicas
    return start, stop


@functools.cache
def _memory_bytes_of_gpu() -> int:
    """The memory of the smallest GPU that this process may take; 0 if it is not known."""
    sizes = [gpu.memory_bytes or 0 for gpu in detect_hardware().gpus]
    for gpu in tf.config.list_physical_devices("GPU"):
        limits = tf.config.get_logical_device_configuration(gpu) or ()
        sizes += [one.memory_limit << 20 for one in limits if one.memory_limit]
    return min(sizes, default=0)
