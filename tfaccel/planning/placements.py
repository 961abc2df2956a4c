"""Where the replicas run: the strategy with its devices and workers, best first."""

from collections.abc import Mapping
from typing import Any

from tfaccel.errors import PlanError
from tfaccel.hardware.hardware import Hardware
from tfaccel.planning.case import Choice
from tfaccel.planning.device_sets import DeviceSet, device_sets
from tfaccel.planning.plan_fields import REFUSED_STRATEGIES, parse_device
from tfaccel.planning.stage_rules import staged_sets, stages_rule
from tfaccel.planning.workload import Workload

PLACEMENT_FIELDS = ("strategy", "devices", "pipeline_stages", "num_logical_cpus", "num_workers", "tpu")
SET_BY_YOU = "Set by you."


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
    num_stages = fixed.get("pipeline_stages", stages.value)
    if num_stages > 1 and "devices" not in fixed:
        sets = staged_sets(hardware, fixed, num_stages)
    else:
        sets = device_sets(hardware, workload, fixed, num_workers=workers.value)
    proposals = []
    for device_set in sets:
        proposal = {
            "strategy": strategy_rule(hardware, device_set, workers.value, num_stages),
            "devices": Choice(device_set.devices, device_set.reason),
            "pipeline_stages": stages,
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
