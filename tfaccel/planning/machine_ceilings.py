"""The noun `MachineCeilings`: how fast this machine multiplies matrices and copies memory, kept on disk."""

from __future__ import annotations

import importlib.metadata
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfaccel.errors import PlanError
from tfaccel.hardware.hardware import Hardware
from tfaccel.planning.cache import cache_file, get_digest, keep_in_cache, read_from_cache
from tfaccel.planning.plan import Plan
from tfaccel.planning.plan_checks import get_kind
from tfaccel.planning.plan_environment import get_environment
from tfaccel.records import Record
from tfaccel.short_repr import noun

TENSOR_FLOAT_32 = "tensorfloat32"  # float32 tensors, whose products GPUs compute with 10 bits of mantissa
_FORMAT = 3
_PACKAGES = ("keras", "tensorflow")


@noun
class MachineCeilings(Record):
    """The highest speeds that TensorFlow reached on one device of this machine, a CPU with all of its usable cores.

    Args:
        device: "CPU" or "GPU".
        matrix_flops_per_second: dtype -> floating-point operations per second of a large matrix product; for GPUs,
            "tensorfloat32" is the speed of float32 tensors as TensorFlow multiplies them by default.
        bytes_per_second: bytes read and written per second while copying memory, far beyond the size of caches.
        measured: the date.
        disturbed: what was measured while other programs took CPU time, such as ("float32",): its speed may be too low.

    Raises:
        PlanError: if a speed is not positive and finite, or `disturbed` has other names.

    Example:
        >>> ceilings = MachineCeilings(
        ...     device="CPU", matrix_flops_per_second={"float32": 2e11}, bytes_per_second=2e10, measured="2026-01-31"
        ... )
        >>> ceilings.ridge("float32")
        10.0
    """

    device: str
    matrix_flops_per_second: Mapping[str, float]
    bytes_per_second: float
    measured: str = ""
    disturbed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, value in {**self.matrix_flops_per_second, "memory": self.bytes_per_second}.items():
            if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
                raise PlanError(f"A ceiling must be a positive number. Received: {name}={value!r}.")
        if "float32" not in self.matrix_flops_per_second:
            raise PlanError(f"The ceilings lack float32. Received: {dict(self.matrix_flops_per_second)}.")
        if not set(self.disturbed) <= set(self.matrix_flops_per_second):
            raise PlanError(f"Only what was measured can have been disturbed. Received: disturbed={self.disturbed}.")

    def matrix_flops(self, dtype: str) -> float:
        """Floating-point operations per second in a dtype; that of float32 if it was not measured."""
        found = self.matrix_flops_per_second
        if dtype == "float32":
            return found.get(TENSOR_FLOAT_32, found["float32"])
        return found.get(dtype, found["float32"])

    def ridge(self, dtype: str) -> float:
        """The arithmetic intensity from which a computation is bound by arithmetic rather than by memory."""
        return self.matrix_flops(dtype) / self.bytes_per_second

    @property
    def doubt(self) -> str:
        """Why these limits are not to be relied on, as a sentence; empty if they are."""
        if not self.disturbed:
            return ""
        names = ", ".join(self.disturbed)
        return f"The limits ({names}) were measured while other programs ran, and may be too low."


def compute_dtype(plan: Plan) -> str:
    """The dtype in which layers multiply matrices under a plan.

    Example:
        >>> compute_dtype(Plan(strategy="none", devices=("CPU:0",), global_batch_size=8, dtype_policy="mixed_bfloat16"))
        'bfloat16'
    """
    if plan.grappler_bfloat16:
        return "bfloat16"
    return plan.dtype_policy.removeprefix("mixed_")


def num_limited_devices(plan: Plan) -> int:
    """How many times a plan has the ceilings of one device: logical CPUs share one CPU."""
    return len(plan.devices) if plan.devices[0].startswith("GPU") else 1


def ceilings_file(hardware: Hardware, plan: Plan) -> Path | None:
    """The file of the ceilings: it depends on the machine, the versions, and the plan's environment variables.

    None if there is no cache.
    """
    machine = {name: value for name, value in hardware.to_json().items() if name not in ("memory_bytes", "cluster")}
    parts = {
        "format": _FORMAT,
        "hardware": machine,
        "device": get_kind(plan),
        "versions": {"python": sys.version, **{name: importlib.metadata.version(name) for name in _PACKAGES}},
        "environment": get_environment(plan),
    }
    return cache_file("ceilings", f"{get_digest(parts)}.json")


def cached_ceilings(hardware: Hardware, plan: Plan) -> MachineCeilings | None:
    """The ceilings that were measured on this machine with the plan's environment; None if there are none.

    They may be `disturbed`. A file that cannot be read is ignored, with one warning.
    """

    def read(entry: Any) -> MachineCeilings:
        if entry["format"] != _FORMAT or entry["ceilings"]["device"] != get_kind(plan):
            raise ValueError("it is an entry for something else")
        return MachineCeilings.from_json(entry["ceilings"])

    return read_from_cache(ceilings_file(hardware, plan), read, "The measured ceilings in {} are ignored")


def keep_ceilings(hardware: Hardware, plan: Plan, ceilings: MachineCeilings) -> Path | None:
    """Saves ceilings; returns their file, or None with one warning if it cannot be written."""
    file = ceilings_file(hardware, plan)
    entry = {"format": _FORMAT, "ceilings": ceilings.to_json()}
    return keep_in_cache(file, entry, "The ceilings were")
