"""Rules for pipeline stages: how many, and on which devices. They are proposed only for a model that does not fit."""

import math
from collections.abc import Mapping
from typing import Any

from tfaccel.hardware.hardware import Device, Hardware
from tfaccel.planning.case import Choice
from tfaccel.planning.device_sets import DeviceSet
from tfaccel.planning.gpu_sets import unusable_gpus

HEAD_ROOM = 0.1  # of a device's memory, as in a memory estimate
LARGEST_SHARE = 1.2  # of an equal share: the largest stage takes at most this
_NOT_PROPOSED = "The model is not cut"


def stages_rule(hardware: Hardware, fixed: Mapping[str, Any], training_bytes: int | None, num_workers: int) -> Choice:
    """One, unless training does not fit on one GPU and is estimated to fit on several.

    Args:
        hardware, fixed, num_workers: as for other rules.
        training_bytes: estimated memory of training on one device; None if unknown.
    """
    gpus = usable_gpus(hardware)
    sizes = [gpu.memory_bytes for gpu in gpus if gpu.memory_bytes]
    one_process = num_workers == 1 and fixed.get("strategy") in (None, "none", "mirrored")
    if training_bytes is None or not sizes or not one_process:
        return Choice(1, f"{_NOT_PROPOSED}: that is for models that do not fit on one of several GPUs of a process.")
    room = int((1 - HEAD_ROOM) * min(sizes))
    needed = math.ceil(LARGEST_SHARE * training_bytes / room)
    text = f"training takes an estimated {training_bytes / 2**30:.1f} GiB, and a GPU has room for {room / 2**30:.1f}"
    if training_bytes <= room:
        return Choice(1, f"{_NOT_PROPOSED}: {text}.")
    if needed > len(gpus):
        return Choice(1, f"{_NOT_PROPOSED}: {text}, but {len(gpus)} stages would not fit either.")
    return Choice(needed, f"The model is cut into {needed} stages, each on a GPU of its own: {text}.")


def staged_sets(hardware: Hardware, fixed: Mapping[str, Any], num_stages: int) -> list[DeviceSet]:
    """The sets of devices for a model in stages: as many replicas as there are GPUs for, and one; or logical CPUs."""
    gpus = usable_gpus(hardware)
    reason = f"{num_stages} for each replica, one for each stage."
    if len(gpus) < num_stages or fixed.get("num_logical_cpus", 1) > 1:
        count = fixed.get("num_logical_cpus", num_stages)
        return [DeviceSet(tuple(f"CPU:{index}" for index in range(num_stages)), reason, count)]
    most = len(gpus) // num_stages * num_stages
    counts = [num_stages] if fixed.get("strategy") == "none" else list(dict.fromkeys([most, num_stages]))
    return [DeviceSet(tuple(gpu.name for gpu in gpus[:count]), reason) for count in counts]


def usable_gpus(hardware: Hardware) -> tuple[Device, ...]:
    """The GPUs that TensorFlow can use."""
    unusable = unusable_gpus(hardware.gpus)
    return tuple(gpu for gpu in hardware.gpus if gpu.name not in unusable)
