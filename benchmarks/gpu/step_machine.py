"""Steps of the GPU suite about the machine: what it is, whether it computes correctly, and parity."""

from __future__ import annotations

from dataclasses import replace

from tfaccel.benchmarks.gpu.step import StepRun
from tfaccel.hardware.doctor import Examination
from tfaccel.hardware.doctor_installation import examine
from tfaccel.hardware.environment import describe_environment
from tfaccel.hardware.machine import Machine
from tfaccel.parity.case import ParityCase, ParityRow, Placement
from tfaccel.parity.run_cases import run_cases

_NUM_PARALLEL = 2  # processes, which share the GPU
PLACEMENTS = (Placement("one_device"), Placement("mirrored", 2))
_ANY = PLACEMENTS[0]
# Each kind of layer, optimizer, precision and last batch that a GPU has kernels of its own for.
PARITY_CASES = (
    ParityCase(_ANY, model="batch_norm", optimizer="sgd", xla=True, last_batch="short", weighting="sample_weights"),
    ParityCase(_ANY, model="attention", optimizer="adamw", clipping="global_clipnorm", weighting="masks", xla=True),
    ParityCase(_ANY, model="lstm", optimizer="adam", accumulation=4, last_batch="empty"),
    ParityCase(_ANY, model="dense", optimizer="adam", dtype_policy="mixed_bfloat16", xla=True, source="tf_data"),
    ParityCase(_ANY, model="dropout", optimizer="ema", dtype_policy="mixed_float16", clipping="clipnorm"),
    ParityCase(_ANY, model="embedding_rows", optimizer="adagrad", last_batch="short", source="py_dataset"),
)


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


def parity(run: StepRun) -> None:
    """Six training runs on one device, and on two logical devices of the same GPU, each compared with plain Keras."""
    cases = [replace(case, placement=placement) for placement in PLACEMENTS for case in PARITY_CASES]
    if run.is_rehearsal:
        cases = cases[:: len(PARITY_CASES)]
    rows: list[ParityRow] = []

    def keep(row: ParityRow) -> None:
        rows.append(row)
        run.progress(f"{'ok' if row.ok else 'FAILED'}: {row.case}")
        run.record("rows", [one.to_json() for one in rows])

    run_cases(cases, on_row=keep, num_parallel=1 if run.is_rehearsal else _NUM_PARALLEL, device_kind=run.kind)
    for row in rows:
        if not row.ok:
            run.note(f"{row.case}: differs by {row.max_abs_diff}, allowed {row.tolerance:.1e}: {row.note}")
    for placement in PLACEMENTS:
        found = [row for row in rows if row.strategy == str(placement)]
        text = f"cases of {len(found)} that differ"
        run.figure(f"parity, {placement}", text, [float(sum(not row.ok for row in found))], at_most=0.0)
