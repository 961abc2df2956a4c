import pytest
from made_up_machine import cpuinfo, make_machine

from tfaccel.errors import HardwareError
from tfaccel.hardware import cpu


def test_hardware_threads_count_as_one_core(tmp_path):
    files = {"/proc/cpuinfo": cpuinfo(num_sockets=2, num_cores=4, num_threads=2)}
    machine = make_machine(tmp_path, files=files, cpu_affinity=frozenset(range(16)))
    assert cpu.num_physical_cores(machine) == 8
    assert cpu.num_usable_cores(machine) == 16
    assert cpu.cpu_model(machine) == "Intel(R) Xeon(R) Platinum 8480+"


def test_only_instruction_sets_that_matter_and_every_core_has(tmp_path):
    machine = make_machine(tmp_path, files={"/proc/cpuinfo": cpuinfo(extra="avx_vnni")})
    known = ("AMX_BF16", "AMX_INT8", "AMX_TILE", "AVX2", "AVX512F", "AVX512_BF16", "AVX512_VNNI")
    assert cpu.cpu_features(machine) == tuple(sorted((*known, "AVX_VNNI")))
    blocks = cpuinfo(extra="avx_vnni").split("\n\n")
    mixed = "\n\n".join([blocks[0], blocks[1].replace("avx_vnni", "").replace("amx_tile", "")])
    (machine.root / "proc/cpuinfo").write_text(mixed)
    assert set(known) - set(cpu.cpu_features(machine)) == {"AMX_TILE"}


def test_arm_cores_are_told_apart_by_sysfs(tmp_path):
    block = "processor\t: {}\nFeatures\t: fp asimd sve bf16\nCPU part\t: 0xd40\n"
    files = {"/proc/cpuinfo": "\n".join(block.format(i) for i in range(4))}
    for i in range(4):
        files[f"/sys/devices/system/cpu/cpu{i}/topology/thread_siblings_list"] = f"{i}\n"
    machine = make_machine(tmp_path, files=files)
    assert cpu.num_physical_cores(machine) == 4
    assert cpu.cpu_features(machine) == ("ASIMD", "BF16", "SVE")
    assert cpu.cpu_model(machine) == "unknown"


def test_affinity_limits_usable_cores(tmp_path):
    files = {"/proc/cpuinfo": cpuinfo(num_cores=8)}
    machine = make_machine(tmp_path, files=files, cpu_affinity=frozenset({2, 5, 7}))
    assert (cpu.num_physical_cores(machine), cpu.num_usable_cores(machine)) == (8, 3)


V2_MOUNT = "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1_MOUNTS = (
    "32 31 0:29 {root} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 {root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)


def test_cgroup_v2_takes_the_lowest_limit_on_the_way_up(tmp_path):
    files = {
        "/proc/self/cgroup": "0::/kubepods/pod1/box\n",
        "/proc/self/mountinfo": V2_MOUNT,
        "/sys/fs/cgroup/kubepods/pod1/box/cpu.max": "max 100000\n",
        "/sys/fs/cgroup/kubepods/pod1/cpu.max": "350000 100000\n",
        "/sys/fs/cgroup/kubepods/pod1/box/memory.max": "4294967296\n",
        "/sys/fs/cgroup/kubepods/memory.max": "8589934592\n",
    }
    machine = make_machine(tmp_path, files=files, cpu_affinity=frozenset(range(8)))
    assert cpu.num_usable_cores(machine) == 3
    assert cpu.memory_bytes(machine) == 4 * 2**30


@pytest.mark.parametrize("mount_root", ["/", "/docker/box"])
def test_cgroup_v1_inside_and_outside_a_container(tmp_path, mount_root):
    below = "" if mount_root == "/docker/box" else "/docker/box"
    files = {
        "/proc/self/cgroup": "4:memory:/docker/box\n2:cpu,cpuacct:/docker/box\n0::/\n",
        "/proc/self/mountinfo": V1_MOUNTS.format(root=mount_root),
        f"/sys/fs/cgroup/cpu,cpuacct{below}/cpu.cfs_quota_us": "150000\n",
        f"/sys/fs/cgroup/cpu,cpuacct{below}/cpu.cfs_period_us": "100000\n",
        f"/sys/fs/cgroup/memory{below}/memory.limit_in_bytes": "1073741824\n",
    }
    machine = make_machine(tmp_path, files=files, cpu_affinity=frozenset(range(8)))
    assert cpu.num_usable_cores(machine) == 1
    assert cpu.memory_bytes(machine) == 2**30


def test_cgroups_without_a_limit_change_nothing(tmp_path):
    files = {
        "/proc/self/cgroup": "4:memory:/\n2:cpu:/\n0::/\n",
        "/proc/self/mountinfo": V2_MOUNT + V1_MOUNTS.format(root="/").replace("cpu,cpuacct", "cpu") + "garbage\n",
        "/sys/fs/cgroup/cpu.max": "max 100000\n",
        "/sys/fs/cgroup/memory.max": "max\n",
        "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    machine = make_machine(tmp_path, files=files)
    assert cpu.num_usable_cores(machine) == 2
    assert cpu.memory_bytes(machine) == 16 * 2**30


def test_a_tiny_quota_leaves_one_core(tmp_path):
    files = {
        "/proc/self/cgroup": "0::/\n",
        "/proc/self/mountinfo": V2_MOUNT,
        "/sys/fs/cgroup/cpu.max": "20000 100000\n",
    }
    assert cpu.num_usable_cores(make_machine(tmp_path, files=files)) == 1


def test_another_system_than_linux_is_an_error_that_names_the_way_out(tmp_path):
    machine = make_machine(tmp_path, files={"/proc/meminfo": ""})
    with pytest.raises(HardwareError, match=r"no MemTotal.*Hardware\.load"):
        cpu.memory_bytes(machine)


def test_free_memory_is_what_linux_calls_available(tmp_path):
    meminfo = "MemTotal: 16777216 kB\nMemFree: 1 kB\nMemAvailable: 4194304 kB\n"
    assert cpu.free_memory_bytes(make_machine(tmp_path, files={"/proc/meminfo": meminfo})) == 4 * 2**30
    assert cpu.free_memory_bytes(make_machine(tmp_path)) is None


def test_free_memory_is_what_the_cgroup_leaves(tmp_path):
    machine = make_machine(
        tmp_path,
        files={
            "/proc/meminfo": "MemTotal: 16777216 kB\nMemAvailable: 16777216 kB\n",
            "/proc/self/cgroup": "0::/pod/box\n",
            "/proc/self/mountinfo": "35 31 0:32 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n",
            "/sys/fs/cgroup/pod/box/memory.max": "max\n",
            "/sys/fs/cgroup/pod/memory.max": "4000000\n",
            "/sys/fs/cgroup/pod/memory.current": "3500000\n",
            "/sys/fs/cgroup/pod/memory.stat": "anon 2500000\nfile 1000000\ninactive_file 800000\nactive_file 200000\n",
        },
    )
    assert cpu.free_memory_bytes(machine) == 4000000 - 3500000 + 800000
    old = make_machine(
        tmp_path / "old",
        files={
            "/proc/meminfo": "MemTotal: 16777216 kB\nMemAvailable: 16777216 kB\n",
            "/proc/self/cgroup": "4:memory:/box\n",
            "/proc/self/mountinfo": "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
            "/sys/fs/cgroup/memory/box/memory.limit_in_bytes": "1000\n",
            "/sys/fs/cgroup/memory/box/memory.usage_in_bytes": "1400\n",
            "/sys/fs/cgroup/memory/box/memory.stat": "total_inactive_file 100\n",
        },
    )
    assert cpu.free_memory_bytes(old) == 0
