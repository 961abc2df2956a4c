"""The CPU and the memory that this process may use, from /proc, /sys and the process's cgroups."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from tfaccel.errors import HardwareError
from tfaccel.hardware.machine import Machine

# The instruction sets that matter for TensorFlow's speed, as Linux names them, in uppercase.
_X86_FEATURES = "AVX AVX2 FMA AVX_VNNI AVX512F AVX512_BF16 AVX512_FP16 AVX512_VNNI AMX_TILE AMX_BF16 AMX_FP16 AMX_INT8"
_ARM_FEATURES = "ASIMD SVE SVE2 BF16 I8MM"
_FEATURES = frozenset(f"{_X86_FEATURES} {_ARM_FEATURES}".split())


def cpu_model(machine: Machine) -> str:
    """The name of the CPU; "unknown" if the kernel does not report it."""
    for block in _cpuinfo(machine):
        for key in ("model name", "Processor", "cpu model", "cpu"):
            if block.get(key):
                return block[key]
    model = machine.read("/sys/firmware/devicetree/base/model")
    return (model or "").strip("\0\n ") or "unknown"


def cpu_flags(machine: Machine) -> tuple[str, ...]:
    """All that every core supports, as Linux names it, such as "avx512_bf16"."""
    blocks = [block.get("flags") or block.get("Features") for block in _cpuinfo(machine)]
    flags = [set(text.split()) for text in blocks if text]
    return tuple(sorted(set.intersection(*flags))) if flags else ()


def cpu_features(machine: Machine) -> tuple[str, ...]:
    """The relevant instruction sets that every core supports, such as "AVX512_BF16"."""
    return tuple(sorted(_FEATURES & {name.upper() for name in cpu_flags(machine)}))


def num_physical_cores(machine: Machine) -> int:
    """Physical cores of the whole machine; the hardware threads of a core count once."""
    blocks = _cpuinfo(machine)
    if blocks and all("core id" in block for block in blocks):
        return len({(block.get("physical id"), block["core id"]) for block in blocks})
    siblings = {
        machine.read(path) for path in machine.glob("/sys/devices/system/cpu/cpu[0-9]*/topology/thread_siblings_list")
    }
    return len(siblings) or len(blocks) or len(machine.cpu_affinity)


def num_usable_cores(machine: Machine) -> int:
    """Hardware threads that this process may use: its affinity, limited by its cgroup's quota (at least 1)."""
    allowed = len(machine.cpu_affinity)
    quota = cpu_quota(machine)
    return max(1, allowed if quota is None else min(allowed, int(quota)))


def memory_bytes(machine: Machine) -> int:
    """Memory that this process may use: RAM, or its cgroup's limit if that is lower.

    Raises:
        HardwareError: if the kernel does not report the size of the RAM.
    """
    ram = _number(machine.read("/proc/meminfo"), "MemTotal:")
    if ram is None:
        raise HardwareError(
            "Cannot tell how much memory this machine has: /proc/meminfo has no MemTotal. tfaccel detects hardware on "
            "Linux; elsewhere describe the machine in a JSON file and read it with Hardware.load."
        )
    limit = memory_limit_bytes(machine)
    return ram * 1024 if limit is None else min(ram * 1024, limit)


def free_memory_bytes(machine: Machine) -> int | None:
    """Memory that this process may still allocate without swapping; None if the kernel does not report it.

    It is what Linux calls available, or the rest below the cgroup's limit if that is less.
    """
    available, left = _number(machine.read("/proc/meminfo"), "MemAvailable:"), memory_left_bytes(machine)
    if available is None:
        return None
    return available * 1024 if left is None else min(available * 1024, left)


def resident_bytes() -> int:
    """The resident size of this process.

    Example:
        >>> resident_bytes() > 2**20
        True
    """
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * resource.getpagesize()


def _cpuinfo(machine: Machine) -> list[dict[str, str]]:
    """The blocks of /proc/cpuinfo, one for each logical CPU."""
    blocks = []
    for text in (machine.read("/proc/cpuinfo") or "").split("\n\n"):
        pairs = (line.partition(":") for line in text.splitlines() if ":" in line)
        block = {key.strip(): value.strip() for key, _, value in pairs}
        if "processor" in block:
            blocks.append(block)
    return blocks


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
                dropped = _number(machine.read(f"{folder}/memory.stat"), droppable) or 0
                left.append(max(0, int(limit) - int(usage) + dropped))
    return min(left, default=None)


def _number(text: str | None, name: str) -> int | None:
    """The number after a name, in lines of names and numbers; None if the name is missing."""
    pairs = (line.split()[:2] for line in (text or "").splitlines())
    return next((int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] == name and pair[1].isdigit()), None)


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
