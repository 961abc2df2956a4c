"""`tfaccel test`: which cases it runs, what it prints, its exit status."""

import json
import subprocess
import sys

import pytest

from tfaccel.parity.axes import AXES, CHECK_NAMES, covering_set
from tfaccel.parity.case import ParityCase, ParityCheck, ParityRow, Placement
from tfaccel.scripts import test as test_command


@pytest.fixture
def run(capsys):
    """A function that runs the command with these flags: status, standard output, standard error."""

    def run(*arguments):
        status = test_command.run(["tfaccel test", *arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture
def chosen(monkeypatch):
    """The cases that the command would have run; instead each gets a row that is right."""
    cases = []

    def run_cases(wanted, *, on_row):
        cases.extend(wanted)
        rows = [ParityRow(case.name, str(case.placement), 1e-8, 1e-5, True) for case in wanted]
        for row in rows:
            on_row(row)
        return rows

    monkeypatch.setattr(test_command, "run_cases", run_cases)
    return cases


@pytest.mark.slow
def test_a_real_case_and_a_real_check(run):
    status, out, err = run("--only=overflow", "--replicas=3", "--workers=1")
    assert status == 0, err
    assert "MirroredStrategy, 3 replicas" in out
    assert "MultiWorkerMirroredStrategy, 1 worker" in out
    assert "2 cases, 0 failed, in " in out
    assert err.count("tfaccel test: ok: ") == 2


def test_runs_every_pair_and_every_check_under_both_strategies(run, chosen):
    assert run()[0] == 0
    placements = [Placement("mirrored", 2), Placement("multi_worker", 2)]
    assert [case for case in chosen if isinstance(case, ParityCase)] == covering_set(placements)
    checks = [case for case in chosen if isinstance(case, ParityCheck)]
    assert checks == [ParityCheck(placement, name) for name in CHECK_NAMES for placement in placements]


def test_replicas_and_workers_are_those_of_the_flags(run, chosen):
    assert run("--replicas=5", "--workers=3", "--coverage=values")[0] == 0
    assert {case.placement for case in chosen} == {Placement("mirrored", 5), Placement("multi_worker", 3)}


def test_coverage_by_values_is_shorter_and_by_triples_longer(run, chosen):
    numbers = []
    for coverage in ("values", "pairs", "triples"):
        chosen.clear()
        assert run(f"--coverage={coverage}")[0] == 0
        for axis, values in AXES.items():
            for strategy in ("mirrored", "multi_worker"):
                cases = [case for case in chosen if isinstance(case, ParityCase)]
                assert {getattr(c, axis) for c in cases if c.placement.strategy == strategy} == set(values)
        numbers.append(len(chosen))
    assert numbers == sorted(numbers)
    assert numbers[0] < 50


@pytest.mark.slow
def test_all_is_the_full_product_and_shards_are_its_parts(run, chosen):
    assert run("--all", "--shard=1/5000")[0] == 0
    second = list(chosen)
    chosen.clear()
    assert run("--all", "--shard=0/5000")[0] == 0
    assert not set(second) & set(chosen)
    assert len({case.model for case in chosen if isinstance(case, ParityCase)}) > 10


def test_json_has_the_rows(run, chosen):
    status, out, _ = run("--json", "--only=masks")
    assert status == 0
    rows = json.loads(out)["rows"]
    assert [row["case"] for row in rows] == [case.name for case in chosen]
    assert rows[0].keys() >= {"case", "strategy", "max_abs_diff", "tolerance", "ok"}


def test_a_failure_is_named_and_gives_status_1(run, monkeypatch):
    rows = [
        ParityRow("a right case", "A, 2 replicas", 1e-7, 1e-5, True, fault="plain Keras forgets"),
        ParityRow("a wrong case", "A, 2 replicas", 0.25, 1e-5, False, note="weight first/kernel"),
        ParityRow("a broken case", "B, 2 workers", None, 0.0, False, note="ValueError: no"),
    ]
    monkeypatch.setattr(test_command, "run_cases", lambda cases, *, on_row: rows)
    status, out, _ = run()
    assert status == 1
    assert "a right case [1]" in out
    assert "[1] plain Keras forgets" in out
    assert "failed: A, 2 replicas: a wrong case: weight first/kernel" in out
    assert "failed: B, 2 workers: a broken case: ValueError: no" in out
    assert "3 cases, 2 failed" in out
    assert run("--json")[0] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--replicas=0"], "flag --replicas=0: 0 is not an integer in the range [1, 64]"),
        (["--workers=-1"], "flag --workers=-1: -1 is not an integer in the range [1, 64]"),
        (["--replicas=two"], "flag --replicas=two: invalid literal"),
        (["--coverage=some"], "flag --coverage=some: value should be one of <values|pairs|triples|all>"),
        (["--shard=2/2"], "--shard is written K/N, with K from 0 to N - 1. Received: --shard=2/2."),
        (["--shard=half"], "Received: --shard=half."),
        (["--only=nothing like it"], "No case matches. Received: --only='nothing like it', --shard=0/1."),
        (["--replica=2"], "Unknown command line flag 'replica'. Did you mean 'replicas'?"),
        (["dense"], "unexpected argument 'dense'."),
    ],
)
def test_bad_input_is_one_line_and_status_2(run, arguments, message):
    status, out, err = run(*arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("tfaccel test: ")
    assert message in err


def test_the_command_imports_no_tensorflow_and_explains_itself():
    code = (
        "import sys; from tfaccel.scripts.main import main; status = main(['tfaccel', 'test', '--help']);"
        "sys.exit(status or len({'tensorflow', 'keras'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(f"\n  --{flag}\n" in done.stdout for flag in ("replicas", "workers", "json", "all", "shard", "only"))
