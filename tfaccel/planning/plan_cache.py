"""Measured plans on disk: `find_fastest` keeps them, `train` uses them for the same workload on the same machine."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import logging
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from tfaccel.files import warn_once
from tfaccel.hardware.hardware import Hardware
from tfaccel.planning.cache import DAMAGES, cache_file, get_digest, keep_in_cache, read_from_cache, today
from tfaccel.planning.candidates import checked_fields, default_plan
from tfaccel.planning.plan import Plan
from tfaccel.planning.plan_environment import get_environment
from tfaccel.planning.reference import get_signature
from tfaccel.planning.workload import Workload
from tfaccel.records import Record

logger = logging.getLogger("tfaccel")

PLAN_IGNORED = "The measured plan in {} is ignored"
_FORMAT = 2
_PACKAGES = ("keras", "numpy", "tensorflow", "tfaccel")
_VOLATILE = ("memory_bytes",)  # of the hardware: a container's limit may change from run to run
_MODEL = ("build_model", "compile_args")
_DATA = ("train_data", "augment")
_MAX_READ = 50
_Read = TypeVar("_Read")


@dataclass(frozen=True)
class CachedPlan:
    """A plan that `find_fastest` chose in an earlier call.

    Args:
        plan: the plan.
        file: the file that holds it, with all that was measured.
        speedup: its speed divided by that of the rules' plan.
        report: the report of the call, as JSON.
    """

    plan: Plan
    file: Path
    speedup: float
    report: Mapping[str, Any]

    @property
    def origin(self) -> str:
        """A few words on where the plan comes from: whether its search came to an end, and the file."""
        if self.report.get("complete", True):
            return f"measured by `tfaccel find-fastest`, {self.file}"
        return f"measured by a search that was interrupted (--autotune goes on with it), {self.file}"


def cached_plan(
    hardware: Hardware, workload: Workload, fixed: Mapping[str, Any], *, tells_what_is_stale: bool = True
) -> CachedPlan | None:
    """The plan that was measured for this workload on this machine; None if there is none.

    A file that cannot be read is ignored, with one warning.

    Args:
        hardware, workload: what the plan is for.
        fixed: plan fields whose values are fixed.
        tells_what_is_stale: if the machine, the versions, or the code of the model or the data have changed since the
            last measurement, say so in one line.
    """
    key = PlanKey.of(hardware, workload, fixed)
    file = _get_file(key)
    if file is None:
        return None

    def read(entry: Any) -> CachedPlan:
        plan = Plan.from_json(entry["plan"])
        get_environment(plan)  # an allocator may have been uninstalled
        fields = {name: value for name, value in fixed.items() if name != "tune_batch"}
        if entry["key"] != key.to_json() or any(getattr(plan, name) != value for name, value in fields.items()):
            raise ValueError("it is an entry for something else")
        return CachedPlan(plan, file, float(entry["speedup"]), dict(entry["report"]))

    found = read_from_cache(file, read, PLAN_IGNORED)
    if found is None and tells_what_is_stale and not os.path.exists(file):
        _say_what_is_stale(key)
    return found


def _get_file(key: PlanKey) -> Path | None:
    return cache_file("plans", f"{key.task_digest}-{key.digest}.json")


def kept_files(pattern: str = "*.json") -> list[Path]:
    """The files of measured plans, the newest first; none if there is no cache."""
    directory = cache_file("plans")
    return sorted(directory.glob(pattern) if directory else (), key=_modified, reverse=True)


def _say_what_is_stale(key: PlanKey) -> None:
    """Says why the newest plan that was measured for this task is not used; nothing if none was."""

    def read(entry: Any) -> str:
        changes = key.changes_since(PlanKey(**entry["key"]))
        return f"measured on {entry['measured']}: {'; '.join(changes)}"[:400]

    for file in kept_files(f"{key.task_digest}-*.json"):
        reason = read_from_cache(file, read, PLAN_IGNORED)
        if reason is not None:
            warn_once(f"The plan in {file} is stale, and is not used; {reason}. `tfaccel find-fastest` measures again.")
            return


def _modified(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def keep_plan(
    hardware: Hardware,
    workload: Workload,
    fixed: Mapping[str, Any],
    plan: Plan,
    *,
    speedup: float,
    report: Mapping[str, Any],
) -> Path | None:
    """Saves a measured plan; returns its file, or None with one warning if it cannot be written."""
    key = PlanKey.of(hardware, workload, fixed)
    entry = {
        "key": key.to_json(),
        "measured": today(),
        "workload": workload.name,
        "plan": plan.to_json(),
        "speedup": speedup,
        "report": dict(report),
    }
    return keep_in_cache(_get_file(key), entry, "The measured plan was")


def read_kept(hardware: Hardware, read: Callable[[Any], _Read]) -> list[_Read]:
    """What `read` makes of the newest entries of this machine and these versions; what is damaged is left out."""
    here = json.loads(json.dumps(_get_place(hardware)))
    found: list[_Read] = []
    for file in kept_files()[:_MAX_READ]:
        with contextlib.suppress(*DAMAGES):  # said when it is asked for
            entry = json.loads(file.read_text(encoding="utf-8"))
            if here.items() <= entry["key"].items():
                found.append(read(entry))
    return found


def chosen_plan(hardware: Hardware, workload: Workload, **fixed: Any) -> Plan:
    """The measured plan if `find_fastest` has kept one for these fixed fields; otherwise that of the rules.

    Logs which one it is.

    Args:
        hardware, workload: what the plan is for.
        **fixed: plan fields, whose values stay fixed.

    Raises:
        PlanError: if a fixed field cannot run here.
    """
    fixed = checked_fields(fixed, hardware)
    found = cached_plan(hardware, workload, fixed)
    if found is not None:
        logger.info(f"Using the plan {found.origin}")
        return found.plan
    return default_plan(hardware, workload, **fixed)


@dataclass(frozen=True)
class PlanKey(Record):
    """All that a measured plan depends on, as JSON values.

    Args:
        task: what is trained, as its user names it: name, function that builds the model, options, batch size, and the
            plan fields that are fixed.
        signatures: of the model, and of the data.
        hardware: the machine.
        versions: package -> version.

    Example:
        >>> digits = Workload("digits", object, dict, lambda *args, **kwargs: None, global_batch_size=64)
        >>> key = PlanKey.of(Hardware(num_usable_cores=2), digits, {})
        >>> earlier = PlanKey(key.task, key.signatures, key.hardware, {**key.versions, "keras": "3.0.0"})
        >>> [change.split(",")[0] for change in key.changes_since(earlier)]
        ['keras was 3.0.0']
    """

    task: Mapping[str, Any]
    signatures: Mapping[str, Any]
    hardware: Mapping[str, Any]
    versions: Mapping[str, str]

    @classmethod
    def of(cls, hardware: Hardware, workload: Workload, fixed: Mapping[str, Any]) -> Self:
        """The key of a workload on a machine, with these fixed plan fields."""
        task = {
            "format": _FORMAT,
            "name": workload.name,
            "build_model": getattr(workload.build_model, "__qualname__", type(workload.build_model).__name__),
            "options": dict(workload.options),
            "global_batch_size": workload.global_batch_size,
            "fixed": {name: list(value) if isinstance(value, tuple) else value for name, value in fixed.items()},
        }
        data = [get_signature(getattr(workload, name)) for name in _DATA]
        parts = {
            "task": task,
            "signatures": {
                "model": [get_signature(getattr(workload, name)) for name in _MODEL],
                "data": [workload.num_train_examples, *data],
            },
            **_get_place(hardware),
        }
        return cls(**json.loads(json.dumps(parts)))

    @property
    def digest(self) -> str:
        """A digest of everything."""
        return get_digest(self.to_json())

    @property
    def task_digest(self) -> str:
        """A digest of what is trained: the same on another machine, with other versions, or after a change of code."""
        return get_digest(self.task)[:16]

    def changes_since(self, earlier: PlanKey) -> list[str]:
        """What differs from the key of an earlier measurement of the same task, in words."""
        changes = [
            f"{name} was {version}, now {self.versions.get(name)}"
            for name, version in earlier.versions.items()
            if version != self.versions.get(name)
        ]
        if earlier.hardware != self.hardware:
            changes.append("the machine is another one")
        for name in ("model", "data"):
            if self.signatures[name] != earlier.signatures[name]:
                changes.append(f"the code or the shapes of the {name} changed")
        return changes


def plan_key(hardware: Hardware, workload: Workload, fixed: Mapping[str, Any]) -> str:
    """A digest of all that a measured plan depends on; see `PlanKey`.

    Example:
        >>> digits = Workload("digits", object, dict, lambda *args, **kwargs: None, global_batch_size=64)
        >>> plan_key(Hardware(), digits, {}) == plan_key(Hardware(), digits, {})
        True
        >>> plan_key(Hardware(), digits, {}) == plan_key(Hardware(num_usable_cores=8), digits, {})
        False
    """
    return PlanKey.of(hardware, workload, fixed).digest


def _get_place(hardware: Hardware) -> dict[str, Any]:
    """The machine and the versions, as a key has them."""
    cluster = hardware.cluster
    machine = {name: value for name, value in hardware.to_json().items() if name not in _VOLATILE}
    return {
        "hardware": {**machine, "cluster": None if cluster is None else cluster.num_workers},
        "versions": {"Python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
