"""What a measured plan depends on: the key under which it is kept."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from tfaccel.hardware.hardware import Hardware
from tfaccel.planning.signature import get_signature
from tfaccel.planning.workload import Workload

_FORMAT = 2
_PACKAGES = ("keras", "numpy", "tensorflow", "tfaccel")
_VOLATILE = ("memory_bytes",)  # of the hardware: a container's limit may change from run to run
_MODEL = ("build_model", "compile_args")
_DATA = ("train_data", "augment")


@dataclass(frozen=True)
class PlanKey:
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

    def to_json(self) -> dict[str, Any]:
        """The fields."""
        return {
            "task": dict(self.task),
            "signatures": dict(self.signatures),
            "hardware": dict(self.hardware),
            "versions": dict(self.versions),
        }


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
