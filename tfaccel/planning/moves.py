"""Moves: changes of a plan along one axis that may make training faster without changing what is computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tfaccel.errors import PlanError
from tfaccel.hardware.hardware import Hardware
from tfaccel.planning.candidates import candidate_plans
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload

MEASURED = "Measured on this machine"  # how the reason of a measured choice begins

# Axis -> the plan fields that belong to it, in the order in which axes are tried: those with the largest gains first.
AXES: Mapping[str, tuple[str, ...]] = {
    "precision": ("dtype_policy",),
    "XLA": ("jit_compile",),
    "oneDNN": ("onednn",),
    "kernels": ("fused_kernels",),
    "devices": ("strategy", "devices", "num_logical_cpus", "communication"),
    "threads": ("intra_op_threads", "inter_op_threads"),
    "input": ("data_threads", "prefetch_batches", "prefetch_to_device", "cache_data", "augment_on"),
    "communication": ("communication", "bytes_per_pack"),
}


# Features of CPUs for which oneDNN has fast operations, and those for which TensorFlow uses them without being asked.
_HAS_ONEDNN = {"AVX2", "AVX512F", "ASIMD"}
_ON_BY_DEFAULT = {"AVX512_VNNI", "AVX512_BF16", "AVX_VNNI", "AMX_TILE", "AMX_INT8", "AMX_BF16", "ASIMD"}


@dataclass(frozen=True)
class Move:
    """A change of a plan along one axis.

    Args:
        axis: a key of `AXES`.
        changes: field -> new value.
    """

    axis: str
    changes: tuple[tuple[str, Any], ...]

    def applied_to(self, plan: Plan) -> Plan | None:
        """The changed plan; None if it would be the same plan, or one that contradicts itself.

        Example:
            >>> plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=32)
            >>> Move("XLA", (("jit_compile", True),)).applied_to(plan).jit_compile
            True
        """
        try:
            changed = replace(plan, **dict(self.changes))
        except PlanError:
            return None
        return None if changed == plan else changed


_FUSED = Move("kernels", (("jit_compile", False), ("fused_kernels", True)))


def moves(hardware: Hardware, workload: Workload, fixed: Mapping[str, Any]) -> list[Move]:
    """The moves worth measuring on this machine, those with the largest expected gains first.

    A field that is fixed is never changed.

    Example:
        >>> digits = Workload("digits", object, dict, lambda *args, **kwargs: None, global_batch_size=64)
        >>> [move.axis for move in moves(Hardware(num_usable_cores=2), digits, {})]
        ['XLA', 'kernels', 'threads', 'threads']
    """
    plans = candidate_plans(hardware, workload, **fixed)
    found = [move for plan in plans[1:] for move in _between(plans[0], plan)]
    further = [*_onednn_moves(plans[0], hardware), _FUSED, *_thread_moves(plans[0], hardware)]
    found += [move for move in further if all(fixed.get(name, value) == value for name, value in move.changes)]
    order = list(AXES)
    return sorted(dict.fromkeys(found), key=lambda move: order.index(move.axis))


def _between(first: Plan, other: Plan) -> Iterator[Move]:
    """The move from one plan to another, if it lies on one axis."""
    for axis, names in AXES.items():
        changes = tuple((name, getattr(other, name)) for name in names if getattr(other, name) != getattr(first, name))
        if changes and replace(first, **dict(changes)) == other:
            yield Move(axis, changes)
            return


def _onednn_moves(first: Plan, hardware: Hardware) -> list[Move]:
    """The opposite of what TensorFlow does by itself."""
    if not first.devices[0].startswith("CPU") or not _HAS_ONEDNN & {*hardware.cpu_features}:
        return []
    return [Move("oneDNN", (("onednn", not _ON_BY_DEFAULT & {*hardware.cpu_features}),))]


def _thread_moves(first: Plan, hardware: Hardware) -> list[Move]:
    """One operation at a time with all cores; and as many operations as cores, each on one."""
    cores = hardware.num_usable_cores
    if cores < 2 or not first.devices[0].startswith("CPU"):
        return []
    alone = (("intra_op_threads", cores), ("inter_op_threads", 1))
    side_by_side = (("intra_op_threads", 1), ("inter_op_threads", cores))
    return [Move("threads", alone), Move("threads", side_by_side)]
