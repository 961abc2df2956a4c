"""`measure_ceilings`: how fast this machine multiplies matrices and copies memory, measured in a child process."""

from __future__ import annotations

import time
from collections.abc import Callable

from tfaccel.errors import PlanError
from tfaccel.measuring.candidate_servers import CandidateServers
from tfaccel.planning.machine_ceilings import MachineCeilings, today
from tfaccel.planning.plan import Plan

_PROGRAM = "tfaccel.measuring.ceilings_program"


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
    try:
        while (left := deadline - time.monotonic()) > 0:
            sender, message = server.next_message(left)
            if sender is not child:
                continue
            if message is None:
                how = f"{child.how_it_ended()}. {server.end_of_log(child)}"
                raise PlanError(f"The machine's limits could not be measured: the process {how}"[:500])
            if message["event"] == "failed":
                raise PlanError(f"The machine's limits could not be measured: {message['cause']}")
            if message["event"] == "measured":
                on_progress(f"matrix products in {message['what']}: {message['value'] / 1e9:,.0f} GFLOP/s")
                continue
            on_progress(f"memory: {message['bytes_per_second'] / 1e9:,.1f} GB/s")
            return MachineCeilings(
                device=plan.devices[0].partition(":")[0],
                matrix_flops_per_second=message["matrix_flops_per_second"],
                bytes_per_second=message["bytes_per_second"],
                measured=today(),
            )
        raise PlanError(f"The machine's limits could not be measured within {limit_seconds:g} seconds.")
    finally:
        if child.status is None:
            server.kill(child)
