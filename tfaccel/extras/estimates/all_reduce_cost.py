"""The time of an all-reduce in the latency-bandwidth (alpha-beta) model.

A message of n bytes takes alpha + n * beta seconds: alpha is the latency, beta the reciprocal of the bandwidth. The
additions themselves are not counted. See R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of Collective
Communication Operations in MPICH" (2005), https://doi.org/10.1177/1094342005051521, and P. Patarasuk and X. Yuan,
"Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009),
https://doi.org/10.1016/j.jpdc.2008.09.002.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from tfaccel.extras.estimates.interconnect import Interconnect

Algorithm = Literal["auto", "ring", "hierarchical"]
ALGORITHMS: tuple[Algorithm, ...] = ("auto", "ring", "hierarchical")


def ring_seconds(num_bytes: float, num_devices: int, *, latency_seconds: float, bytes_per_second: float) -> float:
    """The time of a ring all-reduce among devices with equal links.

    A reduce-scatter and an all-gather take p - 1 steps each, in which every device sends num_bytes / p to its neighbor:
    2 (p - 1) alpha + 2 (p - 1) / p * num_bytes * beta. For many devices, the second term approaches 2 * num_bytes *
    beta.

    Example:
        >>> ring_seconds(100, 1, latency_seconds=1.0, bytes_per_second=10.0)
        0.0
        >>> ring_seconds(100, 4, latency_seconds=1.0, bytes_per_second=10.0)
        21.0
    """
    steps = 2 * (num_devices - 1)
    return steps * latency_seconds + steps / num_devices * num_bytes / bytes_per_second


def flat_ring_seconds(num_bytes: float, num_devices: int, interconnect: Interconnect) -> float:
    """The time of one ring through all devices.

    The ring enters and leaves each machine once, and each step takes as long as its slowest link.

    Example:
        >>> link = Interconnect(name="a", machine_latency_seconds=1.0, machine_bytes_per_second=10.0)
        >>> flat_ring_seconds(100, 4, link)
        21.0
    """
    within = _device_ring(num_bytes, num_devices, interconnect)
    if num_devices <= interconnect.devices_per_machine:
        return within
    between = ring_seconds(
        num_bytes,
        num_devices,
        latency_seconds=interconnect.machine_latency_seconds,
        bytes_per_second=interconnect.machine_bytes_per_second,
    )
    return max(within, between)


def hierarchical_seconds(num_bytes: float, num_devices: int, interconnect: Interconnect) -> float:
    """The time of an all-reduce in three phases.

    A reduce-scatter within each machine; ring all-reduces among the machines, one for each of the machine's devices,
    all at once through the machine's network; and an all-gather within each machine. On one machine, this is a ring.

    Example:
        >>> link = Interconnect(
        ...     name="a",
        ...     devices_per_machine=2,
        ...     device_bytes_per_second=100.0,
        ...     machine_latency_seconds=1.0,
        ...     machine_bytes_per_second=10.0,
        ... )
        >>> hierarchical_seconds(100, 2, link), hierarchical_seconds(100, 4, link)
        (1.0, 13.0)
    """
    per_machine = min(num_devices, interconnect.devices_per_machine)
    within = _device_ring(num_bytes, per_machine, interconnect)
    between = ring_seconds(
        num_bytes,
        num_machines(num_devices, interconnect),
        latency_seconds=interconnect.machine_latency_seconds,
        bytes_per_second=interconnect.machine_bytes_per_second,
    )
    return within + between


def all_reduce_seconds(
    num_bytes: float,
    num_devices: int,
    interconnect: Interconnect,
    *,
    algorithm: Algorithm = "auto",
    num_messages: int = 1,
) -> float:
    """The time to sum `num_bytes` over all devices, in equal messages one after the other.

    Args:
        num_bytes: bytes of the values of one device.
        num_devices: devices that take part; machines are filled one after the other.
        interconnect: what connects them.
        algorithm: "ring", "hierarchical", or "auto" for the faster of the two.
        num_messages: each one has latencies of its own.

    Example:
        >>> link = Interconnect(name="a", machine_latency_seconds=1.0, machine_bytes_per_second=10.0)
        >>> all_reduce_seconds(100, 2, link), all_reduce_seconds(100, 2, link, num_messages=3)
        (12.0, 16.0)
    """
    times = []
    if algorithm in ("auto", "ring"):
        times.append(flat_ring_seconds(num_bytes / num_messages, num_devices, interconnect))
    if algorithm in ("auto", "hierarchical"):
        times.append(hierarchical_seconds(num_bytes / num_messages, num_devices, interconnect))
    return num_messages * min(times)


def num_machines(num_devices: int, interconnect: Interconnect) -> int:
    """The number of machines that hold so many devices."""
    return math.ceil(num_devices / interconnect.devices_per_machine)


def num_packs(tensor_bytes: Sequence[int], pack_bytes: int) -> int:
    """The number of messages in which TensorFlow sums gradients.

    With `pack_bytes=0` there is one. Otherwise tensors fill packs in their order; a pack is complete once it
    exceeds `pack_bytes`, and tensors are not divided.

    Example:
        >>> num_packs([10, 10, 10, 10], 0), num_packs([10, 10, 10, 10], 15), num_packs([10, 10, 10, 10], 5)
        (1, 2, 4)
    """
    if not pack_bytes or not tensor_bytes:
        return 1
    packs, filled = 0, pack_bytes + 1
    for size in tensor_bytes:
        if filled > pack_bytes:
            packs, filled = packs + 1, 0
        filled += size
    return packs


def _device_ring(num_bytes: float, num_devices: int, interconnect: Interconnect) -> float:
    if interconnect.device_bytes_per_second is None:  # one device per machine
        return 0.0
    return ring_seconds(
        num_bytes,
        num_devices,
        latency_seconds=interconnect.device_latency_seconds,
        bytes_per_second=interconnect.device_bytes_per_second,
    )
