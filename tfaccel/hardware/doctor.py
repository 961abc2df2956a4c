"""What the doctor examines and finds: `Examination`, the machine and its child processes, and `Check`, one result."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tfaccel.hardware.doctor_child import ProbeResult, run_probes
from tfaccel.hardware.gpu import DriverGpu, driver_gpus, visible_gpus
from tfaccel.hardware.hardware import Device
from tfaccel.hardware.machine import Machine
from tfaccel.records import Record

# The computations of `doctor_arithmetic` on each device.
COMPUTATIONS = ("matmul", "convolution", "float16", "bfloat16", "XLA step")
# Packages that install the folder `tensorflow`, of which an environment can have only one.
TENSORFLOW_PACKAGES = ("tensorflow", "tensorflow-tpu", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly")
# Import name by package name.
LIBRARIES = {
    "keras": "keras",
    "tensorboard": "tensorboard",
    "keras-tuner": "keras_tuner",
    "ai-edge-litert": "ai_edge_litert.interpreter",
}
# Package -> the extra that installs it; training does not need it.
EXTRAS = {"keras-tuner": "tune", "ai-edge-litert": "litert"}


@dataclass(frozen=True)
class Examination:
    """One run of the doctor on one machine.

    Args:
        machine: the machine to check.
        time_limit_seconds: time limit of one probe.
        on_progress: called with the name of each probe before it runs.
    """

    machine: Machine
    time_limit_seconds: float = 120.0
    on_progress: Callable[[str], None] = lambda text: None

    @cached_property
    def driver_gpus(self) -> tuple[DriverGpu, ...]:
        """The GPUs that the driver reports."""
        return driver_gpus(self.machine)

    @property
    def gpus(self) -> tuple[Device, ...]:
        """The GPUs that TensorFlow should see."""
        return visible_gpus(self.driver_gpus, self.machine.environ.get("CUDA_VISIBLE_DEVICES"))

    @cached_property
    def tensorflow(self) -> ProbeResult:
        """The import of TensorFlow; the data has "version", "num_gpus" and "build"."""
        imported, devices = self.probe([["import", "tensorflow"], ["tensorflow devices"]])
        if not (imported.ok and devices.ok):
            return devices if imported.ok else imported
        return ProbeResult(ok=True, data={**imported.data, **devices.data})

    @cached_property
    def libraries(self) -> dict[str, ProbeResult]:
        """The imports of the other libraries, by package name."""
        return dict(zip(LIBRARIES, self.probe([["import", module] for module in LIBRARIES.values()]), strict=True))

    def computations(self, device: str, *, left_out: Sequence[str] = ()) -> dict[str, ProbeResult]:
        """The result of each computation on the device, by name."""
        names = [name for name in COMPUTATIONS if name not in left_out]
        return dict(zip(names, self.probe([["compute", device, name] for name in names]), strict=True))

    def probe(self, probes: Sequence[Sequence[str]]) -> list[ProbeResult]:
        """Runs probes in a separate child process."""
        return run_probes(
            self.machine,
            probes,
            time_limit_seconds=self.time_limit_seconds,
            on_start=lambda probe: self.on_progress(" ".join(probe[:3]).removeprefix("compute ")),
        )

    def installed(self, names: Sequence[str]) -> dict[str, str]:
        """The versions of the packages that are installed."""
        versions = {name: self.machine.package_version(name) for name in names}
        return {name: version for name, version in versions.items() if version is not None}


def explain(result: ProbeResult) -> str:
    """Why a probe failed, with the child's last words if it died."""
    died = not result.cause.startswith(("not tried", "no answer")) and not re.match(r"\w+: ", result.cause)
    words = last_words(result.output) if died else ""
    return f"{result.cause}; its last words: {words}" if words else result.cause


def last_words(output: str) -> str:
    """The most informative line: the last fatal error, else the last error, else the last line."""
    lines = [" ".join(line.split()) for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if re.match(r"F\d{4} |.*(Check failed|Fatal|fatal error)", line)]
    telling = telling or [line for line in lines if re.match(r"E\d{4} |.*[Ee]rror\b", line)]
    return (telling or lines or [""])[-1][:500]


def version_pair(version: str) -> tuple[int, int] | None:
    """The major and minor version, such as (2, 21); None if there is none."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else None


def in_words(data: dict[str, Any]) -> str:
    """Names and values on one line, such as "tensorflow 2.21.0, keras 3.15.1"."""
    return ", ".join(f"{name} {value}" for name, value in data.items())


# `Check`: the result of one check of the doctor.

STATUSES = ("ok", "warn", "fail", "skip")


@dataclass(frozen=True, kw_only=True)
class Check(Record):
    """The result of one check.

    Args:
        name: what was checked, such as "GPU:0 matmul".
        status: "ok"; "warn" (works, but untested or not well); "fail"; "skip" (cannot or need not be checked).
        detail: what was found.
        remedy: what to do about it, preferably a command; every "warn" and "fail" has one.

    Raises:
        ValueError: for an unknown status, or a "warn" or "fail" without a remedy.

    Example:
        >>> Check(name="keras", status="ok", detail="Keras 3.15.1").remedy
        ''
    """

    name: str
    status: str
    detail: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status must be one of {', '.join(STATUSES)}. Received: status={self.status!r}.")
        if self.status in ("warn", "fail") and not self.remedy:
            raise ValueError(f"A check that is {self.status!r} needs a remedy. Received: {self!r}.")
