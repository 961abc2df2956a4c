"""A search of six trials, here or on a Ray cluster of two nodes, as the test that starts it asks; prints its trials.

    python ray_search.py local|ray|losses FOLDER

With "losses", after the first trial a process of a trial is killed, and after the second one the second node is lost.
"""

import json
import sys
import threading
import time
from pathlib import Path

import psutil
import search_cases

from tfaccel.benchmarks.ray_cluster import two_nodes
from tfaccel.tuning.search import search


def run(folder, on_row=lambda row: None, seen=dict, **engine):
    result = search(
        search_cases.workload,
        search_cases.slow_arguments,
        run_dir=folder / "run",
        max_trials=6,
        parallel=2,
        max_retries_per_trial=2,
        plan_fields={"dtype_policy": "float32"},
        on_row=on_row,
        **engine,
    )
    rows = [[row.trial_id, row.status, row.hyperparameters, row.score, row.cause] for row in result.rows]
    logs = sorted(file.name for file in (folder / "run" / "logs").iterdir())
    print(json.dumps({"rows": rows, "logs": logs, **seen()}))


def kill_a_trial():
    """Kills a process of a trial: a grandchild of an actor of this program's cluster."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        below = psutil.Process().children(recursive=True)
        trials = [process for process in below if process.name().startswith("worker-")]
        if trials:
            trials[0].kill()
            return 1
        time.sleep(0.05)
    return 0


def main(where, folder):
    folder = Path(folder)
    if where == "local":
        run(folder)
        return
    cluster, node = two_nodes()
    try:
        rows, killed = [], []

        def on_row(row):
            rows.append(row)
            if where == "losses" and len(rows) == 1:
                killed.append(kill_a_trial())
            if where == "losses" and len(rows) == 2:
                threading.Thread(target=cluster.remove_node, args=(node,), kwargs={"allow_graceful": False}).start()

        options = {"address": cluster.address, "wait_seconds": 200, "connect_seconds": 60}
        run(
            folder,
            on_row,
            lambda: {"killed": sum(killed), "nodes": len(cluster.list_all_nodes())},
            engine="ray",
            engine_options=options,
        )
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
