"""The environment variables of a plan, and the memory allocators that a machine has."""

import ctypes.util

import pytest

from tfaccel.errors import PlanError
from tfaccel.planning.plan import Plan
from tfaccel.planning.plan_environment import get_environment, installed_allocators

CPU = {"strategy": "none", "devices": ("CPU:0",), "global_batch_size": 8}
GPU = {"strategy": "none", "devices": ("GPU:0",), "global_batch_size": 8}


@pytest.mark.parametrize(
    ("fields", "variables"),
    [
        (CPU, {}),
        ({**CPU, "onednn": False}, {"TF_ENABLE_ONEDNN_OPTS": "0"}),
        ({**CPU, "xla_auto_clustering": True}, {"TF_XLA_FLAGS": "--tf_xla_cpu_global_jit"}),
        ({**GPU, "xla_auto_clustering": True}, {}),
        ({**GPU, "gpu_thread_mode": "gpu_shared"}, {"TF_GPU_THREAD_MODE": "gpu_shared"}),
        ({**CPU, "memory_allocator": "glibc_huge_pages"}, {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}),
    ],
)
def test_variables(fields, variables):
    assert get_environment(Plan(**fields)) == variables


def test_allocators_are_libraries_of_this_machine(monkeypatch):
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: "libx.so.2" if name == "tcmalloc_minimal" else None)
    installed_allocators.cache_clear()
    assert [name for name in installed_allocators() if name != "glibc_huge_pages"] == ["tcmalloc"]
    assert get_environment(Plan(**CPU, memory_allocator="tcmalloc")) == {"LD_PRELOAD": "libx.so.2"}
    with pytest.raises(PlanError, match=r"Received: memory_allocator='jemalloc'. Install the library libjemalloc \("):
        get_environment(Plan(**CPU, memory_allocator="jemalloc"))
    installed_allocators.cache_clear()
