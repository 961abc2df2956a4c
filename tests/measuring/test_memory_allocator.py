"""The allocator behind the memory estimate: best fit, split, joined again, and memory that stays resident."""

import itertools
import random

from tfaccel.measuring.step_values import BestFitAllocator

MIB = 2**20


def test_freed_memory_is_used_again():
    allocator = BestFitAllocator()
    for _ in range(10):
        allocator.release(allocator.allocate(3 * MIB))
    assert allocator.touched_bytes == 3 * MIB


def test_the_smallest_hole_that_is_large_enough_is_taken():
    allocator = BestFitAllocator()
    large, _, small, _ = (allocator.allocate(size * MIB) for size in (8, 1, 2, 1))
    allocator.release(large)
    allocator.release(small)
    assert allocator.allocate(2 * MIB).start == small.start


def test_neighbors_are_joined():
    allocator = BestFitAllocator()
    allocator.release(allocator.allocate(15 * MIB))  # all that follows is in one region
    chunks = [allocator.allocate(MIB) for _ in range(4)]
    for chunk in (chunks[1], chunks[3], chunks[2]):
        allocator.release(chunk)
    assert allocator.allocate(3 * MIB).start == chunks[1].start


def test_holes_stay_resident():
    allocator = BestFitAllocator()
    chunks = [allocator.allocate(MIB) for _ in range(8)]
    for chunk in chunks[::2]:
        allocator.release(chunk)
    allocator.allocate(2 * MIB)  # fits into no hole
    assert allocator.touched_bytes == 10 * MIB


def test_chunks_never_overlap():
    allocator, chosen = BestFitAllocator(), random.Random(0)
    used = []
    for _ in range(2000):
        if used and chosen.random() < 0.5:
            allocator.release(used.pop(chosen.randrange(len(used)))[0])
        else:
            size = chosen.randrange(1, 4 * MIB)
            used.append((allocator.allocate(size), size))
    places = sorted((chunk.start, chunk.start + size) for chunk, size in used)
    assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise(places))
    assert allocator.touched_bytes >= sum(size for _, size in used)
