"""What the doctor examines and finds: `Examination`, the machine and its probes, and `Check`, one result.

Probes run in child processes, which may crash or hang without affecting the caller. A child (`doctor_probes`) runs its
probes one after the other. If it dies or does not answer, the current probe has failed, and a new child continues with
the next one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

from tfaccel.hardware.gpu import DriverGpu, driver_gpus, visible_gpus
from tfaccel.hardware.hardware import Device
from tfaccel.hardware.machine import Machine
from tfaccel.processes.child import ConnectedChild
from tfaccel.records import Record

# The computations of `doctor_probes` on each device.
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


DOCTOR_PROBES = "tfaccel.hardware.doctor_probes"
_SHOWN_CHARACTERS = 20000
STATUSES = ("ok", "warn", "fail", "skip")


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """The result of one probe.

    Args:
        ok: whether it returned.
        data: what it returned.
        cause: why it failed.
        output: what the child had printed, for a failed probe.
        was_tried: False if it was skipped because others had hung.
        has_hung: whether it was terminated at its time limit.
    """

    ok: bool
    data: dict[str, Any] = field(default_factory=dict)
    cause: str = ""
    output: str = ""
    was_tried: bool = True
    has_hung: bool = False


class ProbeProcess:
    """A child process that runs probes one at a time; after a crash or timeout the next probe gets a new one.

    Args:
        machine: provides the child's interpreter and environment.
        program: the module that the child runs; its main calls `doctor_probes.serve_probes`.
        environ: variables for the child besides the machine's.

    Example:
        >>> with ProbeProcess(Machine.here()) as process:
        ...     result = process.run(["import", "nothing"], time_limit_seconds=60)
        >>> result.cause
        "ModuleNotFoundError: No module named 'nothing'"
    """

    def __init__(
        self, machine: Machine, *, program: str = DOCTOR_PROBES, environ: Mapping[str, str] | None = None
    ) -> None:
        self._machine = machine
        self._program = program
        self._environ = {**_child_environ(machine), **(environ or {})}
        self._child: ConnectedChild | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()

    def run(self, probe: Sequence[Any], *, time_limit_seconds: float) -> ProbeResult:
        """Runs a probe.

        Args:
            probe: its name in the program's table, and its arguments (JSON values).
            time_limit_seconds: its time limit, after which the child and all its descendants are terminated.
        """
        try:
            self._child = child = self._child or ConnectedChild(
                self._program, python=self._machine.python, base=self._environ
            )
        except OSError as error:
            return ProbeResult(ok=False, cause=f"cannot start {self._machine.python}: {error.strerror}")
        try:
            child.send(list(probe))
            report = child.receive(time_limit_seconds)
        except TimeoutError:
            cause = f"no answer within {time_limit_seconds:g} seconds (ended it)"
            result = ProbeResult(ok=False, cause=cause, output=child.output(_SHOWN_CHARACTERS), has_hung=True)
        except EOFError:
            cause = f"its process {child.how_it_ended()}"
            result = ProbeResult(ok=False, cause=cause, output=child.output(_SHOWN_CHARACTERS))
        else:
            return ProbeResult(**report, output="" if report["ok"] else child.output(_SHOWN_CHARACTERS))
        self.end()
        return result

    def end(self) -> None:
        """Terminates the child and all its descendants."""
        if self._child is not None:
            self._child.end()
            self._child = None


def run_probes(
    machine: Machine,
    probes: Sequence[Sequence[str]],
    *,
    time_limit_seconds: float,
    on_start: Callable[[Sequence[str]], None] = lambda probe: None,
) -> list[ProbeResult]:
    """Runs probes and returns their results in order.

    Args:
        machine: provides the children's interpreter and environment.
        probes: the names in `doctor_probes.PROBES` and arguments.
        time_limit_seconds: time limit of a single probe; after two that hang, the rest is skipped.
        on_start: called with each probe before it runs.

    Example:
        >>> results = run_probes(Machine.here(), [["import", "json"], ["import", "nothing"]], time_limit_seconds=60)
        >>> [result.ok for result in results], results[1].cause
        ([True, False], "ModuleNotFoundError: No module named 'nothing'")
    """
    results: list[ProbeResult] = []
    with ProbeProcess(machine) as process:
        for probe in probes:
            if sum(result.has_hung for result in results) >= 2:
                left_out = ProbeResult(ok=False, cause="not tried, since two others hung", was_tried=False)
                return results + [left_out] * (len(probes) - len(results))
            on_start(probe)
            results.append(process.run(probe, time_limit_seconds=time_limit_seconds))
    return results


def _child_environ(machine: Machine) -> dict[str, str]:
    """The user's environment, except for settings that have their own checks and would affect all others."""
    environ = {name: value for name, value in machine.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    return {**environ, "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "0", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}


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


@dataclass(frozen=True)
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
