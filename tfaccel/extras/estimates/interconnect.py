"""`Interconnect`: latencies and bandwidths between devices and machines, and the time of an all-reduce over them.

In the latency-bandwidth (alpha-beta) model a message of n bytes takes alpha + n * beta seconds: alpha is the latency,
beta the reciprocal of the bandwidth. The additions themselves are not counted. See R. Thakur, R. Rabenseifner and W.
Gropp, "Optimization of Collective Communication Operations in MPICH" (2005),
https://doi.org/10.1177/1094342005051521, and P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for
clusters of workstations" (2009), https://doi.org/10.1016/j.jpdc.2008.09.002.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, Literal, Self

from tfaccel.errors import HardwareError
from tfaccel.hardware.hardware import DEVICE_KINDS, check_count
from tfaccel.known_names import did_you_mean
from tfaccel.local_path import local_path
from tfaccel.records import Record, quoted
from tfaccel.short_repr import noun

Algorithm = Literal["auto", "ring", "hierarchical"]
ALGORITHMS: tuple[Algorithm, ...] = ("auto", "ring", "hierarchical")
_OF_A_MACHINE = {"hardware", "devices", "cpu_model"}  # in a file that describes a machine


@noun(error=HardwareError)
class Interconnect(Record):
    """What connects devices that train together, in the latency-bandwidth (alpha-beta) model.

    A message of n bytes takes latency + n / bandwidth. Bandwidths are those of one direction.

    Args:
        name: for tables, such as "dgx_a100".
        devices_per_machine: devices that the faster links connect.
        device_latency_seconds: latency of a message between two devices of a machine.
        device_bytes_per_second: bandwidth of each device to the others of its machine, such as NVLink's.
        machine_latency_seconds: latency of a message between two machines.
        machine_bytes_per_second: bandwidth of a machine's network, all its adapters together.
        source: where the figures are from.
        device_kind: "CPU", "GPU" or "TPU": what it connects; None if it may be any.

    Raises:
        HardwareError: if a field is invalid.

    Example:
        >>> ethernet = Interconnect(name="10 GbE", machine_latency_seconds=5e-5, machine_bytes_per_second=1.25e9)
        >>> Interconnect.from_json(ethernet.to_json()) == ethernet
        True
    """

    _json_error = HardwareError

    name: str
    devices_per_machine: int = 1
    device_latency_seconds: float = 0.0
    device_bytes_per_second: float | None = None
    machine_latency_seconds: float
    machine_bytes_per_second: float
    source: str = ""
    device_kind: str | None = None

    def __post_init__(self) -> None:
        check_count(self, "devices_per_machine", minimum=1)
        if self.device_kind is not None and self.device_kind not in DEVICE_KINDS:
            text = f"device_kind must be one of {', '.join(DEVICE_KINDS)}."
            raise HardwareError(f"{text} Received: device_kind={quoted(self.device_kind)}.")
        for field in ("device_latency_seconds", "machine_latency_seconds"):
            self._check_number(field, positive=False)
        self._check_number("machine_bytes_per_second", positive=True)
        if self.device_bytes_per_second is not None:
            self._check_number("device_bytes_per_second", positive=True)
        elif self.devices_per_machine > 1:
            raise HardwareError(
                "An Interconnect with several devices per machine needs device_bytes_per_second. "
                f"Received: devices_per_machine={self.devices_per_machine}, device_bytes_per_second=None."
            )

    def _check_number(self, field: str, *, positive: bool) -> None:
        value = getattr(self, field)
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not is_number or value < 0 or (positive and value == 0):
            wanted = "a positive number" if positive else "a number of at least 0"
            raise HardwareError(f"{field} must be {wanted}. Received: {field}={quoted(value)}.")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Reads a JSON file: `to_json` data, alone or under "interconnect" (beside "hardware", for example).

        The hardware beside it says which kind of device it connects, unless `device_kind` does.

        Raises:
            HardwareError: if the file cannot be read, or describes no interconnect; it names the file.
        """
        try:
            data = json.loads(local_path(path, HardwareError).read_text(encoding="utf-8"))
            if isinstance(data, dict) and "interconnect" not in data and not _OF_A_MACHINE.isdisjoint(data):
                raise HardwareError(
                    'It describes a machine, but not what connects machines. Add an "interconnect" object with name, '
                    "machine_latency_seconds and machine_bytes_per_second."
                )
            if not isinstance(data, dict) or "interconnect" not in data:
                return cls.from_json(data)
            link = cls.from_json(data["interconnect"])
            return link if link.device_kind is not None else replace(link, device_kind=_kind_of_machine(data))
        except OSError as error:
            raise HardwareError(f"Cannot read the hardware file {str(path)!r}: {error.strerror or error}.") from error
        except (json.JSONDecodeError, RecursionError, UnicodeDecodeError) as error:
            raise HardwareError(f"The hardware file {str(path)!r} is not JSON: {error}.") from error
        except HardwareError as error:
            raise HardwareError(f"In the hardware file {str(path)!r}: {error}") from error


def _kind_of_machine(data: Mapping[str, Any]) -> str | None:
    """The kind of the devices of the machine in a file: GPUs or TPUs if it has some, else CPUs; None without one.

    Example:
        >>> _kind_of_machine({"hardware": {"devices": [{"kind": "GPU", "index": 0}]}}), _kind_of_machine({})
        ('GPU', None)
    """
    machine = data.get("hardware", data)
    if not isinstance(machine, Mapping) or _OF_A_MACHINE.isdisjoint(machine):
        return None
    devices = machine.get("devices")
    kinds = {one.get("kind") for one in devices if isinstance(one, Mapping)} if isinstance(devices, list) else set()
    return next((kind for kind in ("GPU", "TPU") if kind in kinds), "CPU")


_NCCL = "latencies: NCCL's cost model (src/graph/tuning.cc)"
_NVLINK_SECONDS, _PCIE_SECONDS, _NETWORK_SECONDS = 3.4e-6, 5.7e-6, 14e-6
_TCP_SECONDS = 50e-6  # a round number for TCP through a switch, not a measurement


def _nvidia(name: str, num_gpus: int, nvlink: tuple[int, int], infiniband: tuple[int, str, int]) -> Interconnect:
    """A machine with NVLink (generation, GB/s both ways) and InfiniBand (number of adapters, kind, Gbit/s of each)."""
    generation, gigabytes = nvlink
    num_adapters, kind, gigabits = infiniband
    return Interconnect(
        name=name,
        devices_per_machine=num_gpus,
        device_latency_seconds=_NVLINK_SECONDS,
        device_bytes_per_second=gigabytes / 2 * 1e9,
        machine_latency_seconds=_NETWORK_SECONDS,
        machine_bytes_per_second=num_adapters * gigabits / 8 * 1e9,
        source=f"nominal bandwidths, one direction: NVLink {generation} at {gigabytes} GB/s in both directions, "
        f"{num_adapters} x {kind} InfiniBand ({gigabits} Gbit/s); {_NCCL}",
        device_kind="GPU",
    )


def _ethernet(name: str, num_bytes: float) -> Interconnect:
    return Interconnect(
        name=name,
        machine_latency_seconds=_TCP_SECONDS,
        machine_bytes_per_second=num_bytes,
        source="nominal bandwidth, one direction; 50 microseconds is a guess for TCP through a switch",
    )


_PCIE_GPUS = Interconnect(
    name="pcie4_x16",
    devices_per_machine=8,
    device_latency_seconds=_PCIE_SECONDS,
    device_bytes_per_second=32e9,
    machine_latency_seconds=_NETWORK_SECONDS,
    machine_bytes_per_second=12.5e9,
    source=f"nominal bandwidths, one direction: PCIe 4.0 x16, and one 100 Gbit/s adapter per machine; {_NCCL}",
    device_kind="GPU",
)

KNOWN_INTERCONNECTS: dict[str, Interconnect] = {
    one.name: one
    for one in (
        _nvidia("dgx1_v100", 8, (2, 300), (4, "EDR", 100)),
        _nvidia("dgx2_v100", 16, (2, 300), (8, "EDR", 100)),
        _nvidia("dgx_a100", 8, (3, 600), (8, "HDR", 200)),
        _nvidia("dgx_h100", 8, (4, 900), (8, "NDR", 400)),
        _PCIE_GPUS,
        _ethernet("ethernet_1g", 125e6),
        _ethernet("ethernet_10g", 1.25e9),
        _ethernet("ethernet_25g", 3.125e9),
        _ethernet("ethernet_100g", 12.5e9),
    )
}


def known_interconnect(name: str) -> Interconnect:
    """The published figures of a machine or network.

    Example:
        >>> known_interconnect("dgx_a100").devices_per_machine
        8
    """
    if name not in KNOWN_INTERCONNECTS:
        raise HardwareError(
            f"There is no interconnect {name!r}.{did_you_mean(name, KNOWN_INTERCONNECTS)} "
            f"Known: {', '.join(KNOWN_INTERCONNECTS)}. Describe another one in a file."
        )
    return KNOWN_INTERCONNECTS[name]


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
    return max(within, _machine_ring(num_bytes, num_devices, interconnect))


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
    return within + _machine_ring(num_bytes, num_machines(num_devices, interconnect), interconnect)


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


def _machine_ring(num_bytes: float, num_members: int, interconnect: Interconnect) -> float:
    return ring_seconds(
        num_bytes,
        num_members,
        latency_seconds=interconnect.machine_latency_seconds,
        bytes_per_second=interconnect.machine_bytes_per_second,
    )
