"""`run_gpu_suite`: runs the steps one after the other, each in a process of its own, and collects their results."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tfaccel.benchmarks.gpu.step import Step
from tfaccel.benchmarks.gpu.step_result import StepResult
from tfaccel.benchmarks.gpu.steps import STEPS
from tfaccel.benchmarks.report import Report
from tfaccel.errors import TfaccelError
from tfaccel.hardware.detect import detect_hardware
from tfaccel.processes.child import Child, how_it_ended, last_words
from tfaccel.training.run.result import installed_versions

_PROGRAM = "tfaccel.benchmarks.gpu.step_program"
_POLL_SECONDS = 0.1
_MIN_STEP_SECONDS = 5.0  # with less left, no further step begins
REHEARSAL = "rehearsal"


@dataclass(frozen=True, kw_only=True)
class GpuOptions:
    """How to run the suite.

    Attributes:
        out: the folder of the results, which exists. Those of each kind of card are in a folder of its own in it.
        is_rehearsal: run on two logical CPUs, with tiny models.
        again: run steps that have a result as well.
        time_limit_seconds: for all steps together; None for no limit.
        progress: called with a line before each step.
    """

    out: Path
    is_rehearsal: bool = False
    again: bool = False
    time_limit_seconds: float | None = None
    progress: Callable[[str], None] = lambda text: None

    @property
    def folder(self) -> Path:
        """The folder of the results of this machine's cards, such as `OUT/2x_NVIDIA_H100_80GB_HBM3`."""
        models = [] if self.is_rehearsal else [gpu.model or "unknown" for gpu in detect_hardware().gpus]
        kinds = [f"{f'{models.count(one)}x_' if models.count(one) > 1 else ''}{one}" for one in dict.fromkeys(models)]
        return self.out / (re.sub(r"\W+", "_", "_".join(kinds)) if kinds else REHEARSAL)


def run_gpu_suite(steps: Sequence[Step], options: GpuOptions) -> list[StepResult]:
    """Runs the steps that have no result yet, in this order.

    A step that crashes, hangs or runs out of memory is a result with its cause, and the next one goes on.

    Args:
        steps: the steps.
        options: how to run them.

    A step that is expected to take longer than is left is passed over.

    Returns:
        The results in the folder, also those of other steps, in the suite's order. A step for which no time was left
        has none.

    Raises:
        TfaccelError: if there is no GPU and it is no rehearsal, or a file in the folder is not a result.
    """
    machine = get_machine(options)
    found = {step.name: _known(step, options, machine) for step in (*STEPS, *steps)}
    deadline = None if options.time_limit_seconds is None else time.monotonic() + options.time_limit_seconds
    for number, step in enumerate(steps, start=1):
        known = found[step.name]
        if known is not None and known.is_final and not options.again:
            continue
        left = step.limit_seconds if deadline is None else deadline - time.monotonic()
        expected = expected_seconds(step, options)
        if left < min(step.limit_seconds, max(_MIN_STEP_SECONDS, expected)):
            continue
        remaining = "" if deadline is None else f", of {left:.0f} s left"
        options.progress(f"{number} of {len(steps)}: {step.name}: {step.about} (about {expected:.0f} s{remaining})")
        empty = StepResult(step=step.name, machine=machine, is_rehearsal=options.is_rehearsal)
        found[step.name] = _run(step, empty, options, min(left, step.limit_seconds))
    return [result for result in found.values() if result is not None]


def expected_seconds(step: Step, options: GpuOptions) -> float:
    """How long a step took when it last ran to its end, here or on another card; else what its author expects."""
    kind = REHEARSAL if options.is_rehearsal else "*"
    took = [json.loads(path.read_text()) for path in options.out.glob(f"{kind}/{step.name}.json")]
    ended = [
        one["seconds"] for one in took if one.get("status") == "done" and one["is_rehearsal"] == options.is_rehearsal
    ]
    return max(ended) if ended else step.expected_seconds


def get_machine(options: GpuOptions) -> dict[str, Any]:
    """What decides whether results belong together: the processor, the GPUs, versions.

    Raises:
        TfaccelError: if there is no GPU, and it is no rehearsal.
    """
    hardware = detect_hardware()
    gpus = [] if options.is_rehearsal else [gpu.model or "unknown model" for gpu in hardware.gpus]
    if not gpus and not options.is_rehearsal:
        raise TfaccelError(
            "This machine has no GPU that TensorFlow could use. `tfaccel doctor` says why. To run every step on two "
            "logical CPUs with tiny models: --rehearse"
        )
    return {"cpu_model": hardware.cpu_model, "gpus": gpus, "versions": installed_versions()}


def make_report(steps: Sequence[Step], results: Sequence[StepResult], options: GpuOptions) -> Report:
    """The report of all results, with one warning for each step that failed, was cut short or did not run."""
    by_name = {result.step: result for result in results}
    notes = [f"{step.name}: did not run: no time was left" for step in steps if step.name not in by_name]
    for result in results:
        notes += [f"{result.step}: {result.status}: {result.cause}"] if result.status != "done" else []
        notes += [f"{result.step}: {note}" for note in result.notes]
    return Report(
        suite="gpu, a rehearsal on CPUs whose figures mean nothing" if options.is_rehearsal else "gpu",
        machine=get_machine(options),
        measurements={},
        figures=tuple(figure for result in results for figure in result.figures),
        raw={result.step: result.to_json() for result in results},
        notes=tuple(notes),
    )


def _known(step: Step, options: GpuOptions, machine: dict[str, Any]) -> StepResult | None:
    """The result of an earlier run with this processor, these cards and versions; None if there is none."""
    known = StepResult.load(options.folder, step.name)
    return known if known is not None and known.machine == json.loads(json.dumps(machine)) else None


def _run(step: Step, empty: StepResult, options: GpuOptions, limit_seconds: float) -> StepResult:
    """Runs a step's process to its end, or ends it; returns the result that is now in the folder."""
    options.folder.mkdir(exist_ok=True)
    empty.save(options.folder)
    log = options.folder / f"{step.name}.log"
    log.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        _PROGRAM,
        json.dumps(asdict(replace(step, limit_seconds=limit_seconds))),
        str(options.folder),
    ]
    # A graph that an earlier step has compiled is not compiled again: 8 s in place of 60 for ResNet-50.
    cache = f"--tf_xla_persistent_cache_directory={options.folder / 'xla'} --tf_xla_persistent_cache_device_types=GPU"
    given = os.environ.get("TF_XLA_FLAGS", "")
    environment = {"TF_CPP_MIN_LOG_LEVEL": "2", "KERAS_BACKEND": "tensorflow", "TF_CONFIG": None}
    environment |= {"CUDA_VISIBLE_DEVICES": "-1"} if options.is_rehearsal else {"TF_XLA_FLAGS": f"{given} {cache}"}
    started = time.monotonic()
    with Child(command, environment=environment, log=log) as child:
        try:
            while child.process.poll() is None and time.monotonic() - started < limit_seconds:
                time.sleep(_POLL_SECONDS)
        except KeyboardInterrupt:
            child.kill()
            _ended(step, options, status="cut short", cause="interrupted")
            raise
        status = child.process.poll()
        words = last_words(child.output())
    seconds = round(time.monotonic() - started, 3)
    if status is not None:
        return _ended(step, options, status="failed", cause=f"{how_it_ended(status)}: {words}"[:500], seconds=seconds)
    own_limit = limit_seconds >= step.limit_seconds
    cause = f"was ended after {limit_seconds:.0f} seconds; its last words: {words}"[:500]
    return _ended(step, options, status="failed" if own_limit else "cut short", cause=cause, seconds=seconds)


def _ended(step: Step, options: GpuOptions, *, seconds: float = 0.0, **ending: str) -> StepResult:
    """The result in the folder, with this ending if the process left none."""
    left = StepResult.load(options.folder, step.name)
    if left is None:
        raise TfaccelError(f"{options.folder / f'{step.name}.json'} is gone: do not change --out during the benchmark.")
    if left.status == "running":
        left = replace(left, seconds=seconds, **ending)
        left.save(options.folder)
    return left
