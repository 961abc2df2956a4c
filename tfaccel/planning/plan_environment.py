"""The environment variables that a plan needs: some settings are read only when a process or TensorFlow starts."""

import ctypes.util
import functools
import platform
from collections.abc import Mapping
from pathlib import Path

from tfaccel.errors import PlanError
from tfaccel.planning.plan import Plan

# Variables that the dynamic linker and the C library read when a process starts.
READ_AT_START = ("LD_PRELOAD", "GLIBC_TUNABLES")
# Allocator -> the library that holds it, and Debian's package.
_LIBRARIES: Mapping[str, tuple[str, str]] = {
    "jemalloc": ("jemalloc", "libjemalloc2"),
    "tcmalloc": ("tcmalloc_minimal", "libtcmalloc-minimal4"),
    "mimalloc": ("mimalloc", "libmimalloc2.0"),
}
_HUGE_PAGES = "glibc_huge_pages"
_GLIBC_WITH_HUGE_PAGES = (2, 35)


def get_environment(plan: Plan) -> dict[str, str]:
    """Name -> value of each variable that the plan sets.

    Raises:
        PlanError: if the plan's memory allocator is not installed.

    Example:
        >>> get_environment(Plan(strategy="none", devices=("CPU:0",), global_batch_size=8, onednn=True))
        {'TF_ENABLE_ONEDNN_OPTS': '1'}
    """
    variables = {}
    if plan.onednn is not None:
        variables["TF_ENABLE_ONEDNN_OPTS"] = str(int(plan.onednn))
    if plan.xla_auto_clustering and plan.devices[0].startswith("CPU"):
        variables["TF_XLA_FLAGS"] = "--tf_xla_cpu_global_jit"
    if plan.gpu_thread_mode is not None:
        variables["TF_GPU_THREAD_MODE"] = plan.gpu_thread_mode
    if plan.memory_allocator == _HUGE_PAGES:
        variables["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
    elif plan.memory_allocator is not None:
        variables["LD_PRELOAD"] = _library(plan.memory_allocator)
    return variables


@functools.cache
def installed_allocators() -> tuple[str, ...]:
    """The values of a plan's `memory_allocator` that this machine has.

    glibc's huge pages need glibc 2.35 and a kernel that gives huge pages to programs that ask for them.
    """
    found = [name for name, (library, _) in _LIBRARIES.items() if ctypes.util.find_library(library)]
    return (*found, _HUGE_PAGES) if _has_huge_pages() else tuple(found)


def _library(allocator: str) -> str:
    library, package = _LIBRARIES[allocator]
    found = ctypes.util.find_library(library)
    if found is None:
        raise PlanError(
            f"The memory allocator is not installed. Received: memory_allocator={allocator!r}. Install the library "
            f"lib{library} (Debian's package {package}), or use memory_allocator=None."
        )
    return found


def _has_huge_pages() -> bool:
    name, version = platform.libc_ver()
    if name != "glibc" or tuple(int(part) for part in version.split(".")[:2]) < _GLIBC_WITH_HUGE_PAGES:
        return False
    try:
        return "[madvise]" in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text(encoding="ascii")
    except OSError:
        return False
