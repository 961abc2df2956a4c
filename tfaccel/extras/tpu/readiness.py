"""`tfaccel doctor --tpu_ready`: can a workload's train step run on a TPU? Needs no TPU."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfaccel.extras.tpu.compile_ahead import check_ahead_of_time
from tfaccel.extras.tpu.generations import TpuTarget
from tfaccel.extras.tpu.lint_checks import batch_checks, lint_checks, replica_batch_check
from tfaccel.hardware.doctor import Check, Examination, explain
from tfaccel.hardware.doctor_child import ProbeProcess, ProbeResult

STEP_PROGRAM = "tfaccel.extras.tpu.step_probes"


@dataclass(frozen=True, kw_only=True)
class StepSource:
    """The source of a train step, from which a child process can rebuild it.

    Args:
        kind: "recipe" or "workload".
        name: the recipe's name, or the workload's import path.
        folder: an additional folder to import modules from.
        global_batch_size: rows of a batch over all cores.
        num_train_examples: examples in one epoch; None if unknown.
    """

    kind: str
    name: str
    folder: str
    global_batch_size: int
    num_train_examples: int | None = None


def check_tpu_readiness(examination: Examination, source: StepSource, target: TpuTarget) -> Iterator[Check]:
    """Checks a train step for TPUs; any "fail" means that it cannot run there.

    Args:
        examination: the machine, the time limit of a probe and the progress callback.
        source: the workload.
        target: the TPUs.

    Yields:
        Checks of the step's graph and XLA program; then, if none failed and the extra `tpu-aot` is installed, checks
        with the TPU compiler.
    """
    replica_batch = replica_batch_check(source.global_batch_size, target.num_cores)
    yield replica_batch
    replica_batch_size = max(1, source.global_batch_size // target.num_cores)
    child_source = [source.kind, source.name, source.folder, replica_batch_size]
    with ProbeProcess(examination.machine, program=STEP_PROGRAM) as process:

        def probe(what: str, name: str, *arguments: Any) -> ProbeResult:
            examination.on_progress(what)
            limit = examination.time_limit_seconds
            return process.run([name, *arguments, *child_source], time_limit_seconds=limit)

        checks = [replica_batch]
        for check in step_checks(source.name, probe):
            checks.append(check)
            yield check
        if any(check.status == "fail" for check in checks):
            detail = "not run, since a check above failed"
            yield Check(name="TPU compiler", status="skip", detail=detail)
            return

        def write_program(rows: int, path: Path) -> ProbeResult:
            return probe(f"the XLA program of {source.name}, {rows} rows", "program", rows, str(path))

        yield from check_ahead_of_time(
            examination,
            write_program,
            target=target,
            replica_batch_size=replica_batch_size,
            num_train_examples=source.num_train_examples,
        )


def step_checks(name: str, probe: Callable[..., ProbeResult]) -> Iterator[Check]:
    """The checks of model, batches and graph.

    Args:
        name: the workload's name, for progress messages.
        probe: `probe(message, name)` runs a probe of `step_probes` on the workload.
    """
    batches = probe(f"the model and batches of {name}", "batches")
    if not batches.ok:
        remedy = "train it on the CPU first: tfaccel train --devices=CPU:0 --dtype_policy=mixed_bfloat16"
        yield Check(name="model and batches", status="fail", detail=explain(batches), remedy=remedy)
        return
    detail = f"{batches.data['num_parameters']:,} trainable parameters, in mixed_bfloat16"
    yield Check(name="model and batches", status="ok", detail=detail)
    yield from batch_checks(batches.data)
    if batches.data["composite"] or batches.data["strings"]:
        return  # such a step cannot be traced
    step = probe(f"the train step of {name}", "step")
    if step.ok:
        yield from lint_checks(step.data)
        return
    remedy = "use only TensorFlow operations in the step: no .numpy(), no Python numbers from tensors"
    yield Check(name="train step", status="fail", detail=f"cannot trace it: {explain(step)}", remedy=remedy)
