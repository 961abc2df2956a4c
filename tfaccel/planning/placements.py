"""Where the replicas run: the strategy with its devices, stages and workers, best first.

Pipeline stages are proposed only for a model that does not fit on one device.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfaccel.errors import PlanError
from tfaccel.hardware.hardware import Device, Hardware
from tfaccel.planning.device_sets import DeviceSet, device_sets, unusable_gpus
from tfaccel.planning.plan import REFUSED_STRATEGIES
from tfaccel.planning.plan_settings import parse_device
from tfaccel.planning.workload import Workload

STAGES = "pipeline_stages"
PLACEMENT_FIELDS = ("strategy", "devices", STAGES, "num_logical_cpus", "num_workers", "tpu")
SET_BY_YOU = "Set by you."
HEAD_ROOM = 0.1  # of a device's memory, as in a memory estimate
LARGEST_SHARE = 1.2  # of an equal share: the largest stage takes at most this
_NOT_PROPOSED = "The model is not cut"


@dataclass(frozen=True)
class Choice:
    """One value of one plan field, and why."""

    value: Any
    reason: str


@dataclass(frozen=True, kw_only=True)
class Case:
    """A partial plan: the machine, the workload, the fixed fields, and the fields decided so far.

    Args:
        hardware: the machine.
        workload: the workload to train.
        fixed: the fields with fixed values.
        choices: field -> its choice; the placement of the replicas is always included.
        step_operations: floating-point operations of an optimizer step's matrix products and convolutions; None if
            unknown.
    """

    hardware: Hardware
    workload: Workload
    fixed: Mapping[str, Any]
    choices: Mapping[str, Choice]
    step_operations: int | None = None

    def __getitem__(self, field: str) -> Any:
        """The value decided for a field."""
        return self.choices[field].value

    @property
    def kind(self) -> str:
        """The kind of the devices in use: "CPU", "GPU" or "TPU"."""
        return parse_device(self["devices"][0])[0]

    @property
    def accelerators(self) -> tuple[Device, ...]:
        """The GPUs or TPUs in use; empty on CPUs."""
        return tuple(device for device in self.hardware.devices if device.name in self["devices"])

    @property
    def num_stages(self) -> int:
        """The number of stages that the model is cut into."""
        return int(self[STAGES])

    @property
    def num_replicas(self) -> int:
        """Replicas in all processes."""
        return max(1, len(self["devices"]) // self.num_stages) * int(self["num_workers"])


def placements(
    hardware: Hardware, workload: Workload, fixed: Mapping[str, Any], training_bytes: int | None = None
) -> list[dict[str, Choice]]:
    """The choices of `PLACEMENT_FIELDS`, best first; all of them have the fixed values.

    Args:
        hardware, workload, fixed: see `candidate_plans`.
        training_bytes: estimated memory of training on one device; None if unknown.

    Raises:
        PlanError: if the machine or its cluster cannot provide the fixed values.
    """
    workers = workers_rule(hardware, fixed)
    stages = stages_rule(hardware, fixed, training_bytes, workers.value)
    num_stages = fixed.get(STAGES, stages.value)
    if num_stages > 1 and "devices" not in fixed:
        sets = staged_sets(hardware, fixed, num_stages)
    else:
        sets = device_sets(hardware, workload, fixed, num_workers=workers.value)
    proposals = []
    for device_set in sets:
        proposal = {
            "strategy": strategy_rule(hardware, device_set, workers.value, num_stages),
            "devices": Choice(device_set.devices, device_set.reason),
            STAGES: stages,
            "num_logical_cpus": logical_cpus_rule(device_set),
            "num_workers": workers,
            "tpu": tpu_rule(hardware, device_set),
        }
        given = {name: Choice(fixed[name], SET_BY_YOU) for name in PLACEMENT_FIELDS if name in fixed}
        proposals.append(proposal | given)
    return proposals


def workers_rule(hardware: Hardware, fixed: Mapping[str, Any]) -> Choice:
    """All workers of this process's cluster, unless a fixed strategy uses one process."""
    cluster, strategy = hardware.cluster, fixed.get("strategy")
    if cluster is not None and cluster.task_type == "ps":
        raise PlanError(f"This process is a parameter server of its cluster. {REFUSED_STRATEGIES['parameter_server']}.")
    is_worker = cluster is not None and cluster.task_type in ("worker", "chief")
    present = cluster.num_workers if cluster is not None and is_worker else 1
    if "num_workers" in fixed:
        if present > 1 and fixed["num_workers"] not in (1, present):
            raise PlanError(
                f"The cluster that this process is a part of has {present} workers. "
                f"Received: num_workers={fixed['num_workers']}. Use {present}, or 1 for this process alone."
            )
        return Choice(fixed["num_workers"], SET_BY_YOU)
    if strategy == "multi_worker_mirrored" and present == 1:
        raise PlanError(
            "strategy='multi_worker_mirrored' needs a cluster of several workers, and this process is not part of one. "
            "Set TF_CONFIG, start it through Slurm or as a Kubernetes indexed job, or set num_workers for processes of "
            "this machine."
        )
    if strategy not in (None, "multi_worker_mirrored"):
        return Choice(1, f"strategy={strategy!r} trains in one process.")
    if present > 1 and hardware.tpus:
        return _tpu_slice_workers(present, fixed)
    if cluster is not None and present > 1:
        return Choice(present, f"The cluster found ({cluster.source}) has {present} workers.")
    return Choice(1, "This process is not part of a cluster of several workers.")


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


def may_be_cut(hardware: Hardware, fixed: Mapping[str, Any]) -> bool:
    """Whether a model that is too large may be cut: several GPUs of known memory, and stages are not fixed."""
    return STAGES not in fixed and sum(bool(gpu.memory_bytes) for gpu in hardware.gpus) > 1


def strategy_rule(hardware: Hardware, device_set: DeviceSet, num_workers: int, num_stages: int = 1) -> Choice:
    """The strategy that fits these devices."""
    kind, first_index = parse_device(device_set.devices[0])
    if kind == "TPU":
        return Choice("tpu", "TPUs are trained on through TPUStrategy.")
    if num_workers > 1:
        return Choice("multi_worker_mirrored", f"{num_workers} workers train one model together.")
    if num_stages > 1 and len(device_set.devices) == num_stages:
        return Choice("none", "One replica needs no strategy; its stages have a device each.")
    if num_stages > 1:
        return Choice("mirrored", f"{len(device_set.devices) // num_stages} replicas of {num_stages} stages each.")
    if len(device_set.devices) > 1:
        return Choice("mirrored", f"A replica on each of {len(device_set.devices)} devices of one process.")
    num_idle = len(hardware.devices) - sum(device.name in device_set.devices for device in hardware.devices)
    idle = f" See `devices` for why {num_idle} more {'is' if num_idle == 1 else 'are'} idle." if num_idle else ""
    if first_index > 0:
        reason = f"Pins the model to {device_set.devices[0]}, which is not the first of its kind.{idle}"
        return Choice("one_device", reason)
    return Choice("none", f"One device needs no strategy; OneDeviceStrategy would compute exactly the same.{idle}")


def logical_cpus_rule(device_set: DeviceSet) -> Choice:
    """One logical CPU for each replica on the CPU."""
    if device_set.num_logical_cpus == 1:
        return Choice(1, "The CPU is one device.")
    return Choice(device_set.num_logical_cpus, "One logical device for each replica on the CPU.")


def tpu_rule(hardware: Hardware, device_set: DeviceSet) -> Choice:
    """The TPU of this machine, if TPU devices are used."""
    if parse_device(device_set.devices[0])[0] != "TPU":
        return Choice(None, "No TPU is used.")
    where = f" ({hardware.tpu_environment})" if hardware.tpu_environment else ""
    return Choice("local", f"The TPU is attached to this machine{where}; no name has to be looked up.")


def _tpu_slice_workers(present: int, fixed: Mapping[str, Any]) -> Choice:
    if fixed.get("tpu") in (None, "local"):
        raise PlanError(
            f"This machine is one of {present} of a TPU slice; TensorFlow reaches the whole slice from one process, by "
            "its name. Set `tpu` to that name and list all its cores in `devices`, or set strategy='tpu' to use this "
            "machine's cores alone."
        )
    return Choice(1, "TPUStrategy drives all machines of a TPU slice from one process.")
