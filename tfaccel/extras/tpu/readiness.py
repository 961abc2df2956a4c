"""`tfaccel doctor --tpu_ready`: can a workload's train step run on a TPU, does it fit, and what does it cost?

It needs no TPU: the step is traced on the CPU, and compiled with the real TPU compiler if that is installed.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfaccel.errors import HardwareError
from tfaccel.extras.tpu.graph_findings import ROWS_OF_A_TILE, batch_checks, lint_checks, replica_batch_check
from tfaccel.hardware.doctor import Check, Examination, ProbeProcess, ProbeResult, explain
from tfaccel.hardware.machine import Machine
from tfaccel.known_names import did_you_mean

STEP_PROGRAM = "tfaccel.extras.tpu.step_probes"


GIBIBYTE = 2**30


@dataclass(frozen=True, kw_only=True)
class TpuGeneration:
    """One generation of TPUs.

    Args:
        name: "v5e" and so on.
        topology: the smallest topology that the compiler supports, such as "v5e:2x2".
        memory_bytes: memory of one core that a program may use, as stated in out-of-memory errors of libtpu 0.0.42's
            compiler. A v4 chip has two cores.
    """

    name: str
    topology: str
    memory_bytes: int


def _generation(name: str, topology: str, gibibytes: float) -> TpuGeneration:
    return TpuGeneration(name=name, topology=topology, memory_bytes=int(gibibytes * GIBIBYTE))


GENERATIONS = (
    _generation("v2", "v2:2x2", 7.48),
    _generation("v3", "v3:2x2", 15.48),
    _generation("v4", "v4:2x2x1", 15.25),
    _generation("v5e", "v5e:2x2", 15.75),
    _generation("v5p", "v5p:2x2x1", 95.74),
    _generation("v6e", "v6e:2x2", 31.25),
)


@dataclass(frozen=True, kw_only=True)
class TpuTarget:
    """The TPUs to check a step for.

    Args:
        generations: the selected generation, or all if none was selected.
        num_cores: number of cores that share the global batch.
    """

    generations: tuple[TpuGeneration, ...] = GENERATIONS
    num_cores: int = 1


def parse_tpu(text: str | None) -> TpuTarget:
    """Parses the value of `--tpu`: a generation ("v5e"), or a generation with a number of cores ("v5e-8").

    Args:
        text: the flag's value; None for one core of any generation.

    Example:
        >>> parse_tpu("v5e-8").num_cores
        8
    """
    if text is None:
        return TpuTarget()
    names = [generation.name for generation in GENERATIONS]
    match = re.fullmatch(r"(\w+?)(?:-([1-9]\d*))?", text.lower())
    found = [generation for generation in GENERATIONS if match is not None and generation.name == match[1]]
    if match is None or not found:
        hint = did_you_mean(text, names)
        raise HardwareError(
            f"A TPU is written as a generation, optionally with a number of cores: v5e, v5e-8. "
            f"Received: {text!r}.{hint} "
            f"Generations: {', '.join(names)}."
        )
    return TpuTarget(generations=tuple(found), num_cores=int(match[2] or 1))


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
        probe: `probe(message, name)` runs one of `traced_step.PROBES` on the workload.
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


COMPILER_PROGRAM = "tfaccel.extras.tpu.jax_probes"
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


MAX_TRIALS = 8
MAX_UNANSWERED = 2
_NEAR = 1.1  # the true maximum is at most this many times the answer
_NEEDED = re.compile(r"\((\d+(?:\.\d+)?)([KMGT])\) exceeds available \w+ \((\d+(?:\.\d+)?)([KMGT])\)")
_USED = re.compile(r"[Uu]sed (\d+(?:\.\d+)?)([KMGT]) of (\d+(?:\.\d+)?)([KMGT])")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class Trial:
    """The result for one batch size: whether it fits, and its needed memory relative to the available, if known."""

    fits: bool
    memory_part: float | None = None


def largest_batch(try_batch: Callable[[int], Trial | None], *, known: int, highest: int) -> int:
    """The largest multiple of 8 that fits, between `known` and `highest`, to within 10 %.

    Args:
        try_batch: compiles for a number of rows; returns None without an answer, which ends the search the second time.
        known: a number of rows that fits.
        highest: max rows to try.

    Example:
        >>> largest_batch(lambda rows: Trial(rows <= 3000), known=64, highest=100_000)
        2992
    """
    low, high = known, max(known, highest // ROWS_OF_A_TILE * ROWS_OF_A_TILE)
    if high == low:
        return low
    candidate, predicted, num_unanswered = high, False, 0
    for _ in range(MAX_TRIALS):
        trial = try_batch(candidate)
        if trial is None:
            num_unanswered += 1
            if num_unanswered == MAX_UNANSWERED:
                break
            trial = Trial(fits=False)  # a smaller size may get an answer
        low, high = (candidate, high) if trial.fits else (low, candidate)
        if low >= high or high - low <= ROWS_OF_A_TILE or high / low <= _NEAR:
            break
        guess = math.sqrt(low * high)
        if trial.memory_part is not None:  # memory grows roughly in proportion to the batch
            guess = 0.95 * candidate / trial.memory_part
        elif trial.fits and predicted:  # the next size should fail and end the search
            guess = low * _NEAR
        predicted = trial.memory_part is not None
        candidate = _between(low, guess, high)
    return low


def memory_part(message: str) -> float | None:
    """Needed relative to available memory, from the compiler's out-of-memory error; None if it does not say.

    Example:
        >>> memory_part("the total memory required for HLO temporaries (31.50G) exceeds available HBM (15.75G).")
        2.0
    """
    match = _NEEDED.search(message) or _USED.search(message)
    if match is None:
        return None
    return float(match[1]) * _UNITS[match[2]] / (float(match[3]) * _UNITS[match[4]])


def _between(low: int, guess: float, high: int) -> int:
    """A multiple of 8 near the guess, above `low` and below `high`."""
    rows = int(guess) // ROWS_OF_A_TILE * ROWS_OF_A_TILE
    first = (low // ROWS_OF_A_TILE + 1) * ROWS_OF_A_TILE
    return min(max(rows, first), high - ROWS_OF_A_TILE if high - ROWS_OF_A_TILE > low else high)
