"""Runs `cluster_training.py` on Ray, as the test that starts this program asks; prints events and the status as JSON.

    python ray_program.py local|lost_node|fewer FOLDER HOW [SECONDS]

"local" starts Ray here; the others start two nodes of one core each. The second node is lost after the first epoch.
With "lost_node" another one joins; with "fewer", training goes on with one worker.
"""

import json
import sys
import time
from pathlib import Path

from tfaccel.benchmarks.ray_cluster import NODE, two_nodes
from tfaccel.extras.cluster.cluster_job import ClusterJob, RayOptions
from tfaccel.extras.cluster.ray_engine import run_on_ray

PROGRAM = Path(__file__).with_name("cluster_training.py")


def run(folder, how, seconds, *, on_attempt=lambda: None, **options):
    command = (sys.executable, str(PROGRAM), f"--run_dir={folder / how}", how, seconds)
    job = ClusterJob(command=command, num_workers=2, name="small", cores_per_worker=1, max_restarts=2)
    lines = []

    def show(text):
        print(text, file=sys.stderr, flush=True)
        if text.startswith("attempt 1"):
            on_attempt()

    status = run_on_ray(
        job,
        RayOptions(log_dir=folder / "logs", wait_seconds=800, silence_seconds=10, **options),
        on_line=lambda index, line: lines.append((index, line)),
        on_event=show,
    )
    print(json.dumps({"status": status, "lines": lines, "reported": reported(folder / "logs" / "ray")}))


def reported(storage):
    """What Ray keeps of the run: the newest metrics, and of each checkpoint the metrics and the files."""
    from ray.train import Result

    [place] = storage.glob("small-*")
    found = Result.from_path(str(place))
    kept = []
    for checkpoint, metrics in found.best_checkpoints or []:
        with checkpoint.as_directory() as folder:
            files = {str(file.relative_to(folder)): str(file) for file in Path(folder).rglob("*") if file.is_file()}
        kept.append({"metrics": metrics, "files": files})
    return {"metrics": found.metrics, "kept": kept}


def lose_a_node(cluster, node, metrics, *, is_replaced):
    while not metrics.exists():
        time.sleep(0.1)
    cluster.remove_node(node, allow_graceful=False)
    if is_replaced:
        cluster.add_node(**NODE)


def main(where, folder, how, seconds="0"):
    folder = Path(folder)
    if where == "local":
        run(folder, how, seconds)
        return
    cluster, node = two_nodes()

    def lose():
        lose_a_node(cluster, node, folder / how / "metrics.jsonl", is_replaced=where == "lost_node")

    try:
        least = 1 if where == "fewer" else None
        run(folder, how, seconds, address=cluster.address, min_workers=least, connect_seconds=60, on_attempt=lose)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
