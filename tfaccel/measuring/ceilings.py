"""`measure_ceilings`: how fast this machine multiplies matrices and copies memory, measured in a child process."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfaccel.errors import PlanError
from tfaccel.hardware.detect import detect_hardware
from tfaccel.hardware.hardware import Hardware
from tfaccel.measuring.candidate_child import CandidateServers
from tfaccel.planning.candidates import default_plan
from tfaccel.planning.machine_ceilings import MachineCeilings, cached_ceilings, keep_ceilings, today
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload

_DISTURBED = (
    "while {} was measured, this process had only {:.0f} % of the CPU: the limit may be too low. It is measured again "
    "next time; run nothing else then"
)
_PROGRAM = "tfaccel.measuring.ceilings_program"


def ceilings_of_plan(
    fixed: Mapping[str, Any],
    *,
    measure_again: bool = False,
    limit_seconds: float = 300.0,
    on_progress: Callable[[str], None] = lambda text: None,
) -> MachineCeilings:
    """The limits of this machine, measured if they are not known, and kept for later runs.

    Args:
        fixed: plan fields that matter: devices, oneDNN, the memory allocator. The rules choose what is left out.
        measure_again: measure even if they are known.
        limit_seconds: time limit.
        on_progress: called with a line for each result.

    Raises:
        PlanError: if the plan cannot run here, or the measurement fails.
    """
    hardware = detect_hardware()
    nothing = Workload("ceilings", object, dict, lambda *args, **kwargs: None, global_batch_size=1)
    plan = default_plan(hardware, nothing, **fixed)
    folder = Path(tempfile.mkdtemp(prefix="tfaccel-"))
    servers = CandidateServers(folder)
    try:
        return known_or_measured(
            servers, hardware, plan, again=measure_again, limit_seconds=limit_seconds, on_progress=on_progress
        )
    finally:
        servers.close()
        shutil.rmtree(folder, ignore_errors=True)


def known_or_measured(
    servers: CandidateServers,
    hardware: Hardware,
    plan: Plan,
    *,
    again: bool,
    limit_seconds: float,
    on_progress: Callable[[str], None],
) -> MachineCeilings:
    """The kept ceilings of a plan's device; measured and kept if there are none, or with `again`.

    Those that were disturbed are measured again, and do not replace others. Ceilings are of all usable cores, whatever
    the plan's threads: logical CPUs of one thread each share these cores.
    """
    known = cached_ceilings(hardware, plan)
    if known is not None and not known.disturbed and not again:
        return known
    on_progress("measuring the machine's limits, about half a minute; run nothing else meanwhile")
    all_cores = replace(plan, intra_op_threads=hardware.num_usable_cores, inter_op_threads=None)
    found = measure_ceilings(servers, all_cores, limit_seconds=limit_seconds, on_progress=on_progress)
    if known is None or known.disturbed or not found.disturbed:
        keep_ceilings(hardware, plan, found)
    else:
        on_progress("the limits that were measured before stay in use")
    return found


def measure_ceilings(
    servers: CandidateServers,
    plan: Plan,
    *,
    limit_seconds: float,
    on_progress: Callable[[str], None] = lambda text: None,
) -> MachineCeilings:
    """Measures the ceilings of the first device of a plan, with the plan's threads and environment.

    Args:
        servers: they start the process.
        plan: its device, threads and environment are used.
        limit_seconds: time limit.
        on_progress: called with a line for each result.

    Raises:
        PlanError: if the process fails, dies or takes too long.
    """
    server = servers.of(plan)
    child = server.start("ceilings", _PROGRAM, [], {})
    child.send(plan.to_json())
    deadline = time.monotonic() + limit_seconds
    disturbed: list[str] = []
    try:
        while True:
            try:
                message = server.get_message(child, deadline - time.monotonic())
            except TimeoutError:
                text = f"The machine's limits could not be measured within {limit_seconds:g} seconds."
                raise PlanError(text) from None
            if message is None:
                how = f"{child.how_it_ended()}. {server.end_of_log(child)}"
                raise PlanError(f"The machine's limits could not be measured: the process {how}"[:500])
            if message["event"] == "failed":
                raise PlanError(f"The machine's limits could not be measured: {message['cause']}")
            if message["event"] == "measured":
                on_progress(f"matrix products in {message['what']}: {message['value'] / 1e9:,.0f} GFLOP/s")
                continue
            if message["event"] == "disturbed":
                disturbed.append(message["what"])
                on_progress(_DISTURBED.format(message["what"], 100 * message["value"]))
                continue
            on_progress(f"memory: {message['bytes_per_second'] / 1e9:,.1f} GB/s")
            return MachineCeilings(
                device=plan.devices[0].partition(":")[0],
                matrix_flops_per_second=message["matrix_flops_per_second"],
                bytes_per_second=message["bytes_per_second"],
                measured=today(),
                disturbed=tuple(disturbed),
            )
    finally:
        if child.status is None:
            server.kill(child)
