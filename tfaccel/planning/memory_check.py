"""Whether a model can fit into the memory of the devices at all, before anything is allocated."""

from tfaccel.errors import WorkloadError
from tfaccel.hardware.hardware import Hardware
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload

_BYTES_OF_NUMBER = 4  # weights and gradients are float32 under every dtype policy
_COPIES = 2  # of each trainable number, at least: the weight and its gradient


def check_memory(workload: Workload, plan: Plan, hardware: Hardware) -> None:
    """Raises WorkloadError if the weights and gradients alone are more than the memory of a device that holds them.

    What activations and the optimizer take comes on top, and is not known beforehand: a model that passes may still be
    too large.

    Example:
        >>> huge = Workload("huge", object, dict, dict, global_batch_size=1, num_parameters=10**12)
        >>> try:
        ...     check_memory(huge, Plan(strategy="none", devices=("CPU:0",), global_batch_size=1), Hardware())
        ... except WorkloadError as error:
        ...     str(error).partition(": ")[2]
        'weights and gradients take 7,450.6 GiB, and CPU:0 has 16.0 GiB. Make the model smaller.'
    """
    if workload.num_parameters is None:
        return
    kind = plan.devices[0].split(":")[0]
    by_name = {device.name: device.memory_bytes for device in hardware.devices}
    there = [by_name.get(name) for name in plan.devices] if kind != "CPU" else [hardware.memory_bytes]
    replicas = plan.num_local_replicas if kind == "CPU" else 1
    needed = workload.num_parameters * _BYTES_OF_NUMBER * _COPIES * replicas
    least = min((number for number in there if number), default=needed)
    if needed > least:
        raise WorkloadError(
            f"The model of {workload.name} has {workload.num_parameters:,} parameters: weights and gradients take "
            f"{needed / 2**30:,.1f} GiB, and {plan.devices[0]} has {least / 2**30:,.1f} GiB. Make the model smaller."
        )
