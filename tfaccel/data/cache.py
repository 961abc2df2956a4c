"""A cache of decoded examples: as tensors in memory, filled as they are first read, or as memory-mapped files.

`CacheOptions` say where it may be, and `choose_cache` where it is.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tfaccel.data.epochs import Reader, ordered_map
from tfaccel.errors import DataError
from tfaccel.hardware.cluster import find_cluster
from tfaccel.hardware.cpu import free_memory_bytes
from tfaccel.hardware.machine import Machine
from tfaccel.local_path import local_path
from tfaccel.short_repr import noun

if TYPE_CHECKING:
    import tensorflow as tf

logger = logging.getLogger("tfaccel")

_NUM_MEASURED = 8  # examples, spread over the set
_ROWS_AT_ONCE = 64

Place = Literal["auto", "memory", "disk", "none"]
PLACES = ("auto", "memory", "disk", "none")

# The rest is left for training.
_PART_OF_MEMORY = 1 / 3
_PART_OF_DISK = 1 / 2


class ExampleCache:
    """Caches the examples of a function that reads them by row number, wherever they fit.

    The place depends on the size of a few decoded examples and on the free space. The choice is logged once with its
    reason. Memory is filled as examples are first read; a file is filled, in parallel, before the first batch.

    Args:
        read: `read(rows)` takes row numbers (an int64 tensor of shape (num_rows,)) and returns a nest of tensors with
            as many rows. It is traced.
        num_examples: total number of rows.
        options: where to keep them.
        noun: what the examples are called in the log.

    Attributes:
        read: as above, from the cache if there is one.
        choice: where examples are kept, and why; None for strings, whose size is not fixed.

    Example:
        >>> import tensorflow as tf
        >>> cache = ExampleCache(lambda rows: tf.cast(rows, tf.float32) / 2, num_examples=9)
        >>> cache.read(tf.constant([3, 8], tf.int64)).numpy().tolist()
        [1.5, 4.0]
    """

    def __init__(
        self, read: Reader, *, num_examples: int, options: CacheOptions | None = None, noun: str = "examples"
    ) -> None:
        import tensorflow as tf

        self._options = options or CacheOptions()
        self._num_examples = num_examples
        traced = tf.function(read, input_signature=[tf.TensorSpec([None], tf.int64)], autograph=False)
        rows = np.unique(np.linspace(0, num_examples - 1, _NUM_MEASURED).astype(np.int64))
        self._sample = traced(tf.constant(rows))
        leaves = [leaf.numpy() for leaf in tf.nest.flatten(self._sample)]
        self.choice: CacheChoice | None = None
        self.read = read
        if any(leaf.dtype == object for leaf in leaves):
            return
        num_bytes = sum(leaf.nbytes for leaf in leaves) * num_examples // len(rows)
        caches = self._options.path
        self.choice = choose_cache(
            num_bytes,
            free_memory_bytes=_own_memory_bytes(Machine.here()),
            place=self._options.place,
            free_disk_bytes=0 if caches is None else _free_disk_bytes(caches),
        )
        logger.info(
            "Cache of %d %s: %s (%s). CacheOptions(place=...), or the flag --cache, chooses another place.",
            num_examples,
            noun,
            self.choice.place,
            self.choice.reason,
        )
        if self.choice.place == "memory":
            specs = tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), self._sample)
            self.read = MemoryCache(traced, specs=specs, num_examples=num_examples).read
        elif self.choice.place == "disk" and caches is not None:
            self.read = self._on_disk(traced, leaves, self._folder(leaves, caches))

    def _on_disk(self, read: Reader, leaves: Sequence[np.ndarray], folder: Path) -> Reader:
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            unfinished = Path(tempfile.mkdtemp(dir=folder.parent, prefix="unfinished-"))
            try:
                arrays = [
                    _new_file(unfinished / f"{i}.npy", leaf.dtype, (self._num_examples, *leaf.shape[1:]))
                    for i, leaf in enumerate(leaves)
                ]
                self._fill(arrays, read)
                for array in arrays:
                    array.flush()
                try:
                    unfinished.rename(folder)
                except OSError:
                    if not folder.exists():  # else another process was first
                        raise
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
        mapped = [np.load(folder / f"{i}.npy", mmap_mode="r") for i in range(len(leaves))]
        if self._options.identity is None:
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return self._from_maps(mapped)

    def _folder(self, leaves: Sequence[np.ndarray], caches: Path) -> Path:
        """The cache folder of exactly these examples."""
        if self._options.identity is None:
            return caches / f"process-{os.getpid()}-{id(self):x}"
        shapes = [(leaf.dtype.str, leaf.shape[1:]) for leaf in leaves]
        text = f"{self._options.identity()} {self._num_examples} {shapes}"
        return caches / hashlib.sha256(text.encode()).hexdigest()[:32]

    def _fill(self, arrays: Sequence[np.ndarray], read: Reader) -> None:
        """Reads all examples into arrays."""
        import tensorflow as tf

        done = 0
        portions = ordered_map(tf.data.Dataset.range(self._num_examples).batch(_ROWS_AT_ONCE), read)
        for portion in portions.as_numpy_iterator():
            leaves = tf.nest.flatten(portion)
            for array, leaf in zip(arrays, leaves, strict=True):
                array[done : done + len(leaf)] = leaf
            done += len(leaves[0])

    def _from_maps(self, arrays: Sequence[np.ndarray]) -> Reader:
        import tensorflow as tf

        dtypes = [tf.as_dtype(array.dtype) for array in arrays]

        def take(rows: np.ndarray) -> list[np.ndarray]:
            return [np.asarray(array[rows]) for array in arrays]

        def read(rows: tf.Tensor) -> Any:
            leaves = tf.numpy_function(take, [rows], dtypes, stateful=False)
            for leaf, array in zip(leaves, arrays, strict=True):
                leaf.set_shape([rows.shape[0], *array.shape[1:]])
            return tf.nest.pack_sequence_as(self._sample, leaves)

        return read


def _new_file(path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> np.memmap:
    """A memory-mapped array with preallocated disk space: writing to a full disk would kill the process."""
    array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    with open(path, "r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


def _own_memory_bytes(machine: Machine) -> int | None:
    """This process's share of the free memory, which workers of one cluster on one machine divide among them."""
    free = free_memory_bytes(machine)
    cluster = find_cluster(machine)
    if free is None or cluster is None or cluster.task_index >= len(cluster.addresses):
        return free
    hosts = [address.rpartition(":")[0] for address in cluster.addresses]
    return free // hosts.count(hosts[cluster.task_index])


def _free_disk_bytes(folder: Path) -> int:
    """Free disk space for a folder that exists or can be created; 0 if it is not writable."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(there).free if there.is_dir() and os.access(there, os.W_OK) else 0


class MemoryCache:
    """Keeps the examples of a function that reads them by row number in host memory.

    An example is decoded when it is first read, so nothing delays the first batch of an epoch; later reads copy it.
    Calls may run in parallel; two that read the same new example at once both decode it.

    Args:
        read: `read(rows)` takes row numbers (an int64 tensor of shape (num_rows,)) and returns a nest of tensors with
            as many rows. It is traced.
        specs: the `tf.TensorSpec` of one example, in the nest that `read` returns.
        num_examples: total number of rows.

    Example:
        >>> import tensorflow as tf
        >>> cache = MemoryCache(lambda rows: rows / 2, specs=tf.TensorSpec([], tf.float64), num_examples=9)
        >>> cache.read(tf.constant([3, 8], tf.int64)).numpy().tolist()
        [1.5, 4.0]
        >>> cache.num_kept
        2
    """

    def __init__(self, read: Reader, *, specs: Any, num_examples: int) -> None:
        self._decode = read
        with ThreadPoolExecutor(1) as pool:  # strategies' scopes hold in their thread only, and these are not mirrored
            self._is_kept, self._examples = pool.submit(_variables, specs, num_examples).result()

    @property
    def num_kept(self) -> int:
        """The number of examples in memory."""
        return int(np.count_nonzero(self._is_kept.numpy()))

    def read(self, rows: tf.Tensor) -> Any:
        """The examples with these row numbers. It can be traced."""
        import tensorflow as tf

        missing = tf.boolean_mask(rows, ~tf.gather(self._is_kept, rows))
        done = tf.cond(tf.size(missing) > 0, lambda: self._keep(missing), lambda: missing)
        with tf.control_dependencies([done]):
            return tf.nest.map_structure(lambda variable: tf.gather(variable, rows), self._examples)

    def _keep(self, rows: tf.Tensor) -> tf.Tensor:
        """Decodes examples and keeps them; returns their rows."""
        import tensorflow as tf

        def write(variable: tf.Variable, values: tf.Tensor) -> Any:  # the operation in a graph
            return tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=rows, updates=values)

        parts = zip(tf.nest.flatten(self._examples), tf.nest.flatten(self._decode(rows)), strict=True)
        written = [write(variable, part) for variable, part in parts]
        with tf.control_dependencies(written):  # marked only when all parts of an example are there
            marked = write(self._is_kept, tf.ones_like(rows, tf.bool))
        with tf.control_dependencies([marked]):
            return tf.identity(rows)


def _variables(specs: Any, num_examples: int) -> tuple[tf.Variable, Any]:
    import tensorflow as tf

    def new(spec: tf.TensorSpec) -> tf.Variable:
        empty = tf.raw_ops.Empty(shape=[num_examples, *spec.shape], dtype=spec.dtype)  # the memory is taken as it fills
        return tf.Variable(empty, trainable=False)

    with tf.device("/CPU:0"):
        return tf.Variable(tf.zeros([num_examples], tf.bool), trainable=False), tf.nest.map_structure(new, specs)


@noun
class CacheOptions:
    """The settings of a cache.

    Args:
        place: "memory", "disk", "none", or "auto" for the first with enough space.
        folder: the folder of disk caches; None for `tfaccel/examples` in the user's cache folder (`XDG_CACHE_HOME`, or
            `~/.cache`).
        identity: `identity()` returns a string that differs for different examples; the next run with the same one
            reuses a disk cache. None: the cache is deleted when the process ends.

    Raises:
        DataError: for another place.
    """

    place: Place = "auto"
    folder: str | os.PathLike[str] | None = None
    identity: Callable[[], str] | None = None

    def __post_init__(self) -> None:
        if self.place not in PLACES:
            raise DataError(f"A cache's place must be one of {', '.join(PLACES)}. Received: place={self.place!r}.")

    @property
    def path(self) -> Path | None:
        """The folder of disk caches, which may not exist yet; None for a user without a home directory."""
        if self.folder is not None:
            return local_path(self.folder, DataError)
        try:
            place = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
            return local_path(place, DataError) / "tfaccel" / "examples"
        except RuntimeError:  # HOME is not set, and the user's number is in no list of users
            return None


@dataclass(frozen=True, kw_only=True)
class CacheChoice:
    """Where examples are kept, and why."""

    place: Literal["memory", "disk", "none"]
    reason: str


def choose_cache(
    num_bytes: int, *, free_memory_bytes: int | None, free_disk_bytes: int, place: Place = "auto"
) -> CacheChoice:
    """Chooses memory if the examples fit into a third of the free memory, disk if they fit into half of the free disk
    space, and no cache otherwise.

    Args:
        num_bytes: size of all decoded examples.
        free_memory_bytes: memory still available to this process; None if unknown.
        free_disk_bytes: free space on the disk of the cache folder.
        place: the requested place.

    Raises:
        DataError: if the examples do not fit into the requested place.

    Example:
        >>> choose_cache(10**9, free_memory_bytes=2 * 10**9, free_disk_bytes=10**10).place
        'disk'
    """
    size = f"the examples take {_amount(num_bytes)} when decoded"
    memory = "unknown" if free_memory_bytes is None else _amount(free_memory_bytes)
    found = f"{size}; free memory: {memory}, free disk: {_amount(free_disk_bytes)}"
    if place == "memory" and free_memory_bytes is not None and num_bytes > free_memory_bytes:
        raise DataError(f"The cache cannot be in memory: {found}. Use 'disk', 'none' or 'auto'.")
    if place == "disk" and num_bytes > free_disk_bytes:
        raise DataError(f"The cache cannot be on disk: {found}. Use 'memory', 'none' or 'auto'.")
    if place != "auto":
        return CacheChoice(place=place, reason=f"as asked for; {found}")
    if num_bytes <= _PART_OF_MEMORY * (free_memory_bytes or 0):
        return CacheChoice(place="memory", reason=f"a third of the free memory is enough: {found}")
    if num_bytes <= _PART_OF_DISK * free_disk_bytes:
        return CacheChoice(
            place="disk", reason=f"more than a third of the free memory, at most half of the disk: {found}"
        )
    return CacheChoice(place="none", reason=f"more than a third of the free memory and half of the disk: {found}")


def _amount(num_bytes: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes / 1000:.1f} kB"
