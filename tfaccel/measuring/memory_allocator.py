"""The allocator from which TensorFlow takes the memory of tensors: best fit with coalescing, in regions that double.

GPUs always have it. CPUs have it where oneDNN's operations are on; elsewhere tensors come from the C library. Memory
that it has once touched stays resident, so that holes between tensors count. Allocations below `SMALL_BYTES` come from
the C library on CPUs. The rules are those of TensorFlow's `BFCAllocator`: sizes are rounded up to 256 bytes, the
smallest free chunk that is large enough is taken, and split if it is twice as large.
"""

from __future__ import annotations

import bisect

SMALL_BYTES = 256 * 1024
_ROUNDED_TO = 256
_FIRST_REGION_BYTES = 2 << 20
_MAX_UNUSED_BYTES = 128 << 20
_BETWEEN_REGIONS = 1 << 50  # regions are never adjacent


class Chunk:
    """A piece of a region, free or in use."""

    __slots__ = ("is_free", "next", "num_bytes", "previous", "start")

    def __init__(self, start: int, num_bytes: int) -> None:
        self.start, self.num_bytes, self.is_free = start, num_bytes, False
        self.previous: Chunk | None = None
        self.next: Chunk | None = None


class BestFitAllocator:
    """Best fit with coalescing.

    Attributes:
        touched_bytes: memory that was in use at some time, which stays resident.

    Example:
        >>> allocator = BestFitAllocator()
        >>> first, second = allocator.allocate(1 << 20), allocator.allocate(1 << 20)
        >>> allocator.release(first)
        >>> third = allocator.allocate(1 << 19)  # fits into the hole
        >>> allocator.touched_bytes == 2 << 20
        True
    """

    def __init__(self) -> None:
        self.touched_bytes = 0
        self._free: list[tuple[int, int, Chunk]] = []
        self._touched: list[tuple[int, int]] = []
        self._region_bytes = _FIRST_REGION_BYTES
        self._end = 0

    def allocate(self, num_bytes: int) -> Chunk:
        """A chunk of at least so many bytes."""
        rounded = -(-num_bytes // _ROUNDED_TO) * _ROUNDED_TO
        index = bisect.bisect_left(self._free, (rounded, -1))
        if index == len(self._free):
            self._extend(rounded)
            index = bisect.bisect_left(self._free, (rounded, -1))
        chunk = self._free.pop(index)[2]
        if chunk.num_bytes >= 2 * rounded or chunk.num_bytes - rounded >= _MAX_UNUSED_BYTES:
            self._split(chunk, rounded)
        chunk.is_free = False
        self._touch(chunk.start, chunk.start + num_bytes)
        return chunk

    def release(self, chunk: Chunk) -> None:
        """Frees a chunk, and joins it with free neighbors."""
        if chunk.next is not None and chunk.next.is_free:
            self._take_out(chunk.next)
            self._absorb_next(chunk)
        before = chunk.previous
        if before is not None and before.is_free:
            self._take_out(before)
            self._absorb_next(before)
            chunk = before
        self._put(chunk)

    def _extend(self, num_bytes: int) -> None:
        doubled = False
        while num_bytes > self._region_bytes:
            self._region_bytes, doubled = 2 * self._region_bytes, True
        self._put(Chunk(self._end, self._region_bytes))
        self._end += _BETWEEN_REGIONS
        if not doubled:
            self._region_bytes *= 2

    def _split(self, chunk: Chunk, num_bytes: int) -> None:
        rest = Chunk(chunk.start + num_bytes, chunk.num_bytes - num_bytes)
        rest.previous, rest.next = chunk, chunk.next
        if rest.next is not None:
            rest.next.previous = rest
        chunk.next, chunk.num_bytes = rest, num_bytes
        self._put(rest)

    def _absorb_next(self, chunk: Chunk) -> None:
        absorbed = chunk.next
        if absorbed is not None:
            chunk.num_bytes += absorbed.num_bytes
            chunk.next = absorbed.next
            if chunk.next is not None:
                chunk.next.previous = chunk

    def _put(self, chunk: Chunk) -> None:
        chunk.is_free = True
        bisect.insort(self._free, (chunk.num_bytes, chunk.start, chunk))

    def _take_out(self, chunk: Chunk) -> None:
        del self._free[bisect.bisect_left(self._free, (chunk.num_bytes, chunk.start))]

    def _touch(self, start: int, stop: int) -> None:
        """Adds an interval to those that were touched, and joins it with those that it meets."""
        first = bisect.bisect_left(self._touched, (start,))
        if first > 0 and self._touched[first - 1][1] >= start:
            first -= 1
        last = first
        while last < len(self._touched) and self._touched[last][0] <= stop:
            old_start, old_stop = self._touched[last]
            self.touched_bytes -= old_stop - old_start
            start, stop, last = min(start, old_start), max(stop, old_stop), last + 1
        self._touched[first:last] = [(start, stop)]
        self.touched_bytes += stop - start
