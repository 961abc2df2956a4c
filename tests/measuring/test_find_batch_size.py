"""`find_batch_size` trains each batch size in a process of its own: no memory left is a row, and so is no data left."""

import json
from pathlib import Path

import pytest

from tfaccel.measuring.batch_report import BatchReport

HERE = Path(__file__).parent
MIB = 2**20
PROGRAM = """
import json, sys
from tfaccel import find_batch_size
from tfaccel.options import BatchOptions
from tfaccel.errors import TfaccelError
try:
    report = find_batch_size(f"memory_cases:{sys.argv[1]}", search=BatchOptions(**json.loads(sys.argv[2])))
    print(json.dumps(report.to_json()))
except TfaccelError as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""


@pytest.fixture
def find(run_python):
    """A function that searches a case's batch sizes: the report, or the error's type and message."""

    def find(case, env=None, **options):
        child = run_python(PROGRAM, case, json.dumps(options), cwd=HERE, fresh=True, env=env)
        found = json.loads(child.stdout.splitlines()[-1])
        return BatchReport.from_json(found) if isinstance(found, dict) else found

    return find


@pytest.mark.slow
def test_the_largest_batch_lies_between_one_that_fits_and_one_that_does_not(find):
    limit = 900 * MIB
    report = find("workload", memory_limit_bytes=limit, budget_seconds=900, limit_seconds=300)
    assert report.complete
    assert report.memory_limit_bytes == limit
    sizes = [trial.replica_batch_size for trial in report.trials]
    assert sizes == sorted(sizes)
    too_large = [trial.replica_batch_size for trial in report.trials if not trial.fits]
    assert report.largest < min(too_large) <= 1.15 * report.largest + 1
    for trial in report.trials:
        if trial.fits:
            assert trial.candidate.peak_bytes <= 0.9 * limit
            assert len(trial.candidate.windows) >= 4
        elif trial.was_tried and not trial.candidate.failure:
            assert trial.candidate.peak_bytes > 0.9 * limit
    assert report.fastest in sizes
    assert report.stopped_because == "The next larger batch does not fit."


@pytest.mark.slow
def test_a_process_that_reaches_the_limit_is_ended(find):
    report = find("workload", memory_limit_bytes=100 * MIB, max_replica_batch_size=2)
    assert report.largest is None
    assert [trial.replica_batch_size for trial in report.trials] == [1, 2]
    assert all(trial.candidate.failure.startswith("Out of memory: ") for trial in report.trials)
    assert report.stopped_because == "Not even the smallest batch fits."
    assert report.recommendation.startswith("No batch size fits.")


@pytest.mark.slow
def test_no_batch_is_larger_than_the_data(find):
    report = find("few_examples", budget_seconds=900)
    assert [trial.replica_batch_size for trial in report.trials] == [16, 32, 64, 96]
    assert report.largest == 96
    assert report.stopped_because == "No larger batch is possible: an epoch has 96 examples."
    first = find("few_examples", budget_seconds=0.1)
    assert [trial.replica_batch_size for trial in first.trials] == [16]
    assert (first.complete, first.stopped_because) == (False, "The time was spent (budget_seconds=0.1).")


@pytest.mark.slow
def test_batches_of_a_fixed_size_are_refused(find):
    kind, message = find("fixed_batches")
    assert kind == "WorkloadError"
    assert "has batches of 32 rows, which a search cannot change. Give arrays" in message


@pytest.mark.slow
def test_what_happens_while_two_batches_are_timed_counts_for_the_right_one(find, tmp_path):
    limits = {"memory_limit_bytes": 4000 * MIB, "head_room": 0.6, "max_replica_batch_size": 64}
    report = find("disturbed", env={"TFACCEL_CACHE": str(tmp_path)}, budget_seconds=600, **limits)
    trials = {trial.replica_batch_size: trial for trial in report.trials}
    small, medium, large = (trials[size] for size in (16, 32, 64))
    assert (small.fits, medium.fits, large.fits) == (True, True, False)
    assert not small.candidate.failure and not medium.candidate.failure  # 16 died while 32 was timed
    assert medium.candidate.speedup > 1.2
    assert len(medium.candidate.windows) >= 4
    assert large.candidate.peak_bytes > 1600 * MIB  # only while it was timed
    assert (report.fastest, report.largest) == (32, 32)
    assert "--global_batch_size=32" in report.recommendation
