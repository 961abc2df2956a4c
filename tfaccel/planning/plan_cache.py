"""Measured plans on disk: `find_fastest` keeps them, `train` uses them for the same workload on the same machine."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import logging
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tfaccel.errors import PlanError, TfaccelError
from tfaccel.files import write_json
from tfaccel.hardware.hardware import Hardware
from tfaccel.local_path import local_path
from tfaccel.planning.candidates import checked_fields, default_plan
from tfaccel.planning.plan import Plan
from tfaccel.planning.plan_environment import get_environment
from tfaccel.planning.reference import get_signature
from tfaccel.planning.workload import Workload
from tfaccel.records import Record

logger = logging.getLogger("tfaccel")

CACHE_VARIABLE = "TFACCEL_CACHE"
_DAMAGES = (TfaccelError, OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
_FORMAT = 2
_PACKAGES = ("keras", "numpy", "tensorflow", "tfaccel")
_VOLATILE = ("memory_bytes",)  # of the hardware: a container's limit may change from run to run
_MODEL = ("build_model", "compile_args")
_DATA = ("train_data", "augment")


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


def cache_dir() -> Path | None:
    """The directory of everything that is measured once: `TFACCEL_CACHE`, or else ~/.cache/tfaccel.

    None, with one warning, for a user who has no home directory, as in some containers: nothing is kept then.
    """
    try:
        return local_path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "tfaccel", PlanError)
    except RuntimeError:  # HOME is not set, and the user's number is in no list of users
        _warn_of_no_home()
        return None


def plans_dir() -> Path | None:
    """The directory of measured plans; None if there is no cache."""
    directory = cache_dir()
    return None if directory is None else directory / "plans"


def keep_in_cache(file: Path | None, entry: Mapping[str, Any], what: str) -> Path | None:
    """Writes a JSON file; returns it, or None with one warning, which begins with `what`, if it cannot be written.

    Without a cache (`file` is None), there is nothing to write: `cache_dir` has warned already.
    """
    if file is None:
        return None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, entry)
    except OSError as error:
        logger.warning(f"{what} not kept: {error}. Set {CACHE_VARIABLE} to a directory to write to.")
        return None
    return file


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
    directory = plans_dir()
    if directory is None:
        return None
    key = PlanKey.of(hardware, workload, fixed)
    file = _get_file(directory, key)
    try:
        entry = json.loads(file.read_text(encoding="utf-8"))
        plan = Plan.from_json(entry["plan"])
        get_environment(plan)  # an allocator may have been uninstalled
        fields = {name: value for name, value in fixed.items() if name != "tune_batch"}
        if entry["key"] != key.to_json() or any(getattr(plan, name) != value for name, value in fields.items()):
            raise ValueError("it is an entry for something else")
        return CachedPlan(plan, file, float(entry["speedup"]), dict(entry["report"]))
    except FileNotFoundError:
        if tells_what_is_stale:
            _say_what_is_stale(directory, key)
        return None
    except _DAMAGES as error:
        ignored(file, error)
        return None


def _get_file(directory: Path, key: PlanKey) -> Path:
    return directory / f"{key.task_digest}-{key.digest}.json"


def _say_what_is_stale(directory: Path, key: PlanKey) -> None:
    """Says why the newest plan that was measured for this task is not used; nothing if none was."""
    files = sorted(directory.glob(f"{key.task_digest}-*.json"), key=_modified, reverse=True)
    for file in files:
        try:
            entry = json.loads(file.read_text(encoding="utf-8"))
            earlier = PlanKey(**entry["key"])
            changes = key.changes_since(earlier)
            _warn_of_stale(file, f"measured on {entry['measured']}: {'; '.join(changes)}"[:400])
            return
        except _DAMAGES as error:
            ignored(file, error)


def _modified(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def ignored(file: Path, error: Exception) -> None:
    """Says, once, that a damaged or stale file is ignored."""
    _warn_once(file, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")


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
    directory = plans_dir()
    key = PlanKey.of(hardware, workload, fixed)
    entry = {
        "key": key.to_json(),
        "measured": time.strftime("%Y-%m-%d"),
        "workload": workload.name,
        "plan": plan.to_json(),
        "speedup": speedup,
        "report": dict(report),
    }
    file = None if directory is None else _get_file(directory, key)
    return keep_in_cache(file, entry, "The measured plan was")


def chosen_plan(hardware: Hardware, workload: Workload, **fixed: Any) -> Plan:
    """The measured plan if `find_fastest` has kept one for these fixed fields; otherwise that of the rules.

    Logs which one it is.

    Args:
        hardware, workload: what the plan is for.
        **fixed: plan fields, whose values stay fixed.

    Raises:
        PlanError: if a fixed field cannot run here.
    """
    fixed = checked_fields(fixed)
    found = cached_plan(hardware, workload, fixed)
    if found is not None:
        logger.info(f"Using the plan {found.origin}")
        return found.plan
    return default_plan(hardware, workload, **fixed)


@functools.cache
def _warn_once(file: Path, reason: str) -> None:
    logger.warning(f"The measured plan in {file} is ignored: {reason}")


@functools.cache
def _warn_of_stale(file: Path, reason: str) -> None:
    logger.warning(f"The plan in {file} is stale, and is not used; {reason}. `tfaccel find-fastest` measures again.")


@functools.cache
def _warn_of_no_home() -> None:
    logger.warning(
        f"There is no home directory (HOME is not set), so nothing that is measured is kept. Set {CACHE_VARIABLE} to a "
        "directory to write to."
    )


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
        cluster = hardware.cluster
        machine = {name: value for name, value in hardware.to_json().items() if name not in _VOLATILE}
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
            "hardware": {**machine, "cluster": None if cluster is None else cluster.num_workers},
            "versions": {"Python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
        }
        return cls(**json.loads(json.dumps(parts)))

    @property
    def digest(self) -> str:
        """A digest of everything."""
        return _digest(self.to_json())

    @property
    def task_digest(self) -> str:
        """A digest of what is trained: the same on another machine, with other versions, or after a change of code."""
        return _digest(self.task)[:16]

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


def _digest(parts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
