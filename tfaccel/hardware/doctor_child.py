"""Runs probes in child processes, which may crash or hang without affecting the caller.

The child (`doctor_probes`) runs its probes one after the other. If it dies or does not answer, the current probe has
failed, and a new child continues with the next one.
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
    return {
        **environ,
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }
