"""A worker process that times all-reduces of several sizes, with the collectives that training uses.

It is given a JSON object with "sizes" (numbers of float32 values) and "rounds". The first worker prints a JSON line:
for each size, the seconds of one all-reduce in each round.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

CHAIN = 8  # all-reduces in one graph call, each waiting for the one before


def main(arguments: list[str]) -> int:
    """Runs as one worker of the cluster in `TF_CONFIG`; returns the exit status."""
    task = json.loads(arguments[0])
    keep_to_own_cores()
    import tensorflow as tf

    options = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    seconds = _timed(tf, strategy, task["sizes"], task["rounds"])
    if strategy.cluster_resolver.task_id == 0:
        sys.stdout.write(json.dumps({"seconds": seconds, "num_workers": strategy.num_replicas_in_sync}) + "\n")
    return 0


def keep_to_own_cores() -> None:
    """Divides the usable cores among the local workers; with fewer cores than workers, they share all of them."""
    config = json.loads(os.environ["TF_CONFIG"])
    number, index = len(config["cluster"]["worker"]), config["task"]["index"]
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    own = cores[index * len(cores) // number : (index + 1) * len(cores) // number]
    if own:
        os.sched_setaffinity(0, own)


def _timed(tf: Any, strategy: Any, sizes: list[int], rounds: int) -> list[list[float]]:
    def chained(value: Any) -> Any:
        context = tf.distribute.get_replica_context()
        value = tf.identity(value)  # on the device of the replica
        for _ in range(CHAIN):
            value = context.all_reduce(tf.distribute.ReduceOp.SUM, value) * 0.5
        return value

    run = tf.function(lambda value: strategy.run(chained, args=(value,)), autograph=False)
    values = [tf.ones([size]) for size in sizes]
    for value in values:
        run(value)
    seconds: list[list[float]] = [[] for _ in sizes]
    for _ in range(rounds):
        for found, value in zip(seconds, values, strict=True):
            started = time.perf_counter()
            result = run(value)
            strategy.experimental_local_results(result)[0].numpy()
            found.append((time.perf_counter() - started) / CHAIN)
    return seconds


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
