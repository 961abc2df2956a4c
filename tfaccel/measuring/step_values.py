"""Tensors, lists and variables of a simulated step with their reference counts, and the allocator of their memory."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any, Protocol


class Value(Protocol):
    """What an edge of a graph carries."""

    def add(self, count: int = 1) -> None:
        """Takes references."""

    def release(self) -> None:
        """Gives back a reference; the last one frees it."""


class Memory:
    """The memory of a device.

    Attributes:
        bytes_in_use, peak_bytes: of tensors, now and at most.
    """

    def __init__(self) -> None:
        self.bytes_in_use = self.peak_bytes = 0
        self._small_bytes = self._peak_small_bytes = 0
        self._allocator = BestFitAllocator()

    @property
    def resident_bytes(self) -> int:
        """Memory that was touched, holes between tensors included."""
        return self._allocator.touched_bytes + self._peak_small_bytes

    def allocate(self, num_bytes: int) -> Chunk | None:
        """Takes memory; None for a small allocation, which has no place of its own."""
        self.bytes_in_use += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.bytes_in_use)
        if num_bytes >= SMALL_BYTES:
            return self._allocator.allocate(num_bytes)
        self._small_bytes += num_bytes
        self._peak_small_bytes = max(self._peak_small_bytes, self._small_bytes)
        return None

    def free(self, num_bytes: int, chunk: Chunk | None) -> None:
        """Gives memory back."""
        self.bytes_in_use -= num_bytes
        if chunk is None:
            self._small_bytes -= num_bytes
        else:
            self._allocator.release(chunk)


class Buffer:
    """The memory of a tensor, which several tensors may share.

    Args:
        memory: where it is.
        num_bytes: its size.
        maker: name of the operation that made it; empty for arguments and variables.
        in_backward: whether that belongs to the backward pass.
        is_given: whether it belongs to the caller, and takes no memory here.
    """

    __slots__ = ("_chunk", "_memory", "in_backward", "is_given", "maker", "num_bytes", "references")

    def __init__(
        self, memory: Memory, num_bytes: int, maker: str = "", *, in_backward: bool = False, is_given: bool = False
    ) -> None:
        self._memory, self.num_bytes, self.maker = memory, num_bytes, maker
        self.in_backward, self.is_given, self.references = in_backward, is_given, 1
        self._chunk = None if is_given else memory.allocate(num_bytes)

    def add(self, count: int = 1) -> None:
        """Takes references."""
        self.references += count

    def release(self) -> None:
        """Gives back a reference; the last one frees the memory."""
        self.references -= 1
        if self.references == 0 and not self.is_given:
            self._memory.free(self.num_bytes, self._chunk)


class TensorList:
    """A list of tensors, as loops keep them for the backward pass; it holds a reference to each."""

    __slots__ = ("items", "references")

    def __init__(self, items: Sequence[Any]) -> None:
        self.items, self.references = list(items), 1

    def add(self, count: int = 1) -> None:
        """Takes references."""
        self.references += count

    def release(self) -> None:
        """Gives back a reference; with the last one the list lets its tensors go."""
        self.references -= 1
        if self.references == 0:
            for item in self.items:
                if item is not None:
                    item.release()

    def changeable(self) -> TensorList:
        """This list if nobody else has it, otherwise a copy; with a reference for the caller."""
        if self.references == 1:
            self.add()
            return self
        for item in self.items:
            if item is not None:
                item.add()
        return TensorList(self.items)


class Variable:
    """A handle: its value stays between steps, and reading it copies nothing."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.value: Buffer | None = None

    def add(self, count: int = 1) -> None:
        """Handles take no memory."""

    def release(self) -> None:
        """Handles take no memory."""

    def read(self, num_bytes: int) -> Buffer:
        """Its value."""
        if self.value is None:
            self.value = Buffer(self._memory, num_bytes)
        return self.value

    def initialize(self, num_bytes: int) -> None:
        """Makes its first value as an initializer does: a random tensor, scaled, shifted."""
        parts = [Buffer(self._memory, num_bytes) for _ in range(2)]
        self.read(num_bytes)
        for part in parts:
            part.release()

    def assign(self, value: Buffer) -> None:
        """Takes over the memory of a tensor, without a copy."""
        value.add()
        if self.value is not None:
            self.value.release()
        self.value = value

    def update(self, num_bytes: int) -> None:
        """Changes its value: in place, or in a copy while somebody still reads the old one."""
        old = self.read(num_bytes)
        if old.references > 1:
            self.value = Buffer(self._memory, old.num_bytes)
            old.release()


# The allocator from which TensorFlow takes the memory of tensors: best fit with coalescing, in regions that double.

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
