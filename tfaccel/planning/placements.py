"""Where the replicas run: the strategy with its devices, stages and workers, best first.

There is one rule for each kind of device. Pipeline stages are proposed only for a model that does not fit on one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tfaccel.errors import PlanError
from tfaccel.hardware.hardware import Device, Hardware
from tfaccel.planning.plan import REFUSED_STRATEGIES
from tfaccel.planning.plan_checks import parse_device
from tfaccel.planning.workload import Workload

STAGES = "pipeline_stages"
PLACEMENT_FIELDS = ("strategy", "devices", STAGES, "num_logical_cpus", "num_workers", "tpu")
SET_BY_YOU = "Set by you."
HEAD_ROOM = 0.1  # of a device's memory, as in a memory estimate
LARGEST_SHARE = 1.2  # of an equal share: the largest stage takes at most this
_NOT_PROPOSED = "The model is not cut"
# With fewer examples, a replica's step on a logical CPU is too short to be worth summing gradients.
MIN_USEFUL_REPLICA_BATCH = 8
# The operations of one replica keep this many cores busy.
CORES_PER_LOGICAL_CPU = 8
# The wheels of TensorFlow 2.20 and 2.21 contain kernels for 6.0, 7.0, 8.0 and 8.9, and code for 9.0 that newer GPUs
# compile; TensorFlow ignores older GPUs. Source: tf.sysconfig.get_build_info()["cuda_compute_capabilities"].
MIN_COMPUTE_CAPABILITY = (6, 0)
# With fewer examples per replica, another GPU is hardly worth summing gradients, unless the workload says otherwise.
MIN_REPLICA_BATCH_SIZE = 32
# A recommended batch size may change by this fraction so that all GPUs share it; one set by the user never changes.
_MAX_BATCH_CHANGE = 0.02


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
        cost: how far the choices are from the first of each, by which plans are ranked.
    """

    hardware: Hardware
    workload: Workload
    fixed: Mapping[str, Any]
    choices: Mapping[str, Choice]
    step_operations: int | None = None
    cost: int = 0

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
    def batch_size(self) -> int:
        """The global batch size: the fixed one, or the workload's recommendation."""
        return int(self.fixed.get("global_batch_size", self.workload.global_batch_size))

    @property
    def num_stages(self) -> int:
        """The number of stages that the model is cut into."""
        return int(self[STAGES])

    @property
    def num_replicas(self) -> int:
        """Replicas in all processes."""
        return max(1, len(self["devices"]) // self.num_stages) * int(self["num_workers"])


def placements(case: Case, training_bytes: int | None = None) -> list[dict[str, Choice]]:
    """The choices of `PLACEMENT_FIELDS`, best first; all of them have the fixed values.

    Args:
        case: the machine, the workload and the fixed fields; nothing is decided yet.
        training_bytes: estimated memory of training on one device; None if unknown.

    Raises:
        PlanError: if the machine or its cluster cannot provide the fixed values.
    """
    hardware, fixed = case.hardware, case.fixed
    workers = workers_rule(hardware, fixed)
    stages = stages_rule(hardware, fixed, training_bytes, workers.value)
    num_stages = fixed.get(STAGES, stages.value)
    if num_stages > 1 and "devices" not in fixed:
        sets = staged_sets(hardware, fixed, num_stages)
    else:
        sets = device_sets(case, num_workers=workers.value)
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
    count = device_set.num_logical_cpus
    return Choice(count, "The CPU is one device." if count == 1 else "One logical device for each replica on the CPU.")


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


@dataclass(frozen=True)
class DeviceSet:
    """Devices for one replica each, and the reason."""

    devices: tuple[str, ...]
    reason: str
    num_logical_cpus: int = 1


def device_sets(case: Case, *, num_workers: int) -> list[DeviceSet]:
    """The sets of devices to propose; only `devices` if it is fixed.

    Raises:
        PlanError: if a fixed device, or any device for a fixed strategy, does not exist; it names those that do.
    """
    hardware, fixed = case.hardware, case.fixed
    if "devices" in fixed:
        return [_given(hardware, fixed)]
    strategy = fixed.get("strategy")
    wants_tpu = strategy == "tpu" or fixed.get("tpu") is not None
    if wants_tpu or (strategy is None and hardware.tpus and not _wants_cpus(fixed)):
        return [_all_tpus(hardware)]
    if hardware.gpus and not _wants_cpus(fixed):
        found = gpu_sets(case, num_workers=num_workers)
        if found:
            return found
    sets = cpu_sets(case, num_workers=num_workers)
    unusable = "".join(f" {name} is not used: {why}." for name, why in unusable_gpus(hardware.gpus).items())
    return [replace(one, reason=one.reason + unusable) for one in sets]


def cpu_sets(case: Case, *, num_workers: int) -> list[DeviceSet]:
    """The whole CPU as one device; with many cores, also as several logical devices with a replica each."""
    hardware, fixed, batch = case.hardware, case.fixed, case.batch_size
    whole = DeviceSet(
        ("CPU:0",), "The CPU as one device: its operations use all usable cores.", fixed.get("num_logical_cpus", 1)
    )
    one_device = fixed.get("strategy") in ("none", "one_device") or num_workers > 1
    if "num_logical_cpus" in fixed:
        count = fixed["num_logical_cpus"]
        return [whole if one_device or count == 1 else _logical_cpus(count, "All logical CPUs, a replica on each.")]
    if one_device:
        return [whole]
    cores = min(hardware.num_usable_cores, hardware.num_physical_cores)
    counts = [
        count
        for count in (2, 4)
        if cores >= count * CORES_PER_LOGICAL_CPU and batch % count == 0 and batch // count >= MIN_USEFUL_REPLICA_BATCH
    ]
    reason = "{} replicas with {} of {} cores each: small operations do not keep so many cores busy. To be measured."
    return [whole, *(_logical_cpus(count, reason.format(count, cores // count, cores)) for count in counts)]


def _logical_cpus(count: int, reason: str) -> DeviceSet:
    return DeviceSet(tuple(f"CPU:{index}" for index in range(count)), reason, count)


def _wants_cpus(fixed: Mapping[str, Any]) -> bool:
    """Whether several logical CPUs were requested, which are useful only if the replicas run there."""
    return bool(fixed.get("num_logical_cpus", 1) > 1)


def _all_tpus(hardware: Hardware) -> DeviceSet:
    if not hardware.tpus:
        raise PlanError(
            f"strategy='tpu' needs a TPU. Devices here: {_names(hardware)}. For a TPU that is reached by its name, set "
            "`tpu` and list its cores in `devices`."
        )
    return DeviceSet(tuple(tpu.name for tpu in hardware.tpus), "All TPU devices: TPUStrategy uses them together.")


def _given(hardware: Hardware, fixed: Mapping[str, Any]) -> DeviceSet:
    devices = tuple(fixed["devices"])
    parsed = [parse_device(device) for device in devices]
    remote_tpu = fixed.get("tpu") not in (None, "local")
    there = {device.name for device in hardware.devices}
    missing = [
        device
        for device, (kind, _) in zip(devices, parsed, strict=True)
        if device not in there and kind != "CPU" and not (kind == "TPU" and remote_tpu)
    ]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        raise PlanError(f"{', '.join(missing)} {are} not there. Devices here: {_names(hardware)}.")
    cpus = sorted(index for kind, index in parsed if kind == "CPU")
    if "num_logical_cpus" not in fixed and cpus != list(range(len(cpus))):
        raise PlanError(
            f"CPU:{cpus[-1]} is not there. Devices here: {_names(hardware)}. To divide the CPU, name its parts from "
            f"CPU:0 on, or set num_logical_cpus={cpus[-1] + 1} (--logical_cpus)."
        )
    for name, reason in unusable_gpus(tuple(gpu for gpu in hardware.gpus if gpu.name in devices)).items():
        raise PlanError(f"{name} cannot be used: {reason}. Leave it out of `devices` (--devices), or use CPU:0.")
    return DeviceSet(devices, "Set by you.", fixed.get("num_logical_cpus", max(1, len(cpus))))


def _names(hardware: Hardware) -> str:
    return ", ".join(["CPU:0", *(device.name for device in hardware.devices)])


def unusable_gpus(gpus: tuple[Device, ...]) -> dict[str, str]:
    """Unusable GPU -> why TensorFlow cannot use it.

    Example:
        >>> unusable_gpus((Device(kind="GPU", index=0, model="Tesla K80", compute_capability=(3, 7)),))
        {'GPU:0': 'Tesla K80 has compute capability 3.7, and TensorFlow 2.20 and newer is built for 6.0 and above'}
    """
    found = {}
    for gpu in gpus:
        capability = gpu.compute_capability
        if capability is not None and capability < MIN_COMPUTE_CAPABILITY:
            found[gpu.name] = (
                f"{gpu.model or 'this GPU'} has compute capability {capability[0]}.{capability[1]}, and TensorFlow "
                f"2.20 and newer is built for {MIN_COMPUTE_CAPABILITY[0]}.{MIN_COMPUTE_CAPABILITY[1]} and above"
            )
    slices = [gpu for gpu in gpus if re.search(r"\bMIG\b", gpu.model) and gpu.name not in found]
    if slices:
        found |= {gpu.name: f"a process can use one slice of a GPU (MIG), {slices[0].name}" for gpu in slices[1:]}
    return found


def gpu_sets(case: Case, *, num_workers: int) -> list[DeviceSet]:
    """As many equal GPUs as the batch keeps busy, then other numbers to measure; empty if no GPU is usable."""
    unusable, usable = unusable_gpus(case.hardware.gpus), usable_gpus(case.hardware)
    if not usable:
        return []
    strategy = case.fixed.get("strategy")
    alike, alike_reason = _most_alike(usable)
    best = max(usable, key=lambda gpu: (gpu.compute_capability or (0, 0), -gpu.index))
    is_one = strategy in ("none", "one_device")
    at_least = 1 + (strategy == "mirrored" and len(alike) > 1)
    counts = [1] if is_one else _even_counts(case, len(alike), num_workers, at_least=at_least)
    chosen, why = counts[-1], ""
    if strategy is None and len(counts) > 1:
        chosen, why = _useful_count(case, counts, num_workers)
    order = list(dict.fromkeys([chosen, counts[-1], 1 if strategy is None and num_workers == 1 else chosen]))
    sets = []
    for count in order:
        picked = (best,) if count == 1 and num_workers == 1 and strategy != "mirrored" else alike[:count]
        reason = alike_reason
        if is_one and len(usable) > 1:
            reason = f"One GPU, the fastest of {len(usable)}: strategy={strategy!r} uses one device. All: " + (
                f"{_flag(alike)} --strategy=mirrored."
            )
        elif count < len(alike):
            reason = _why_fewer(case, count, alike, counts, why)
        elif len(alike) < len(usable):
            reason = f"{alike_reason} All: {_flag(usable)}."
        idle = "".join(f" {name} is not used: {text}." for name, text in unusable.items())
        sets.append(DeviceSet(tuple(gpu.name for gpu in picked), reason + idle))
    return sets


def _even_counts(case: Case, available: int, num_workers: int, *, at_least: int) -> list[int]:
    """Ascending numbers of GPUs that divide the batch evenly; for all GPUs, a recommended batch may change by 2 %."""
    recommended, batch = "global_batch_size" not in case.fixed, case.batch_size
    counts = []
    for count in range(at_least, available + 1):
        divisor = count * num_workers * case.fixed.get("accumulation_steps", 1)
        change = min(batch % divisor, divisor - batch % divisor)
        is_near = recommended and count == available and change <= _MAX_BATCH_CHANGE * batch
        if batch % divisor == 0 or is_near or (count == 1 and num_workers == 1):
            counts.append(count)
    return counts or [at_least if recommended else available]


def _useful_count(case: Case, counts: list[int], num_workers: int) -> tuple[int, str]:
    """The largest number of GPUs whose replicas have enough examples, and the reason for not using more."""
    batch, least = case.batch_size, case.workload.min_replica_batch_size or MIN_REPLICA_BATCH_SIZE
    enough = [count for count in counts if batch // (count * num_workers) >= least]
    return max(enough, default=counts[0]), (
        f"with more, a replica would have fewer than {least} of the {batch} examples of a step, "
        "which is hardly worth summing gradients over them"
    )


def _why_fewer(case: Case, count: int, alike: tuple[Device, ...], counts: list[int], why: str) -> str:
    """Why only `count` of the equal GPUs are used, and the flag that uses all."""
    batch = case.batch_size
    opening = f"{count} of {len(alike)} GPUs" if count > 1 else f"One of {len(alike)} GPUs"
    if count == counts[-1]:
        neighbours = f"{batch // len(alike) * len(alike)} or {-(-batch // len(alike)) * len(alike)}"
        return (
            f"{opening}: the largest number that shares {batch} evenly. For all of them: "
            f"--global_batch_size={neighbours.removeprefix('0 or ')} with {_flag(alike)}."
        )
    most = alike[: counts[-1]]
    return f"{opening}: {why}. To use {'all' if most == alike else len(most)}: {_flag(most)}."


def _flag(gpus: tuple[Device, ...]) -> str:
    return f"--devices={','.join(gpu.name for gpu in gpus)}"


def _most_alike(gpus: tuple[Device, ...]) -> tuple[tuple[Device, ...], str]:
    """The largest group of GPUs of the same model (of equally large groups the more capable), and the reason."""
    models = dict.fromkeys(gpu.model for gpu in gpus)
    groups = [tuple(gpu for gpu in gpus if gpu.model == model) for model in models]
    largest = max(groups, key=lambda group: (len(group), group[0].compute_capability or (0, 0)))
    if len(groups) == 1:
        return largest, f"All {len(gpus)} GPUs: they are of one model." if len(gpus) > 1 else "The only GPU."
    name = largest[0].model or "unknown model"
    if len(largest) == 1:
        return largest, f"One GPU ({name}): the others are of other models, and replicas would wait for the slowest."
    return largest, f"The {len(largest)} GPUs of one model ({name}); replicas on others would wait for the slowest."
