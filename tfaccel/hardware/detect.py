"""Hardware detection. It never imports TensorFlow, which reserves a GPU's memory on first access."""

import dataclasses

from tfaccel.argument_types import checks_types
from tfaccel.errors import HardwareError
from tfaccel.hardware import cpu
from tfaccel.hardware.cluster import find_cluster
from tfaccel.hardware.gpu import find_gpus
from tfaccel.hardware.hardware import Hardware
from tfaccel.hardware.machine import Machine
from tfaccel.hardware.tpu import find_tpus, tpu_environment


@checks_types(HardwareError)
def detect_hardware(*, machine: Machine | None = None) -> Hardware:
    """Detects the resources of this process: cores, memory, accelerators, and its place in a cluster.

    Affinity, cgroup limits and CUDA_VISIBLE_DEVICES are respected. TensorFlow is neither imported nor initialized.

    Args:
        machine: the machine to inspect; this one by default.

    Raises:
        HardwareError: if TF_CONFIG or another source of the cluster is malformed, or the machine does not run Linux.

    Example:
        >>> hardware = detect_hardware()
        >>> hardware.num_usable_cores >= 1, Hardware.from_json(hardware.to_json()) == hardware
        (True, True)
    """
    machine = machine or Machine.here()
    return dataclasses.replace(detect_machine(machine), cluster=find_cluster(machine))


def detect_machine(machine: Machine) -> Hardware:
    """The hardware without its cluster, so that a malformed TF_CONFIG does not hide the rest.

    Raises:
        HardwareError: if the machine does not run Linux.
    """
    return Hardware(
        cpu_model=cpu.cpu_model(machine),
        num_physical_cores=cpu.num_physical_cores(machine),
        num_usable_cores=cpu.num_usable_cores(machine),
        cpu_features=cpu.cpu_features(machine),
        memory_bytes=cpu.memory_bytes(machine),
        devices=(*find_gpus(machine), *find_tpus(machine)),
        tpu_environment=tpu_environment(machine),
    )
