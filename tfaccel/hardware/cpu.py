"""The CPU and the memory that this process may use, from /proc, /sys and the process's cgroups."""

from tfaccel.errors import HardwareError
from tfaccel.hardware.cgroup import cpu_quota, memory_left_bytes, memory_limit_bytes
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


def cpu_features(machine: Machine) -> tuple[str, ...]:
    """The relevant instruction sets that every core supports, such as "AVX512_BF16"."""
    blocks = [block.get("flags") or block.get("Features") for block in _cpuinfo(machine)]
    flags = [set(text.split()) for text in blocks if text]
    if not flags:
        return ()
    return tuple(sorted(_FEATURES & {name.upper() for name in set.intersection(*flags)}))


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
    for line in (machine.read("/proc/meminfo") or "").splitlines():
        words = line.split()
        if words[:1] == ["MemTotal:"] and len(words) >= 2 and words[1].isdigit():
            limit = memory_limit_bytes(machine)
            ram = int(words[1]) * 1024
            return ram if limit is None else min(ram, limit)
    raise HardwareError(
        "Cannot tell how much memory this machine has: /proc/meminfo has no MemTotal. tfaccel detects hardware on "
        "Linux; elsewhere describe the machine in a JSON file and read it with Hardware.load."
    )


def free_memory_bytes(machine: Machine) -> int | None:
    """Memory that this process may still allocate without swapping; None if the kernel does not report it.

    It is what Linux calls available, or the rest below the cgroup's limit if that is less.
    """
    for line in (machine.read("/proc/meminfo") or "").splitlines():
        words = line.split()
        if words[:1] == ["MemAvailable:"] and len(words) >= 2 and words[1].isdigit():
            left = memory_left_bytes(machine)
            available = int(words[1]) * 1024
            return available if left is None else min(available, left)
    return None


def _cpuinfo(machine: Machine) -> list[dict[str, str]]:
    """The blocks of /proc/cpuinfo, one for each logical CPU."""
    blocks = []
    for text in (machine.read("/proc/cpuinfo") or "").split("\n\n"):
        pairs = (line.partition(":") for line in text.splitlines() if ":" in line)
        block = {key.strip(): value.strip() for key, _, value in pairs}
        if "processor" in block:
            blocks.append(block)
    return blocks
