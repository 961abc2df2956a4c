"""The child process that runs parity cases, all of one placement, and writes a row for each as a line of JSON.

    python -m tfaccel.parity.child CASES.json

As a worker of a cluster it is started once for each worker, and each writes its rows. It ends with status 1 after a
case that raised an error, since collectives that failed once fail ever after; the cases behind it then have no rows.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from tfaccel.parity.case import ParityCase, ParityCheck, ParityRow, Placement, case_from_json
from tfaccel.parity.run_case import run_case


def main(argv: Sequence[str]) -> int:
    """Runs the cases of the file named by the one argument; returns the exit status."""
    rows = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever else is printed must not get between the rows
    cases = [case_from_json(data) for data in json.loads(Path(argv[0]).read_text(encoding="utf-8"))]
    strategy = make_strategy(cases[0].placement)
    for case in cases:
        started = time.perf_counter()
        try:
            row = run_case(case, strategy)
        except Exception as error:
            traceback.print_exc()
            row = failed_row(case, f"{type(error).__name__}: {error}", time.perf_counter() - started)
        rows.write(json.dumps(row.to_json()) + "\n")
        rows.flush()
        if row.max_abs_diff is None:
            return 1
    return 0


def make_strategy(placement: Placement) -> tf.distribute.Strategy | None:
    """The strategy of a placement; splits the CPU into as many logical devices as it has replicas here."""
    if placement.strategy == "multi_worker":
        return tf.distribute.MultiWorkerMirroredStrategy()
    if placement.strategy == "none":
        return None
    if placement.strategy == "one_device":
        return tf.distribute.OneDeviceStrategy("CPU:0")
    cpu = tf.config.list_physical_devices("CPU")[0]
    split = [tf.config.LogicalDeviceConfiguration()] * placement.num_replicas
    tf.config.set_logical_device_configuration(cpu, split)
    return tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(placement.num_replicas)])


def failed_row(case: ParityCase | ParityCheck, note: str, seconds: float = 0.0) -> ParityRow:
    """The row of a case that gave nothing to compare."""
    return ParityRow(case.name, str(case.placement), None, 0.0, False, note=note, seconds=round(seconds, 3))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
