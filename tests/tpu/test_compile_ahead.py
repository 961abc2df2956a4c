"""The TPU compiler's checks: on answers made up, without the compiler, and on the real one where it is installed."""

import dataclasses
from pathlib import Path

import pytest
from made_up_machine import add_package, make_machine

from tfaccel.extras.tpu.readiness import (
    GENERATIONS,
    STEP_PROGRAM,
    AheadOfTime,
    check_ahead_of_time,
    compiler_refusal,
    largest_batch_check,
    memory_check,
    parse_tpu,
)
from tfaccel.hardware.doctor import Examination, ProbeProcess, ProbeResult
from tfaccel.hardware.machine import Machine

V5E = parse_tpu("v5e").generations[0]
COSTS = {"peak_bytes": 8_235_520, "flops": 6.84e8, "bytes_accessed": 52_432_896.0, "padding_waste": 0.53}
NEEDS_COMPILER = pytest.mark.skipif(
    compiler_refusal(Machine.here()) is not None, reason=f"no TPU compiler: {compiler_refusal(Machine.here())}"
)


def machine_with(tmp_path, **packages):
    folders = {add_package(tmp_path, name, version) for name, version in packages.items()}
    return make_machine(tmp_path, site_folders=tuple(folders))


def test_without_jax_and_libtpu_it_is_skipped_with_the_reason(tmp_path):
    examination = Examination(make_machine(tmp_path))
    checks = check_ahead_of_time(
        examination, lambda rows, path: None, target=parse_tpu("v5e"), replica_batch_size=8, num_train_examples=None
    )
    (check,) = checks
    assert (check.name, check.status) == ("TPU compiler", "skip")
    assert check.detail.startswith("jax and libtpu not installed; pip install 'tfaccel[tpu-aot]'")


def test_other_versions_are_not_tried(tmp_path):
    reason = compiler_refusal(machine_with(tmp_path, jax="0.11.0", libtpu="0.0.42.1"))
    assert reason == ("tested with jax 0.10.2 and libtpu 0.0.42.*; jax 0.11.0, libtpu 0.0.42.1 are installed")
    assert compiler_refusal(machine_with(tmp_path / "other", jax="0.10.2", libtpu="0.0.42.7")) is None


def test_a_broken_compiler_is_skipped_with_its_reason(tmp_path):
    machine = machine_with(tmp_path, jax="0.10.2", libtpu="0.0.42.1")
    (tmp_path / "jax.py").write_text("raise ImportError('jaxlib is gone')")
    machine = dataclasses.replace(machine, environ={"PYTHONPATH": str(tmp_path)})
    (check,) = check_ahead_of_time(
        Examination(machine),
        lambda rows, path: None,
        target=parse_tpu(None),
        replica_batch_size=8,
        num_train_examples=None,
    )
    assert (check.status, check.detail) == ("skip", "ImportError: jaxlib is gone")


def test_a_step_that_fits_tells_its_costs():
    check = memory_check(V5E, 64, ProbeResult(ok=True, data=COSTS))
    assert (check.name, check.status) == ("v5e memory", "ok")
    assert check.detail == (
        "64 rows per core need 8.24 MB of 15.75 GiB; a step computes 0.684 GFLOP and moves 52.4 MB; 53% of the bytes "
        "it writes are padding"
    )


def test_a_step_that_does_not_fit_fails_with_the_compilers_words():
    check = memory_check(V5E, 64, ProbeResult(ok=True, data={"out_of_memory": "(36.00G) exceeds"}))
    assert (check.status, check.detail) == ("fail", "64 rows per core do not fit into 15.75 GiB: (36.00G) exceeds")
    assert "--accumulation_steps" in check.remedy


def test_a_refusal_fails_and_silence_is_skipped():
    assert memory_check(V5E, 8, ProbeResult(ok=True, data={"refusal": "UNIMPLEMENTED: X"})).status == "fail"
    silent = memory_check(V5E, 8, ProbeResult(ok=False, cause="its process was killed by SIGABRT"))
    assert (silent.status, "killed by SIGABRT" in silent.detail) == ("skip", True)


class MadeUpAhead(AheadOfTime):
    """Answers for a machine where `limit` rows fit, and which is silent from `silent_from` rows on."""

    limit = 0
    silent_from = 10**9

    def compile(self, generation, rows):
        if rows >= self.silent_from:
            return ProbeResult(ok=False, cause="no answer within 120 seconds (ended it)", has_hung=True)
        return ProbeResult(ok=True, data=COSTS if rows <= self.limit else {"out_of_memory": "too large"})


def test_a_search_that_gets_no_answer_says_so(tmp_path):
    ahead = MadeUpAhead(Examination(make_machine(tmp_path)), None, None, tmp_path)
    ahead.limit, ahead.silent_from = 10**6, 1000
    check = largest_batch_check(ahead, V5E, known=64, num_train_examples=5000)
    reason = "larger sizes could not be compiled; 1672 rows: no answer within 120 seconds (ended it)"
    assert (check.status, check.detail) == ("ok", f"560 rows per core ({reason})")


@pytest.mark.parametrize(
    ("limit", "known", "num_examples", "detail"),
    [
        (10**6, 64, 1437, "1432 rows per core (all training examples fit)"),
        (10**6, 64, None, "65536 rows per core (no larger size was tried)"),
        (100, 64, 1437, "96 rows per core (to within 10 %)"),
        (30, 0, 1437, "24 rows per core (to within 10 %)"),
        (0, 0, 1437, "not even 8 rows per core fit"),
    ],
)
def test_the_largest_batch_is_searched(tmp_path, limit, known, num_examples, detail):
    ahead = MadeUpAhead(Examination(make_machine(tmp_path)), None, None, tmp_path)
    ahead.limit = limit
    check = largest_batch_check(ahead, V5E, known=known, num_train_examples=num_examples)
    assert (check.name, check.detail) == ("v5e largest batch", detail)
    assert check.status == ("ok" if limit else "fail")


@NEEDS_COMPILER
@pytest.mark.slow
def test_the_real_compiler_compiles_a_step_for_every_generation():
    with ProbeProcess(Machine.here(), program=STEP_PROGRAM) as process:

        def write_program(rows, path):
            source = ["workload", "broken_workloads:sound", str(Path(__file__).parent), 16]
            return process.run(["program", rows, str(path), *source], time_limit_seconds=200)

        def check(tpu, rows=16):
            examination, target = Examination(Machine.here()), parse_tpu(tpu)
            return list(
                check_ahead_of_time(
                    examination, write_program, target=target, replica_batch_size=rows, num_train_examples=64
                )
            )

        checks = check(None)
        names = ["TPU compiler", *(f"{generation.name} memory" for generation in GENERATIONS)]
        assert [(c.name, c.status) for c in checks] == [(name, "ok") for name in names]
        assert check("v5e")[-1].detail == "64 rows per core (all training examples fit)"
        _, memory, largest = check("v5e", rows=2**28)
        assert (memory.status, "exceeds available HBM (15.75G)" in memory.detail) == ("fail", True)
        assert (largest.status, largest.detail) == ("ok", "64 rows per core (all training examples fit)")
