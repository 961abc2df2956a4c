"""The limits that containers and job schedulers set through Linux's control groups, version 1 and 2.

The process's own group or any of its ancestors may have a limit, so all of them are read and the lowest counts.
See https://docs.kernel.org/admin-guide/cgroup-v2.html and https://docs.kernel.org/admin-guide/cgroup-v1/.
"""

from collections.abc import Iterator
from pathlib import PurePosixPath

from tfaccel.hardware.machine import Machine


def cpu_quota(machine: Machine) -> float | None:
    """The number of CPUs that this process may use, such as 1.5; None if there is no limit."""
    quotas = []
    for folder in _group_folders(machine, controller=None):
        quota, _, period = (machine.read(f"{folder}/cpu.max") or "").strip().partition(" ")
        quotas.append(_ratio(quota, period))
    for folder in _group_folders(machine, controller="cpu"):
        quota = (machine.read(f"{folder}/cpu.cfs_quota_us") or "").strip()
        period = (machine.read(f"{folder}/cpu.cfs_period_us") or "").strip()
        quotas.append(_ratio(quota, period))
    return min((quota for quota in quotas if quota is not None), default=None)


def memory_limit_bytes(machine: Machine) -> int | None:
    """The memory limit of this process's groups in bytes; None if there is no limit."""
    limits = [machine.read(f"{folder}/memory.max") for folder in _group_folders(machine, controller=None)]
    limits += [
        machine.read(f"{folder}/memory.limit_in_bytes") for folder in _group_folders(machine, controller="memory")
    ]
    numbers = [int(limit) for limit in limits if limit is not None and limit.strip().isdigit()]
    return min((number for number in numbers if number > 0), default=None)


def memory_left_bytes(machine: Machine) -> int | None:
    """Bytes that this process's groups may still allocate before one reaches its limit; None without a limit.

    The kernel's file cache, which it drops on demand, counts as free.
    """
    names = {
        None: ("memory.max", "memory.current", "inactive_file"),
        "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    }
    left = []
    for controller, (limit_file, usage_file, droppable) in names.items():
        for folder in _group_folders(machine, controller=controller):
            limit = (machine.read(f"{folder}/{limit_file}") or "").strip()
            usage = (machine.read(f"{folder}/{usage_file}") or "").strip()
            if limit.isdigit() and usage.isdigit():
                kept = _field(machine.read(f"{folder}/memory.stat"), droppable)
                left.append(max(0, int(limit) - int(usage) + kept))
    return min(left, default=None)


def _field(text: str | None, name: str) -> int:
    """The number after a name, in lines of names and numbers; 0 if the name is missing."""
    pairs = (line.split() for line in (text or "").splitlines())
    return next((int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] == name and pair[1].isdigit()), 0)


def _ratio(quota: str, period: str) -> float | None:
    # "max" in version 2 and "-1" in version 1 mean no limit.
    if quota.isdigit() and period.isdigit() and int(quota) > 0 and int(period) > 0:
        return int(quota) / int(period)
    return None


def _group_folders(machine: Machine, *, controller: str | None) -> Iterator[str]:
    """The folders of this process's group and of its ancestors; `controller` None means version 2's single tree."""
    group = _group_path(machine, controller)
    if group is None:
        return
    for mount_root, mount_point in _mounts(machine, controller):
        path = PurePosixPath(group)
        # Inside a container the mount may show only a subtree, starting at the container's own group.
        inside = path.relative_to(mount_root) if path.is_relative_to(mount_root) else PurePosixPath()
        folder = PurePosixPath(mount_point) / inside
        yield str(folder)
        for parent in folder.parents:
            if not parent.is_relative_to(mount_point):
                break
            yield str(parent)


def _group_path(machine: Machine, controller: str | None) -> str | None:
    for line in (machine.read("/proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if (number == "0" and not controllers) if controller is None else (controller in controllers.split(",")):
            return path
    return None


def _mounts(machine: Machine, controller: str | None) -> Iterator[tuple[str, str]]:
    """The root within the tree, and the mount point, of each mounted tree of that controller."""
    for line in (machine.read("/proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        before, after = left.split(), right.split()
        if len(before) < 5 or len(after) < 3:
            continue
        is_wanted = after[0] == "cgroup2" if controller is None else controller in after[2].split(",")
        if is_wanted and after[0] in ("cgroup", "cgroup2"):
            yield before[3], before[4]
