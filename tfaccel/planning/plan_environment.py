"""What a plan needs around a process: environment variables, read when it or TensorFlow starts, and a command line."""

from __future__ import annotations

import ctypes.util
import functools
import platform
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfaccel.errors import PlanError
from tfaccel.planning.plan import SETTINGS, Plan

# Variables that the dynamic linker and the C library read when a process starts.
READ_AT_START = ("LD_PRELOAD", "GLIBC_TUNABLES")
XLA_FLAGS = "TF_XLA_FLAGS"
# Allocator -> the library that holds it, and Debian's package.
_LIBRARIES: Mapping[str, tuple[str, str]] = {
    "jemalloc": ("jemalloc", "libjemalloc2"),
    "tcmalloc": ("tcmalloc_minimal", "libtcmalloc-minimal4"),
    "mimalloc": ("mimalloc", "libmimalloc2.0"),
}
_HUGE_PAGES = "glibc_huge_pages"
_GLIBC_WITH_HUGE_PAGES = (2, 35)
_SWITCHES = {True: "on", False: "off", None: "none"}
_SHARED_FLAGS = ("intra_op_threads", "inter_op_threads")  # --num_threads sets both


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
        variables[XLA_FLAGS] = "--tf_xla_cpu_global_jit"
    if plan.gpu_thread_mode is not None:
        variables["TF_GPU_THREAD_MODE"] = plan.gpu_thread_mode
    if plan.memory_allocator == _HUGE_PAGES:
        variables["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
    elif plan.memory_allocator is not None:
        variables["LD_PRELOAD"] = _library(plan.memory_allocator)
    return variables


def with_flags_of(environ: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """Variables of a plan, whose XLA flags follow those that the environment has already."""
    if XLA_FLAGS not in variables:
        return dict(variables)
    given, own = environ.get(XLA_FLAGS, ""), variables[XLA_FLAGS]
    return {**variables, XLA_FLAGS: given if own in given.split() else f"{given} {own}".strip()}


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


def train_command(workload: Any, options: Mapping[str, Any], plan: Plan, rules: Plan) -> str:
    """What trains a workload with a plan: a command for a recipe or an import path, else a call.

    Args:
        workload: a recipe's name, an import path, or anything else that `tfaccel.train` takes.
        options: arguments of the function that makes the workload.
        plan: the plan.
        rules: the plan that is used without flags; its fields are left out.

    Example:
        >>> rules = Plan(strategy="none", devices=("CPU:0",), global_batch_size=32)
        >>> plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=32, jit_compile=True, onednn=False)
        >>> train_command("image_classification", {"width": 64}, plan, rules)
        'tfaccel train --recipe=image_classification --width=64 --xla=on --set=onednn=off --run_dir=DIR'
    """
    if not isinstance(workload, str):
        return 'report.plan.save("plan.json"), then tfaccel.train(..., plan=tfaccel.Plan.load("plan.json"))'
    flags = [f"--{'workload' if ':' in workload else 'recipe'}={workload}"]
    flags += [f"--{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in options.items()]
    for name, setting in SETTINGS.items():
        value = getattr(plan, name)
        if value != getattr(rules, name):
            has_flag = setting.flag is not None and name not in _SHARED_FLAGS
            flags.append(f"--{setting.flag}={_text(value)}" if has_flag else f"--set={name}={_text(value)}")
    return shlex.join(["tfaccel", "train", *flags, "--run_dir=DIR"])


def _text(value: Any) -> str:
    if isinstance(value, bool | None):
        return _SWITCHES[value]
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
