"""Runs probes in child processes, which may crash or hang without taking the caller along.

The child (`doctor_probes`) runs its probes one after the other and reports each over a pipe of its own, so that what
libraries print disturbs nothing. When it dies or falls silent, the probe that was running has failed, and a new child
goes on with the next.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from tfaccel.hardware.machine import Machine

DOCTOR_PROBES = "tfaccel.hardware.doctor_probes"

_SIGNAL_MEANINGS = {
    signal.SIGABRT: "the program aborted itself",
    signal.SIGILL: "the processor lacks an instruction that the library was built for",
    signal.SIGSEGV: "invalid memory access",
    signal.SIGBUS: "memory that could not be reached",
    signal.SIGKILL: "ended from outside, perhaps for lack of memory",
    signal.SIGTERM: "ended from outside",
}


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """How one probe ended.

    Arguments:
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

    Arguments:
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
        self._child: _Child | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()

    def run(self, probe: Sequence[Any], *, time_limit_seconds: float) -> ProbeResult:
        """Runs a probe, named with its arguments (JSON values) as in the program's table.

        Arguments:
            probe: what to run.
            time_limit_seconds: how long it may take; then the child is ended with all that it started.
        """
        try:
            self._child = child = self._child or _Child(self._machine.python, self._program, self._environ)
        except OSError as error:
            return ProbeResult(ok=False, cause=f"cannot start {self._machine.python}: {error.strerror}")
        try:
            report = child.ask(probe, time_limit_seconds)
        except TimeoutError:
            cause = f"no answer within {time_limit_seconds:g} seconds (ended it)"
            result = ProbeResult(ok=False, cause=cause, output=child.output(), has_hung=True)
        except EOFError:
            result = ProbeResult(ok=False, cause=child.death(), output=child.output())
        else:
            return ProbeResult(**report, output="" if report["ok"] else child.output())
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

    Arguments:
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


class _Child:
    """A started child: it reads probes from one pipe, a line of JSON each, and reports over another."""

    def __init__(self, python: str, program: str, environ: Mapping[str, str]) -> None:
        probe_reader, probe_writer = os.pipe()
        report_reader, report_writer = os.pipe()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (`end` closes it)
        self._probes, self._reports = os.fdopen(probe_writer, "wb", buffering=0), os.fdopen(report_reader, "rb")
        self._unread = b""
        try:
            self._process = subprocess.Popen(
                [python, "-P", "-m", program, str(probe_reader), str(report_writer)],
                env=dict(environ),
                pass_fds=[probe_reader, report_writer],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError:
            self._close()
            raise
        finally:
            os.close(probe_reader)
            os.close(report_writer)

    def ask(self, probe: Sequence[Any], limit_seconds: float) -> dict[str, Any]:
        """The report on a probe; TimeoutError where the child is silent for too long, EOFError where it died."""
        with contextlib.suppress(BrokenPipeError):  # the pipe of reports tells as well
            self._probes.write(json.dumps(list(probe)).encode() + b"\n")
        deadline = time.monotonic() + limit_seconds
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._reports], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError
            chunk = os.read(self._reports.fileno(), 65536)
            if not chunk:
                raise EOFError
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        report: dict[str, Any] = json.loads(line)
        return report

    def death(self) -> str:
        """How the child ended."""
        try:
            status = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            return "closed its report without ending"
        if status >= 0:
            return f"ended with status {status} in the middle of it"
        number = -status
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        meaning = _SIGNAL_MEANINGS.get(signal.Signals(number)) if number in set(signal.Signals) else None
        return f"killed by {name}" + (f" ({meaning})" if meaning else "")

    def output(self) -> str:
        """The end of what the child has printed so far."""
        self._output.seek(max(0, self._output.seek(0, os.SEEK_END) - 20000))
        return self._output.read().decode(errors="replace")

    def end(self) -> None:
        """Ends the child and all that it started."""
        with contextlib.suppress(ProcessLookupError):  # it and its group may have ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._close()

    def _close(self) -> None:
        for stream in (self._probes, self._reports, self._output):
            stream.close()


def _child_environ(machine: Machine) -> dict[str, str]:
    """The user's environment, but for settings that have checks of their own and would spoil all others."""
    environ = {name: value for name, value in machine.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    return {
        **environ,
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }
