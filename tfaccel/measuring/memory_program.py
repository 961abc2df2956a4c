"""The process that estimates memory: it traces the training step, and sends the estimate to its parent."""

from __future__ import annotations

import traceback
from multiprocessing.connection import Connection

from tfaccel.measuring.candidate_program import get_cause
from tfaccel.measuring.workload_task import load_task
from tfaccel.planning.plan import Plan
from tfaccel.planning.reference import Origin, Reference


def main(connection: Connection, arguments: list[str]) -> int:
    """Estimates once; returns the exit status."""
    task = connection.recv()
    try:
        Origin(**task["origin"]).prepare()
        workload = load_task(Reference(**task["workload"]), task["options"])
        from tfaccel.measuring.step_estimate import estimate_here

        estimate = estimate_here(workload, Plan.from_json(task["plan"]), **task["estimate"])
    except Exception as error:
        traceback.print_exc()
        connection.send({"event": "failed", "cause": get_cause(error), "kind": type(error).__name__})
        return 1
    connection.send({"event": "estimated", "estimate": estimate.to_json()})
    return 0
