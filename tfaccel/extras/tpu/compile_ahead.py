"""Ahead-of-time compilation of a train step with the real TPU compiler: does it fit, and what does it cost?"""

import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tfaccel.extras.tpu.generations import GIBIBYTE, TpuGeneration, TpuTarget
from tfaccel.extras.tpu.largest_batch import Trial, largest_batch, memory_part
from tfaccel.hardware.doctor import Check, Examination, explain
from tfaccel.hardware.doctor_child import ProbeProcess, ProbeResult
from tfaccel.hardware.machine import Machine

COMPILER_PROGRAM = "tfaccel.extras.tpu.compile_probes"
# The versions that the extra `tpu-aot` pins.
JAX_VERSION, LIBTPU_VERSIONS = "0.10.2", "0.0.42"
# Keeps libtpu from looking for a TPU and from querying Google Cloud's metadata server.
_ENVIRON = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # no TPU is used, so no lock is needed
    "TF_CPP_MIN_LOG_LEVEL": "2",
}
_INSTALL = "pip install 'tfaccel[tpu-aot]' to compile the step with the real TPU compiler"
# Multiplies the doctor's time limit for compilations.
_PATIENCE = 5.0
MAX_ROWS = 65536

WriteProgram = Callable[[int, Path], ProbeResult]


def compiler_refusal(machine: Machine) -> str | None:
    """Why the installed versions cannot run the TPU compiler; None if they can."""
    jax, libtpu = machine.package_version("jax"), machine.package_version("libtpu")
    missing = [name for name, version in (("jax", jax), ("libtpu", libtpu)) if version is None]
    if missing:
        return f"{' and '.join(missing)} not installed; {_INSTALL}"
    if jax != JAX_VERSION or not str(libtpu).startswith(f"{LIBTPU_VERSIONS}."):
        return f"tested with jax {JAX_VERSION} and libtpu {LIBTPU_VERSIONS}.*; jax {jax}, libtpu {libtpu} are installed"
    return None


@dataclass
class AheadOfTime:
    """One step compiled for several generations and batch sizes.

    Args:
        examination: the machine, the time limit and the progress callback.
        write_program: `write_program(rows, path)` writes the XLA program of the step for a batch size to a file.
        compiler: the child process with the TPU compiler.
        folder: the folder to write programs to.
    """

    examination: Examination
    write_program: WriteProgram
    compiler: ProbeProcess
    folder: Path
    _programs: dict[int, ProbeResult] = field(default_factory=dict)

    def compile(self, generation: TpuGeneration, rows: int) -> ProbeResult:
        """Compiles the step for this number of rows on one core."""
        path = self.folder / f"{rows}.hlo"
        if rows not in self._programs:
            self._programs[rows] = self.write_program(rows, path)
        if not self._programs[rows].ok:
            return self._programs[rows]
        self.examination.on_progress(f"the TPU compiler for {generation.name}, {rows} rows per core")
        limit = self.examination.time_limit_seconds * _PATIENCE
        return self.compiler.run(["compile", str(path), generation.topology], time_limit_seconds=limit)

    def largest(self, generation: TpuGeneration, *, known: int, highest: int) -> tuple[int, str]:
        """The max rows that fit on one core, and why the search stopped early, or ""."""
        unanswered = ""

        def try_batch(rows: int) -> Trial | None:
            nonlocal unanswered
            result = self.compile(generation, rows)
            if not result.ok or "refusal" in result.data:
                unanswered = f"{rows} rows: {result.data.get('refusal') or explain(result)}"
                return None
            message = result.data.get("out_of_memory")
            return Trial(message is None, memory_part(message or ""))

        return largest_batch(try_batch, known=known, highest=highest), unanswered


def check_ahead_of_time(
    examination: Examination,
    write_program: WriteProgram,
    *,
    target: TpuTarget,
    replica_batch_size: int,
    num_train_examples: int | None,
) -> Iterator[Check]:
    """Checks the compiled step: memory for each generation; the largest batch too, if there is only one generation.

    Args:
        examination: the machine, the time limit and the progress callback.
        write_program: `write_program(rows, path)` writes the XLA program of the step for a batch size to a file.
        target: the TPUs to compile for.
        replica_batch_size: rows per core.
        num_train_examples: max rows of a batch; None if unknown.
    """
    reason = compiler_refusal(examination.machine)
    if reason:
        yield Check(name="TPU compiler", status="skip", detail=reason)
        return
    with (
        ProbeProcess(examination.machine, program=COMPILER_PROGRAM, environ=_ENVIRON) as compiler,
        tempfile.TemporaryDirectory() as folder,
    ):
        examination.on_progress("the TPU compiler")
        loaded = compiler.run(["compiler"], time_limit_seconds=examination.time_limit_seconds)
        if not loaded.ok:
            yield Check(name="TPU compiler", status="skip", detail=explain(loaded))
            return
        libtpu = examination.machine.package_version("libtpu")
        yield Check(name="TPU compiler", status="ok", detail=f"libtpu {libtpu}, called through jax {JAX_VERSION}")
        ahead = AheadOfTime(examination, write_program, compiler, Path(folder))
        for generation in target.generations:
            compiled = ahead.compile(generation, replica_batch_size)
            check = memory_check(generation, replica_batch_size, compiled)
            yield check
            if len(target.generations) == 1 and check.status in ("ok", "fail"):
                known = replica_batch_size if check.status == "ok" else 0
                yield largest_batch_check(ahead, generation, known=known, num_train_examples=num_train_examples)


def memory_check(generation: TpuGeneration, rows: int, result: ProbeResult) -> Check:
    """Checks one compilation: does the step fit, and what does it cost?"""
    name = f"{generation.name} memory"
    there = f"{generation.memory_bytes / GIBIBYTE:.2f} GiB"
    if not result.ok:
        return Check(name=name, status="skip", detail=f"the compiler did not answer: {explain(result)}")
    if "out_of_memory" in result.data:
        remedy = "a smaller --global_batch_size, more --accumulation_steps, or rematerialization (remat=True)"
        detail = f"{rows} rows per core do not fit into {there}: {result.data['out_of_memory']}"
        return Check(name=name, status="fail", detail=detail, remedy=remedy)
    if "refusal" in result.data:
        remedy = "replace the operation that the message names, or move it to train_data"
        return Check(name=name, status="fail", detail=f"the compiler failed: {result.data['refusal']}", remedy=remedy)
    costs = result.data
    detail = (
        f"{rows} rows per core need {_bytes(costs['peak_bytes'])} of {there}; a step computes "
        f"{costs['flops'] / 1e9:.3g} GFLOP and moves {_bytes(costs['bytes_accessed'])}; "
        f"{costs['padding_waste']:.0%} of the bytes it writes are padding"
    )
    return Check(name=name, status="ok", detail=detail)


def largest_batch_check(
    ahead: AheadOfTime, generation: TpuGeneration, *, known: int, num_train_examples: int | None
) -> Check:
    """Finds the max rows per core that fit."""
    name = f"{generation.name} largest batch"
    highest = min(num_train_examples or MAX_ROWS, MAX_ROWS) // 8 * 8
    if not known:
        smallest = ahead.compile(generation, 8)
        if not smallest.ok or smallest.data.keys() & {"out_of_memory", "refusal"}:
            remedy = "a smaller model, or model parallelism, which tfaccel does not support"
            return Check(name=name, status="fail", detail="not even 8 rows per core fit", remedy=remedy)
        known = 8
    found, unanswered = ahead.largest(generation, known=known, highest=highest)
    if unanswered:
        why = f"larger sizes could not be compiled; {unanswered}"
    elif num_train_examples is not None and found == highest < MAX_ROWS:
        why = "all training examples fit"
    elif found >= MAX_ROWS:
        why = "no larger size was tried"
    else:
        why = "to within 10 %"
    return Check(name=name, status="ok", detail=f"{found} rows per core ({why})")


def _bytes(number: float) -> str:
    """A number of bytes with its unit, such as "8.2 MB"."""
    exponent = min(4, max(0, (len(str(int(number))) - 1) // 3))
    text = f"{number / 1000**exponent:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[exponent]}"
    return re.sub(r"e\+0?(\d+)", lambda match: "0" * int(match[1]), text)
