"""Settings that a process can make only once: those of a plan that it makes, and those that it can no longer take."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfaccel.errors import PlanError
from tfaccel.planning.placements import SET_BY_YOU
from tfaccel.planning.plan import Plan
from tfaccel.planning.plan_environment import READ_AT_START, get_environment

logger = logging.getLogger("tfaccel")

# Plan field -> the variables that it sets.
_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "onednn": ("TF_ENABLE_ONEDNN_OPTS",),
    "xla_auto_clustering": ("TF_XLA_FLAGS",),
    "gpu_thread_mode": ("TF_GPU_THREAD_MODE",),
    "memory_allocator": READ_AT_START,
}
_loaded_with: dict[str, str] = {}


def note_loaded(variables: Mapping[str, str]) -> None:
    """Remembers the variables with which this process loads TensorFlow."""
    _loaded_with.update(variables)


def variables_at_start(plan: Plan) -> dict[str, str]:
    """The variables with which a process must start to train with a plan, if this one has started without them."""
    wanted = {name: value for name, value in get_environment(plan).items() if name in READ_AT_START}
    return {name: value for name, value in wanted.items() if not _started_with(name, value)}


def unavailable_settings(plan: Plan) -> dict[str, str]:
    """Plan field -> why this process cannot train with its value; empty if it can.

    Raises:
        PlanError: if the plan's memory allocator is not installed.
    """
    missing = variables_at_start(plan)
    wanted = get_environment(plan)
    if "tensorflow" in sys.modules:
        missing |= {name: value for name, value in wanted.items() if not _tensorflow_has(name, value, plan)}
    found = {}
    for field, names in _VARIABLES.items():
        needed = " ".join(f"{name}={missing[name]}" for name in names if name in missing)
        if needed:
            found[field] = (
                f"The plan has {field}={getattr(plan, field)!r}, but this process "
                + ("started without it." if field == "memory_allocator" else "has loaded TensorFlow without it.")
                + f" Set the environment variable {needed} before Python starts, or use {field}={_neutral(field)}."
            )
    return found


def without_unavailable(plan: Plan, fixed: Mapping[str, Any]) -> Plan:
    """A measured plan without the settings that would need a new process; those that the user fixed stay."""
    for field, problem in unavailable_settings(plan).items():
        if field not in fixed:
            logger.warning("The measured plan is used without its %s. %s", field, problem)
            default: Any = _neutral(field)
            plan = replace(plan, **{field: default})
    return plan


def _neutral(field: str) -> object:
    return Plan.__dataclass_fields__[field].default


def _tensorflow_has(name: str, value: str, plan: Plan) -> bool:
    """Whether the loaded TensorFlow has read a variable, or acts as if it had."""
    if name in READ_AT_START:
        return _started_with(name, value)
    if name == "TF_ENABLE_ONEDNN_OPTS":
        from tfaccel.training.private.private_tensorflow import uses_onednn

        return uses_onednn() == plan.onednn
    return value in os.environ.get(name, "").split() or _loaded_with.get(name) == value


def _started_with(name: str, value: str) -> bool:
    """Whether this process has started with a value of a variable."""
    try:
        if name == "LD_PRELOAD":
            return value in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
        variables = Path("/proc/self/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return False
    return any(one.startswith(f"{name}=") and value in one for one in variables)


def before_start(change: Callable[[], Any], fits: Callable[[], bool], what: str) -> None:
    """Makes a change that TensorFlow accepts only before it starts; later, the setting must already match.

    Raises:
        PlanError: if it does not; the message names `what` the plan needs.
    """
    try:
        change()
    except RuntimeError as error:
        if not fits():
            raise PlanError(
                f"The plan needs {what}, but TensorFlow has already started in this process and cannot change that. "
                "Enter `Runtime(plan)` before the first TensorFlow operation, or start a new process."
            ) from error


def set_threads(plan: Plan) -> None:
    """Sets the plan's numbers of threads; numbers that a rule chose are left as they are once TensorFlow has started.

    Raises:
        PlanError: if TensorFlow has started with another number than the one that the user set.
    """
    import tensorflow as tf

    threading = tf.config.threading
    _set_threads(
        plan,
        "intra_op_threads",
        threading.get_intra_op_parallelism_threads,
        threading.set_intra_op_parallelism_threads,
        "threads inside one operation",
    )
    _set_threads(
        plan,
        "inter_op_threads",
        threading.get_inter_op_parallelism_threads,
        threading.set_inter_op_parallelism_threads,
        "operations in parallel",
    )


def _set_threads(
    plan: Plan, field: str, configured: Callable[[], int], configure: Callable[[int], None], what: str
) -> None:
    wanted: int | None = getattr(plan, field)
    if wanted is None or configured() == wanted:
        return

    def fits() -> bool:
        if _counted(configured()) == wanted:
            return True
        by_rule = dict(plan.reasons).get(field, SET_BY_YOU) != SET_BY_YOU
        if by_rule:
            text = "TensorFlow has already started in this process and keeps its own number of %s; the plan has %d."
            logger.warning(text, what, wanted)
        return by_rule

    before_start(lambda: configure(wanted), fits, f"{wanted} {what}")


def _counted(configured: int) -> int:
    """The number of threads that TensorFlow takes for a number in its configuration, where 0 stands for all cores."""
    return configured or len(os.sched_getaffinity(0))
