"""Runs probes in child processes, which may crash or hang without taking the caller along.

The child (`doctor_probes`) runs its probes one after the other. When it dies or falls silent, the probe that was
running has failed, and a new child goes on with the next.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from tfaccel.hardware.machine import Machine
from tfaccel.processes.connection import ConnectedChild

DOCTOR_PROBES = "tfaccel.hardware.doctor_probes"
_SHOWN_CHARACTERS = 20000


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """How one probe ended.

    Args:
        ok: whether it returned.
        data: what it returned.
        cause: why it failed.
        output: what the child had printed by then, for a probe that failed.
        was_tried: False where it was left out, since others had hung.
        has_hung: whether it was ended at its time limit.
    """

    ok: bool
    data: dict[str, Any] = field(default_factory=dict)
    cause: str = ""
    output: str = ""
    was_tried: bool = True
    has_hung: bool = False


class ProbeProcess:
    """A child process that runs probes one at a time; after a crash or a silence the next probe gets a new one.

    Args:
        machine: its interpreter and environment run the child.
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
        """Runs a probe, named with its arguments (JSON values) as in the program's table.

        Args:
            probe: what to run.
            time_limit_seconds: how long it may take; then the child is ended with all that it started.
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
        """Ends the child and all that it started."""
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
    """Runs each probe, named with its arguments as in `doctor_probes.PROBES`, and returns the results in order.

    Args:
        machine: its interpreter and environment run the children.
        probes: what to run.
        time_limit_seconds: how long a single probe may take; after two that hang, the rest is not tried.
        on_start: called with each probe when it begins.

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
    """The user's environment, but for settings that have checks of their own and would spoil all others."""
    environ = {name: value for name, value in machine.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    return {
        **environ,
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }
