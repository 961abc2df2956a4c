"""Where decoded examples are cached: in memory, on disk, or nowhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tfaccel.errors import DataError
from tfaccel.local_path import local_path
from tfaccel.short_repr import short_repr

Place = Literal["auto", "memory", "disk", "none"]
PLACES = ("auto", "memory", "disk", "none")

# The rest is left for training.
_PART_OF_MEMORY = 1 / 3
_PART_OF_DISK = 1 / 2


@short_repr
@dataclass(frozen=True, kw_only=True)
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
