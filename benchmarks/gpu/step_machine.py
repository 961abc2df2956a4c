"""Steps of the GPU suite about the machine: what it is, whether it computes correctly, and parity."""

from __future__ import annotations

from typing import Any

from tfaccel.benchmarks.gpu.step import StepRun
from tfaccel.hardware.doctor import examine
from tfaccel.hardware.doctor_examination import Examination
from tfaccel.hardware.environment import describe_environment
from tfaccel.hardware.machine import Machine
from tfaccel.parity.axes import CHECK_NAMES, covering_set
from tfaccel.parity.case import ParityCase, ParityCheck, ParityRow, Placement
from tfaccel.parity.run_cases import run_cases

_NUM_PARALLEL = 4  # processes, which share the GPU
_REHEARSED_CASES = 2


def environment(run: StepRun) -> None:
    """What `tfaccel env` shows."""
    run.record("environment", describe_environment(Machine.here()))


def doctor(run: StepRun) -> None:
    """What `tfaccel doctor` shows."""
    checks = examine(Examination(Machine.here(), on_progress=run.progress))
    run.record("checks", [check.to_json() for check in checks])
    failed = [check for check in checks if check.status == "fail"]
    for check in failed:
        run.note(f"{check.name} failed: {check.detail}")
    run.figure("doctor", "checks that failed", [float(len(failed))], at_most=0.0)


def parity(run: StepRun, num_devices: int) -> None:
    """Runs a case for each value of each axis, on one device, or mirrored on two logical ones of the same device."""
    placement = Placement("mirrored", 2) if num_devices == 2 else Placement("one_device")
    cases: list[ParityCase | ParityCheck] = list(covering_set([placement], num_axes=1))
    if num_devices == 2:
        cases = [*(ParityCheck(placement, name) for name in CHECK_NAMES), *cases]
    if run.is_rehearsal:
        cases = cases[:_REHEARSED_CASES]
    rows: list[ParityRow] = []

    def keep(row: ParityRow) -> None:
        rows.append(row)
        run.progress(f"{'ok' if row.ok else 'FAILED'}: {row.case}")
        run.record("rows", [one.to_json() for one in rows])

    run_cases(cases, on_row=keep, num_parallel=1 if run.is_rehearsal else _NUM_PARALLEL, device_kind=run.kind)
    for row in rows:
        if not row.ok:
            run.note(f"{row.case}: differs by {row.max_abs_diff}, allowed {row.tolerance:.1e}: {row.note}")
    name = f"parity, {num_devices} device{'s' if num_devices > 1 else ''}"
    run.figure(name, f"cases of {len(cases)} that differ", [float(sum(not row.ok for row in rows))], at_most=0.0)
    run.record("largest_difference", max((_distance(row) for row in rows), default=None))


def _distance(row: ParityRow) -> Any:
    return float("inf") if row.max_abs_diff is None else row.max_abs_diff
