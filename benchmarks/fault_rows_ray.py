"""The loss of a node of a Ray cluster, in the middle of training."""

from __future__ import annotations

import json
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tfaccel.benchmarks.fault_launch import PROGRAM, are_whole
from tfaccel.benchmarks.fault_row import FaultRow, Lab, NotPossibleHere, Trial
from tfaccel.benchmarks.fault_rows_workers import OPTIONS
from tfaccel.benchmarks.ray_cluster import NODE, two_nodes
from tfaccel.extras.cluster.cluster_job import ClusterJob, RayOptions
from tfaccel.extras.cluster.ray_engine import run_on_ray

_LIMIT_SECONDS = 600.0
_POLL_SECONDS = 0.1


def _lost_node(lab: Lab, folder: Path) -> Trial:
    """Two nodes of one core each; when an epoch is over, one is removed and another one joins."""
    if find_spec("ray") is None:
        raise NotPossibleHere("it needs Ray: pip install 'tfaccel[ray]'")
    usual = lab.usual(2, OPTIONS)
    try:
        cluster, node = two_nodes()
    except Exception as error:  # whatever Ray raises when a node is not up in time
        raise NotPossibleHere(f"Ray's nodes do not start here: {error}") from error
    events: list[str] = []

    def on_event(text: str) -> None:
        events.append(text)
        if text.startswith("attempt 1"):  # in this thread: Ray sets signal handlers for a new node
            _replace(cluster, node, when=folder / "run" / "metrics.jsonl")

    command = (sys.executable, "-m", PROGRAM, str(folder / "run"), json.dumps(OPTIONS))
    job = ClusterJob(command=command, num_workers=2, name="faults", cores_per_worker=1, max_restarts=2)
    lines: list[str] = []
    try:
        status = run_on_ray(
            job,
            RayOptions(log_dir=folder / "logs", address=cluster.address, wait_seconds=_LIMIT_SECONDS),
            on_line=lambda index, line: lines.append(line),
            on_event=on_event,
        )
    finally:
        cluster.shutdown()
    digests = {line.split()[1] for line in lines if line.startswith("digest ")}
    right = (status, digests) == (0, {usual.digest}) and "once False" not in lines and len(_attempts(events)) > 1
    right = right and are_whole(folder / "run" / "checkpoints")
    said = [text for text in events if text.startswith(("Worker ", "Ray ", "attempt "))]
    return Trial(right, " ".join(said) if right else f"status {status}: {said} {lines[-12:]}")


def _replace(cluster: Any, node: Any, *, when: Path) -> None:
    """Removes a node as soon as a file exists, and adds another one."""
    ends_at = time.monotonic() + _LIMIT_SECONDS
    while not when.exists() and time.monotonic() < ends_at:
        time.sleep(_POLL_SECONDS)
    cluster.remove_node(node, allow_graceful=False)
    cluster.add_node(**NODE)


def _attempts(events: list[str]) -> list[str]:
    return [text for text in events if text.startswith("attempt ")]


ROWS = {
    "lost_ray_node": FaultRow(
        "a node of a Ray cluster is lost, another one joins",
        "Ray starts all workers again; ends bit-equal to 2 local workers",
        _lost_node,
        num_trials=1,
    )
}
