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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from tfaccel.hardware.machine import Machine

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
    while len(results) < len(probes):
        if sum(result.has_hung for result in results) >= 2:
            left_out = ProbeResult(ok=False, cause="not tried, since two others hung", was_tried=False)
            return results + [left_out] * (len(probes) - len(results))
        results += _run_child(machine, probes[len(results) :], time_limit_seconds, on_start)
    return results


def _run_child(
    machine: Machine, probes: Sequence[Sequence[str]], limit_seconds: float, on_start: Callable[[Sequence[str]], None]
) -> list[ProbeResult]:
    """Results of as many probes as one child managed; the last of them is a failure if the child did not end well."""
    reader, writer = os.pipe()
    command = [machine.python, "-P", "-m", "tfaccel.hardware.doctor_probes", str(writer), json.dumps(list(probes))]
    with tempfile.TemporaryFile() as output, os.fdopen(reader, "rb") as pipe:
        try:
            child = subprocess.Popen(
                command,
                env=_child_environ(machine),
                pass_fds=[writer],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            return [ProbeResult(ok=False, cause=f"cannot start {machine.python}: {error.strerror}")] * len(probes)
        finally:
            os.close(writer)
        try:
            results: list[ProbeResult] = []
            on_start(probes[0])
            for report in _reports(pipe, limit_seconds):
                if report is None:
                    cause = f"no answer within {limit_seconds:g} seconds (ended it)"
                    return [*results, ProbeResult(ok=False, cause=cause, output=_tail(output), has_hung=True)]
                results.append(ProbeResult(**report, output="" if report["ok"] else _tail(output)))
                if len(results) < len(probes):
                    on_start(probes[len(results)])
            if len(results) < len(probes):
                results.append(ProbeResult(ok=False, cause=_death(child), output=_tail(output)))
            return results
        finally:
            _end(child)


def _child_environ(machine: Machine) -> dict[str, str]:
    """The user's environment, but for settings that have checks of their own and would spoil all others."""
    environ = {name: value for name, value in machine.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    return {
        **environ,
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }


def _reports(pipe: IO[bytes], limit_seconds: float) -> Iterator[dict[str, Any] | None]:
    """The child's reports until it closes the pipe; None once, and no more, when it falls silent for too long."""
    unread = b""
    deadline = time.monotonic() + limit_seconds
    while True:
        ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            yield None
            return
        chunk = os.read(pipe.fileno(), 65536)
        if not chunk:
            return
        *lines, unread = (unread + chunk).split(b"\n")
        for line in lines:
            yield json.loads(line)
            deadline = time.monotonic() + limit_seconds


def _death(child: subprocess.Popen[bytes]) -> str:
    try:
        status = child.wait(timeout=10)
    except subprocess.TimeoutExpired:
        return "closed its report without ending"
    if status >= 0:
        return f"ended with status {status} in the middle of it"
    number = -status
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    meaning = _SIGNAL_MEANINGS.get(signal.Signals(number)) if number in set(signal.Signals) else None
    return f"killed by {name}" + (f" ({meaning})" if meaning else "")


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ends the child and all that it started."""
    with contextlib.suppress(ProcessLookupError):  # it and its group may have ended
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _tail(output: IO[bytes]) -> str:
    output.seek(max(0, output.seek(0, os.SEEK_END) - 20000))
    return output.read().decode(errors="replace")
