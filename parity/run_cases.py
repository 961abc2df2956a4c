"""Runs parity cases in child processes, one placement in each, and collects their rows."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tfaccel.hardware.cpu import num_usable_cores
from tfaccel.hardware.machine import Machine
from tfaccel.parity.case import ParityCase, ParityCheck, ParityRow, Placement
from tfaccel.processes.local_cluster import WorkerError, cluster_environments, run_workers

# Tiny models: more threads would only compete with each other.
_ENVIRONMENT: dict[str, str | None] = {
    "KERAS_BACKEND": "tensorflow",
    "TF_CONFIG": None,
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_NUM_INTRAOP_THREADS": "1",
}
_WITHOUT_GPUS = {"CUDA_VISIBLE_DEVICES": "-1"}

_CHILD = """
import sys
from tfaccel.processes.quiet_start import collect_less_often

collect_less_often()
from tfaccel.parity.child import main

sys.exit(main(sys.argv[1:]))
"""

START_LIMIT_SECONDS = 120.0
CASE_LIMIT_SECONDS = 60.0
MIN_CASES = 6  # a process takes about as long to start as a few cases
MAX_CASES = 50  # of a process: each leaves some 50 MB of compiled programs, which only the end of a process frees

OnRow = Callable[[ParityRow], None]
Cases = Sequence[ParityCase | ParityCheck]


def run_cases(
    cases: Cases,
    *,
    on_row: OnRow = lambda row: None,
    num_parallel: int | None = None,
    interpreter_options: Sequence[str] = (),
    reference_dir: str | os.PathLike[str] | None = None,
    device_kind: str = "CPU",
) -> list[ParityRow]:
    """Runs each case under its strategy, compared with plain Keras on one device.

    Args:
        cases: the cases to run.
        on_row: called from a thread with each row as soon as it is available.
        num_parallel: child processes, or clusters, that run in parallel; by default one per core, at least 2.
        interpreter_options: Python options of the children, such as warning filters.
        reference_dir: a folder that caches references for later runs. They are retrained after a change of this
            package, of Keras, TensorFlow or NumPy, or of the processor. None disables the cache.
        device_kind: "CPU" or "GPU": where models and references are trained. Of fewer GPUs than replicas, the first one
            is divided into logical GPUs. `reference_dir` is for CPUs only: nothing is cached of GPUs.

    Returns:
        One row per case, in the order of the cases.
    """
    num_parallel = num_parallel or max(2, num_usable_cores(Machine.here()))
    cancelled = threading.Event()

    def run(share: Cases) -> dict[ParityCase | ParityCheck, ParityRow]:
        child = partial(
            _run_child,
            interpreter_options=interpreter_options,
            cancelled=cancelled,
            reference_dir=reference_dir,
            device_kind=device_kind,
        )
        return dict(zip(share, _run_share(share, on_row, child, cancelled), strict=False))

    rows: dict[ParityCase | ParityCheck, ParityRow] = {}
    with ThreadPoolExecutor(num_parallel, thread_name_prefix="parity") as pool:
        try:
            for found in pool.map(run, process_shares(cases, num_parallel)):
                rows |= found
        except BaseException:  # such as an interrupt: the threads end when their processes do
            cancelled.set()
            raise
    return [rows[case] for case in cases]


def process_shares(cases: Cases, num_parallel: int) -> list[Cases]:
    """Splits the cases into groups that run one after another in the same processes.

    Cases that need several processes share a group with those of the same placement; all others share one group, whose
    process has as many logical devices as the largest placement. If there are more cores than groups, the groups are
    split further, as are those of more than `MAX_CASES`.
    """
    groups: dict[Placement, list[ParityCase | ParityCheck]] = {}
    for case in cases:
        in_one_process = case.placement.strategy != "multi_worker"
        groups.setdefault(Placement("none") if in_one_process else case.placement, []).append(case)
    num_parts = max(1, num_parallel // max(1, len(groups)))
    shares: list[Cases] = []
    for _, group in sorted(groups.items()):
        length = min(max(MIN_CASES, -(-len(group) // num_parts)), MAX_CASES)
        shares += [group[start : start + length] for start in range(0, len(group), length)]
    return shares


def _run_share(
    cases: Cases, on_row: OnRow, run_child: Callable[[Cases, _Rows], str], cancelled: threading.Event
) -> list[ParityRow]:
    """The rows of cases that share a process. After a case that crashed it, the rest run in a new process."""
    rows: list[ParityRow] = []
    while len(rows) < len(cases) and not cancelled.is_set():
        left = cases[len(rows) :]
        collector = _Rows(_environments(cases[0].placement), on_row)
        problem = run_child(left, collector)
        rows += collector.rows
        if len(rows) < len(cases) and not collector.has_failed:
            broken = cases[len(rows)]
            row = ParityRow(broken.name, str(broken.placement), None, 0.0, False, note=problem)
            on_row(row)
            rows.append(row)
    return rows


def _environments(placement: Placement) -> list[Mapping[str, str | None]]:
    """The environment variables of each process that a placement needs."""
    own = cluster_environments(placement.num_replicas) if placement.strategy == "multi_worker" else [{}]
    return [{**_ENVIRONMENT, **environment} for environment in own]


class _Rows:
    """The rows that the workers of one run have written so far."""

    def __init__(self, environments: list[Mapping[str, str | None]], on_row: OnRow) -> None:
        self.environments = environments
        self.rows: list[ParityRow] = []
        self._on_row = on_row
        self._of_workers: list[list[ParityRow]] = [[] for _ in environments]
        self._lock = threading.Lock()

    @property
    def has_failed(self) -> bool:
        """Whether the last case has no values to compare."""
        return bool(self.rows) and self.rows[-1].max_abs_diff is None

    def add(self, worker: int, line: str) -> None:
        """Adds a worker's line. A case is done when all workers have finished it, or when it failed on one."""
        row = ParityRow.from_json(json.loads(line))
        with self._lock:
            self._of_workers[worker].append(row)
            done = len(self.rows)
            complete = [rows[done] for rows in self._of_workers if len(rows) > done]
            if self.has_failed or not complete:
                return
            worst = max(complete, key=_distance)
            if len(complete) == len(self._of_workers) or worst.max_abs_diff is None:
                self.rows.append(worst)
                self._on_row(worst)


def _distance(row: ParityRow) -> float:
    return float("inf") if row.max_abs_diff is None else row.max_abs_diff


def _run_child(
    cases: Cases,
    collector: _Rows,
    *,
    interpreter_options: Sequence[str],
    cancelled: threading.Event,
    reference_dir: str | os.PathLike[str] | None,
    device_kind: str,
) -> str:
    """Runs one process, or one cluster; returns why it stopped early."""
    with tempfile.TemporaryDirectory(prefix="tfaccel-parity-") as folder:
        path = Path(folder) / "cases.json"
        path.write_text(json.dumps([case.to_json() for case in cases]), encoding="utf-8")
        hidden = _WITHOUT_GPUS if device_kind == "CPU" else {}
        try:
            run_workers(
                [
                    sys.executable,
                    *interpreter_options,
                    "-c",
                    _CHILD,
                    str(path),
                    str(folder if device_kind == "GPU" else reference_dir or folder),
                    device_kind,
                ],
                environments=[{**environment, **hidden} for environment in collector.environments],
                time_limit_seconds=START_LIMIT_SECONDS + CASE_LIMIT_SECONDS * len(cases),
                on_line=collector.add,
                cancelled=cancelled,
            )
        except WorkerError as error:
            return str(error)
    return "The process ended without a row for this case."
