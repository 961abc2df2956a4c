"""Runs `cluster_training.py` on Ray, as the test that starts this program asks; prints events and the status as JSON.

    python ray_program.py local|cluster|lost_node FOLDER HOW [SECONDS]

"local" starts Ray here; "cluster" and "lost_node" start two nodes of one core each. The second node is lost after the
first epoch, and another one joins.
"""

import json
import sys
import time
from pathlib import Path

from tfaccel.launching.cluster_job import ClusterJob
from tfaccel.launching.ray_engine import RayOptions, run_on_ray

PROGRAM = Path(__file__).with_name("cluster_training.py")
NODE = {"num_cpus": 1, "object_store_memory": 100 * 2**20, "include_dashboard": False}


def run(folder, how, seconds, address=None, on_attempt=lambda: None):
    command = (sys.executable, str(PROGRAM), f"--run_dir={folder / how}", how, seconds)
    job = ClusterJob(command=command, num_workers=2, name="small", cores_per_worker=1, max_restarts=2)
    lines = []

    def show(text):
        print(text, file=sys.stderr, flush=True)
        if text.startswith("attempt 1"):
            on_attempt()

    status = run_on_ray(
        job,
        RayOptions(log_dir=folder / "logs", address=address, wait_seconds=120, silence_seconds=10),
        on_line=lambda index, line: lines.append((index, line)),
        on_event=show,
    )
    print(json.dumps({"status": status, "lines": lines}))


def lose_a_node(cluster, node, metrics):
    while not metrics.exists():
        time.sleep(0.1)
    cluster.remove_node(node, allow_graceful=False)
    cluster.add_node(**NODE)


def main(where, folder, how, seconds="0"):
    folder = Path(folder)
    if where == "local":
        run(folder, how, seconds)
        return
    from ray.cluster_utils import Cluster

    def lose():
        lose_a_node(cluster, node, folder / how / "metrics.jsonl")

    cluster = Cluster(initialize_head=True, head_node_args=NODE)
    try:
        node = cluster.add_node(**NODE)
        cluster.wait_for_nodes()
        run(folder, how, seconds, cluster.address, lose if where == "lost_node" else lambda: None)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
