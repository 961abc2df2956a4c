"""The tensors, lists and variables of a simulated step, with their reference counts, and the memory that they take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tfaccel.measuring.memory_allocator import SMALL_BYTES, BestFitAllocator, Chunk


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
