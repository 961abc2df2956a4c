"""A program that trains nothing: for each batch size, the variable `OUTCOMES` says how it ends."""

import json
import os
import signal
import time

MIB = 2**20


def main(connection, arguments):
    """Answers as `candidate_program`, or ends as it is told; "takes 2": its steps take twice as long."""
    size = connection.recv()["plan"]["global_batch_size"]
    outcome = json.loads(os.environ["OUTCOMES"]).get(str(size), "trains")
    if outcome == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if outcome == "hangs":
        time.sleep(60)
    if outcome.startswith("says "):
        connection.send({"event": "failed", "cause": outcome.removeprefix("says ")})
        return 1
    connection.send({"event": "built", "seconds": 0.1, "depends_on_micro_batches": ""})
    num_windows = 0
    while (num_steps := connection.recv()) is not None:
        num_windows += 1
        loss = float("nan") if outcome == "diverges" and num_windows > 2 else 1.0
        factor = float(outcome.removeprefix("takes ")) if outcome.startswith("takes ") else 1.0
        seconds = 0.1 * num_steps * factor
        connection.send(
            {"event": "window", "seconds": seconds, "num_steps": num_steps, "loss": loss, "peak_bytes": size * MIB}
        )
    return 0
