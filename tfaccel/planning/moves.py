"""Moves: changes of a plan along one axis that may make training faster without changing what is computed."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tfaccel.errors import PlanError
from tfaccel.hardware.hardware import Hardware
from tfaccel.planning.candidates import candidate_plans
from tfaccel.planning.own_model import RebuiltModel
from tfaccel.planning.plan import SETTINGS, Plan
from tfaccel.planning.workload import Workload

MEASURED = "Measured on this machine"  # how the reason of a measured choice begins

# In the order in which they are tried: those with the largest gains first; the last two where memory ran out.
_ORDER = (
    *("oneDNN", "kernels", "precision", "Grappler", "threads", "XLA", "batch", "devices", "input", "communication"),
    *("GPU threads", "allocator", "clustering", "micro-batches", "steps", "logits", "rematerialization"),
)
AXES: Mapping[str, tuple[str, ...]] = {
    axis: tuple(name for name, setting in SETTINGS.items() if axis in setting.axes) for axis in _ORDER
}
"""Axis -> the plan fields that belong to it."""
# Settings that only a new process can take.
PROCESS_AXES = ("oneDNN", "clustering", "GPU threads", "allocator")


# Features of CPUs for which oneDNN has fast operations, and those for which TensorFlow uses them without being asked.
_HAS_ONEDNN = {"AVX2", "AVX512F", "ASIMD"}
_ON_BY_DEFAULT = {"AVX512_VNNI", "AVX512_BF16", "AVX_VNNI", "AMX_TILE", "AMX_INT8", "AMX_BF16", "ASIMD"}

_AND = " and "
# A gain on one axis may change what another is worth.
_COUPLED = {"precision": "XLA", "XLA": "precision", "threads": "Grappler", "kernels": "oneDNN"}
SMALL_GAIN = 1.2  # after which the reverse is worth a try
_SAFE = ("precision", "oneDNN", "kernels")  # axes that seldom lose
_SMALL_STEP = 1_000_000  # operations: one of half as many ran 0.84 times as fast in mixed_bfloat16


@dataclass(frozen=True)
class Move:
    """A change of a plan along one axis.

    Args:
        axis: a key of `AXES`.
        changes: field -> new value.
        is_doubtful: whether it rarely pays for this model on this machine, and so is tried after the others.
    """

    axis: str
    changes: tuple[tuple[str, Any], ...]
    is_doubtful: bool = field(default=False, compare=False, repr=False)

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


def get_fields(axis: str) -> tuple[str, ...]:
    """The plan fields of a move's axis, or of those of both moves; none if it is not a move's.

    Example:
        >>> get_fields("precision and kernels"), get_fields("rules")
        (('dtype_policy', 'fused_kernels'), ())
    """
    return tuple(name for one in axes_of(axis) for name in AXES.get(one, ()))


def axes_of(axis: str) -> list[str]:
    """The axis of a move; of two at once, both."""
    return axis.split(_AND)


def at_once(plan: Plan, first_two: Sequence[Move]) -> tuple[Move, Plan] | None:
    """Two moves as one, named after both axes, with its plan, if both are likely to pay; else None.

    Example:
        >>> plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=32)
        >>> onednn, kernels = Move("oneDNN", (("onednn", True),)), Move("kernels", (("fused_kernels", True),))
        >>> at_once(plan, [onednn, kernels])[0]
        Move(axis='oneDNN and kernels', changes=(('onednn', True), ('fused_kernels', True)))
        >>> at_once(plan, [kernels, Move("XLA", (("jit_compile", True),))]) is None
        True
    """
    moved = [one.applied_to(plan) for one in first_two]
    if len(moved) < 2 or None in moved or not all(map(seldom_loses, first_two)):
        return None
    combined = both_at_once(*first_two)
    changed = combined.applied_to(plan)
    return None if changed is None else (combined, changed)


def both_at_once(first: Move, second: Move) -> Move:
    """Two moves as one, named after both axes."""
    return Move(f"{first.axis}{_AND}{second.axis}", (*first.changes, *second.changes))


def seldom_loses(move: Move) -> bool:
    """Whether a move pays for most models: precision, kernels or oneDNN, unless it is doubtful for this one."""
    return not move.is_doubtful and set(axes_of(move.axis)) <= set(_SAFE)


def tried_again(axis: str, lost: Sequence[Move], gains: Mapping[str, float], first: Plan) -> list[Move]:
    """Moves to try again after a gain, along the coupled axis: those that lost, and the reverse of a small gain.

    After a small gain of two moves at once, each is tried without the other.

    Args:
        axis: of the move that won.
        lost: the moves that lost before.
        gains: axis -> its gain so far.
        first: the plan that the search began with.

    Example:
        >>> first = Plan(strategy="none", devices=("CPU:0",), global_batch_size=32)
        >>> tried_again("kernels", [Move("oneDNN", (("onednn", True),))], {}, first)
        [Move(axis='oneDNN', changes=(('onednn', True),))]
        >>> tried_again("kernels", [], {"oneDNN": 1.1}, first), tried_again("kernels", [], {"oneDNN": 1.6}, first)
        ([Move(axis='oneDNN', changes=(('onednn', None),))], [])
        >>> [move.axis for move in tried_again("kernels and precision", [], {"kernels and precision": 1.1}, first)]
        ['precision', 'kernels']
    """
    coupled = _COUPLED.get(axis, "")
    again = [one for one in lost if one.axis == coupled]
    small, undone = (axis, axes_of(axis)) if _AND in axis else (coupled, [coupled])
    if gains.get(small, SMALL_GAIN) < SMALL_GAIN:
        again += [_undo(one, first) for one in sorted(undone, key=lambda one: one != "precision")]
    return again


def tried_after_loss(lost: Move, gains: Mapping[str, float], first: Plan) -> list[Move]:
    """Moves to try after one that lost: each of two at once; and kernels without a precision that gained little.

    Kernels come first, and in float32, where those of recurrent layers pay.

    Example:
        >>> first = Plan(strategy="none", devices=("CPU:0",), global_batch_size=32)
        >>> [dict(move.changes) for move in tried_after_loss(_FUSED, {"precision": 1.04}, first)]
        [{'jit_compile': False, 'fused_kernels': True, 'dtype_policy': 'float32'}]
    """
    if _AND in lost.axis:
        parts = sorted(axes_of(lost.axis), key=lambda one: one == "precision")
        return [Move(one, tuple(change for change in lost.changes if change[0] in AXES[one])) for one in parts]
    if lost.axis != "kernels" or gains.get("precision", SMALL_GAIN) >= SMALL_GAIN:
        return []
    return [Move(lost.axis, (*lost.changes, *_undo("precision", first).changes))]


def _undo(axis: str, first: Plan) -> Move:
    return Move(axis, tuple((name, getattr(first, name)) for name in get_fields(axis)))


_FUSED = Move("kernels", (("jit_compile", False), ("fused_kernels", True)))
_OF_KERAS = Move("kernels", (("fused_kernels", False),))


def moves(
    hardware: Hardware,
    workload: Workload,
    fixed: Mapping[str, Any],
    *,
    allocators: Sequence[str] = (),
    tune_batch: bool = False,
    step_operations: int | None = None,
    kernels_need_float32: bool = False,
) -> list[Move]:
    """The moves worth measuring on this machine, those with the largest expected gains first.

    A field that is fixed is never changed.

    Args:
        hardware, workload: what the plan is for.
        fixed: plan fields that stay as they are.
        allocators: memory allocators that are installed.
        tune_batch: whether the global batch size may change, which changes what is computed.
        step_operations: see `candidate_plans`. In small steps, casts outweigh what a CPU gains by bfloat16.
        kernels_need_float32: whether the model's fused kernels are for float32, so that a dtype policy excludes them.

    Example:
        >>> digits = Workload("digits", object, dict, lambda *args, **kwargs: None, global_batch_size=64)
        >>> [move.axis for move in moves(Hardware(num_usable_cores=2), digits, {})]
        ['kernels', 'threads', 'threads', 'XLA', 'input', 'input', 'clustering', 'micro-batches', 'steps']
    """
    plans = candidate_plans(hardware, workload, **fixed)
    found = [move for plan in plans[1:] for move in _between(plans[0], plan)]
    first = plans[0]
    further = [*_onednn_moves(first, hardware), _FUSED, *_thread_moves(first, hardware)]
    further += [_OF_KERAS] if first.jit_compile and first.fused_kernels else []
    further += [*_memory_moves(first, allocators), *_graph_moves(first, hardware)]
    further += batch_moves(first) if tune_batch else []
    further += _input_moves(first, hardware, workload)
    found = [_alone(move) for move in [*found, *further]]
    if isinstance(workload.build_model, RebuiltModel):
        fixed = {**fixed, "dtype_policy": workload.build_model.dtype_policy}
    found = [move for move in found if all(fixed.get(name, value) == value for name, value in move.changes)]
    on_cpu = first.devices[0].startswith("CPU")
    is_small = on_cpu and step_operations is not None and step_operations < _SMALL_STEP
    doubtful = ("precision", "Grappler") if is_small else ("precision",) if on_cpu and kernels_need_float32 else ()
    found = [  # without oneDNN, a CNN was 26 times as slow
        replace(one, is_doubtful=("onednn", False) in one.changes or one.axis in doubtful)
        for one in dict.fromkeys(found)
    ]
    order: dict[str, float] = {axis: place for place, axis in enumerate(_ORDER)}
    if kernels_need_float32:  # many small operations, which run well side by side
        order["Grappler"] = order["threads"] + 0.5
    return sorted(found, key=lambda move: (move.is_doubtful, order[move.axis]))


def _alone(move: Move) -> Move:
    """The move, away from what it excludes: XLA from kernels and Grappler, a dtype policy from Grappler's bfloat16."""
    without: tuple[tuple[str, Any], ...] = ()
    if ("jit_compile", True) in move.changes:
        without = (("fused_kernels", False), ("grappler_bfloat16", False), ("xla_auto_clustering", False))
    elif dict(move.changes).get("dtype_policy", "float32") != "float32":
        without = (("grappler_bfloat16", False),)
    return Move(move.axis, (*move.changes, *without))


def _between(first: Plan, other: Plan) -> Iterator[Move]:
    """The move from one plan to another, if it lies on one axis."""
    loses_kernels = first.jit_compile and first.fused_kernels and not other.fused_kernels
    for axis, names in AXES.items():
        changes = tuple((name, getattr(other, name)) for name in names if getattr(other, name) != getattr(first, name))
        if changes and loses_kernels and "fused_kernels" not in names:  # they follow from precision and XLA
            changes += (("fused_kernels", False),)
        if changes and Move(axis, changes).applied_to(first) == other:
            yield Move(axis, changes)
            return


def _onednn_moves(first: Plan, hardware: Hardware) -> list[Move]:
    """The opposite of what TensorFlow does by itself."""
    if not first.devices[0].startswith("CPU") or not _HAS_ONEDNN & {*hardware.cpu_features}:
        return []
    return [Move("oneDNN", (("onednn", not _ON_BY_DEFAULT & {*hardware.cpu_features}),))]


def _thread_moves(first: Plan, hardware: Hardware) -> list[Move]:
    """As many operations as cores, each on one; and, which seldom pays, one at a time with all cores."""
    cores = hardware.num_usable_cores
    if cores < 2 or not first.devices[0].startswith("CPU"):
        return []
    alone = (("intra_op_threads", cores), ("inter_op_threads", 1))
    side_by_side = (("intra_op_threads", 1), ("inter_op_threads", cores))
    return [Move("threads", side_by_side), Move("threads", alone)]


def _memory_moves(first: Plan, allocators: Sequence[str]) -> list[Move]:
    """Other allocators, and smaller micro-batches, which may fit into a cache."""
    halves = [] if first.replica_batch_size % 2 else [Move("micro-batches", (("accumulation_steps", 2),))]
    if not first.devices[0].startswith("CPU"):
        return halves
    return [*(Move("allocator", (("memory_allocator", name),)) for name in allocators), *halves]


def _graph_moves(first: Plan, hardware: Hardware) -> list[Move]:
    """What TensorFlow may do to the graph; and single steps in place of a loop."""
    found = [Move("clustering", (("xla_auto_clustering", True),)), Move("steps", (("steps_per_execution", 1),))]
    if first.devices[0].startswith("CPU") and {"AVX512_BF16", "AMX_BF16"} & {*hardware.cpu_features}:
        found.append(Move("Grappler", (("dtype_policy", "float32"), ("grappler_bfloat16", True))))
    return found


def _input_moves(first: Plan, hardware: Hardware, workload: Workload) -> list[Move]:
    """Examples kept in memory, if the workload can; threads of the pipeline's own; more batches ahead."""
    can_cache = "cache" in inspect.signature(workload.train_data).parameters
    cache = [Move("input", (("cache_data", True),))] if can_cache else []
    threads = Move("input", (("data_threads", max(2, hardware.num_usable_cores)),))
    return [*cache, threads, Move("input", (("prefetch_batches", 4 * max(1, first.prefetch_batches)),))]


def batch_moves(first: Plan) -> list[Move]:
    """Larger global batches, and one half as large.

    Example:
        >>> plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=32)
        >>> [dict(move.changes)["global_batch_size"] for move in batch_moves(plan)]
        [64, 128, 256, 16]
    """
    size, smallest = first.global_batch_size, first.num_replicas * first.accumulation_steps
    sizes = [size * 2, size * 4, size * 8, *([size // 2] if size % (2 * smallest) == 0 else [])]
    return [Move("batch", (("global_batch_size", one),)) for one in sizes]
