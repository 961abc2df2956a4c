"""The child process that runs parity cases and writes one JSON line per case.

`main` takes a file of cases, a folder, and "CPU" or "GPU". References found in the folder are not trained again; new
ones are saved there. GPUs multiply float32 matrices in full precision here; if there are fewer than replicas, the first
one is divided.

In a cluster, one process is started per worker, and each writes its rows. The process exits with status 1 after a case
that raised an error, since collectives keep failing once they have failed; the remaining cases then have no rows. It
also exits when its standard input is closed, that is, with the process that started it.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import tensorflow as tf

from tfaccel.parity.case import ParityCase, ParityCheck, ParityRow, Placement, case_from_json
from tfaccel.parity.run_case import run_case
from tfaccel.parity.shared_references import SharedReferences
from tfaccel.processes.child import end_with_parent
from tfaccel.processes.quiet_start import keep_loaded_objects
from tfaccel.training.runtime import split_cpu

GPU_PART_MEBIBYTES = 3072  # of each logical GPU: tiny models, but TensorFlow's libraries take memory too


def main(argv: Sequence[str]) -> int:
    """Runs the cases in the file given as first argument; returns the exit status."""
    rows = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # keeps other output out of the rows
    cases = [case_from_json(data) for data in json.loads(Path(argv[0]).read_text(encoding="utf-8"))]
    end_with_parent()
    keep_loaded_objects()
    kind, placements = argv[2], {case.placement for case in cases}
    num_devices = max((p.num_replicas for p in placements if p.strategy == "mirrored"), default=1)
    if kind == "GPU":
        split_gpu(num_devices)
        tf.config.experimental.enable_tensor_float_32_execution(False)
    else:
        split_cpu(num_devices)
    strategies = {placement: make_strategy(placement, kind) for placement in placements}
    references = SharedReferences.of_cluster(Path(argv[1]))
    for position, case in enumerate(cases):
        started = time.perf_counter()
        try:
            get_reference = partial(references.get, position=position)
            row = run_case(case, strategies[case.placement], get_reference=get_reference)
        except Exception as error:
            traceback.print_exc()
            row = failed_row(case, f"{type(error).__name__}: {error}", time.perf_counter() - started)
        rows.write(json.dumps(row.to_json()) + "\n")
        rows.flush()
        if row.max_abs_diff is None:
            return 1
    return 0


def split_gpu(num_devices: int) -> None:
    """Divides the first GPU into this number of logical ones, before TensorFlow starts, if there are fewer GPUs.

    TensorFlow then sums over them on one device, since NCCL cannot.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        raise RuntimeError("TensorFlow sees no GPU. `tfaccel doctor` says why.")
    if num_devices > len(gpus):
        part = tf.config.LogicalDeviceConfiguration(memory_limit=GPU_PART_MEBIBYTES)
        tf.config.set_logical_device_configuration(gpus[0], [part] * num_devices)
    else:
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)


def make_strategy(placement: Placement, kind: str = "CPU") -> tf.distribute.Strategy | None:
    """The strategy of a placement on devices of a kind; None for no strategy."""
    if placement.strategy == "multi_worker":
        return tf.distribute.MultiWorkerMirroredStrategy()
    if placement.strategy == "mirrored":
        return tf.distribute.MirroredStrategy([f"{kind}:{index}" for index in range(placement.num_replicas)])
    return tf.distribute.OneDeviceStrategy(f"{kind}:0") if placement.strategy == "one_device" else None


def failed_row(case: ParityCase | ParityCheck, note: str, seconds: float = 0.0) -> ParityRow:
    """The row of a case without values to compare."""
    return ParityRow(case.name, str(case.placement), None, 0.0, False, note=note, seconds=round(seconds, 3))
