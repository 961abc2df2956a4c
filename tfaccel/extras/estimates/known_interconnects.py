"""Published latencies and bandwidths of common machines and networks.

Bandwidths are nominal, for one direction; a real all-reduce reaches less. Latencies are those that NCCL's cost model
uses for a step of a ring (https://github.com/NVIDIA/nccl, src/graph/tuning.cc, protocol "Simple"): 3.4 microseconds
over NVLink, 5.7 over PCIe, 14 over a network.
"""

from __future__ import annotations

from tfaccel.errors import HardwareError
from tfaccel.extras.estimates.interconnect import Interconnect
from tfaccel.known_names import did_you_mean

_NCCL = "latencies: NCCL's cost model (src/graph/tuning.cc)"
_NVLINK_SECONDS, _PCIE_SECONDS, _NETWORK_SECONDS = 3.4e-6, 5.7e-6, 14e-6
_TCP_SECONDS = 50e-6  # a round number for TCP through a switch, not a measurement


def _nvidia(name: str, num_gpus: int, nvlink: float, network: float, source: str) -> Interconnect:
    return Interconnect(
        name=name,
        devices_per_machine=num_gpus,
        device_latency_seconds=_NVLINK_SECONDS,
        device_bytes_per_second=nvlink,
        machine_latency_seconds=_NETWORK_SECONDS,
        machine_bytes_per_second=network,
        source=f"nominal bandwidths, one direction: {source}; {_NCCL}",
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
        _nvidia(
            "dgx1_v100", 8, 150e9, 50e9, "NVLink 2 at 300 GB/s in both directions, 4 x EDR InfiniBand (100 Gbit/s)"
        ),
        _nvidia(
            "dgx2_v100", 16, 150e9, 100e9, "NVLink 2 at 300 GB/s in both directions, 8 x EDR InfiniBand (100 Gbit/s)"
        ),
        _nvidia(
            "dgx_a100", 8, 300e9, 200e9, "NVLink 3 at 600 GB/s in both directions, 8 x HDR InfiniBand (200 Gbit/s)"
        ),
        _nvidia(
            "dgx_h100", 8, 450e9, 400e9, "NVLink 4 at 900 GB/s in both directions, 8 x NDR InfiniBand (400 Gbit/s)"
        ),
        _PCIE_GPUS,
        _ethernet("ethernet_1g", 125e6),
        _ethernet("ethernet_10g", 1.25e9),
        _ethernet("ethernet_25g", 3.125e9),
        _ethernet("ethernet_100g", 12.5e9),
    )
}


def known_interconnect(name: str) -> Interconnect:
    """The published figures of a machine or network.

    Raises:
        HardwareError: for a name that is not in the table.

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
