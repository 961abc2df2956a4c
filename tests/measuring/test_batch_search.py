"""The search for a batch size, with processes that end as they are told: what is a lack of memory, and what is not."""

import json
import re
from pathlib import Path

import pytest

from tfaccel.errors import PlanError
from tfaccel.measuring import candidate_child
from tfaccel.measuring.batch_report import BatchOptions, BatchReport, batch_bound
from tfaccel.measuring.find_batch_size import BatchSearch
from tfaccel.planning.plan import Plan
from tfaccel.processes.fork_server import ForkServer

PLAN = Plan(strategy="none", devices=("CPU:0",), global_batch_size=8)
SHAPES = "ValueError: Shapes (8, 3) and (8, 4) are incompatible"
OUT_OF_MEMORY = "Out of memory: ResourceExhaustedError: OOM when allocating tensor"


class OneServer:
    """In place of `CandidateServers`: all plans have the same environment."""

    def __init__(self, server):
        self.server = server

    def of(self, plan):
        return self.server


@pytest.fixture
def search(tmp_path, monkeypatch):
    """A function that searches, given how each batch size ends: the report."""
    monkeypatch.setattr(candidate_child, "PROGRAM", "failing_program")

    def search(outcomes, *, num_examples=64, **options):
        variables = {"OUTCOMES": json.dumps(outcomes), "PYTHONPATH": str(Path(__file__).parent)}
        server = ForkServer([], folder=tmp_path, environment=variables)
        found = BatchSearch(
            "made_up", PLAN, BatchOptions(**options), num_examples=num_examples, on_trial=lambda trial: None
        )
        try:
            found.run(OneServer(server), {})
        finally:
            server.close()
        return found.report()

    return search


def sizes_of(report):
    return {trial.replica_batch_size: trial.fits for trial in report.trials}


@pytest.mark.parametrize("lack", ["is killed", f"says {OUT_OF_MEMORY}"])
def test_only_a_lack_of_memory_means_that_a_size_does_not_fit(search, lack):
    report = search({"32": lack, "24": lack})
    assert sizes_of(report) == {8: True, 16: True, 20: True, 22: True, 24: False, 32: False}
    assert (report.complete, report.stopped_because) == (True, "The next larger batch does not fit.")
    smaller = search({"8": lack, "4": lack})
    assert sizes_of(smaller)[8] is False
    assert smaller.largest == 3


@pytest.mark.parametrize(
    ("outcome", "cause"),
    [
        (f"says {SHAPES}", re.escape(SHAPES)),
        ("hangs", r"it took longer than 1 seconds to build the model\. Allow more with limit_seconds"),
        ("diverges", r"Its loss is not finite in later steps\."),
    ],
)
def test_another_failure_is_named_and_ends_the_search(search, outcome, cause):
    with pytest.raises(PlanError, match=rf"^8 examples per replica failed, but not for lack of memory: .*{cause}"):
        search({"8": outcome}, limit_seconds=1 if outcome == "hangs" else 60)
    report = search({"16": outcome}, limit_seconds=4 if outcome == "hangs" else 60)  # 4: on a busy machine, too
    assert sizes_of(report) == {8: True, 16: None}
    assert (report.complete, report.largest, report.fastest) == (False, 8, 8)
    assert report.stopped_because.startswith("16 examples per replica failed, but not for lack of memory: ")


def test_a_failure_below_sizes_without_memory_is_no_lack_of_memory(search):
    with pytest.raises(PlanError, match=r"^4 examples per replica failed, but not for lack of memory: ValueError"):
        search({"8": "is killed", "4": f"says {SHAPES}"})


def test_speeds_have_one_baseline(search):
    report = search(
        {"16": "takes 1.5", "32": "takes 2", "64": "takes 4"}
    )  # of a step's time; a batch has more examples
    speeds = {trial.replica_batch_size: trial.relative_speed for trial in report.trials}
    assert speeds == pytest.approx({8: 1.0, 16: 2 / 1.5, 32: 2.0, 64: 2.0})
    assert [trial.candidate.speedup for trial in report.trials[1:]] == pytest.approx([2 / 1.5, 1.5, 1.0])
    assert (report.baseline, report.fastest) == (8, 32)
    assert report.headings[3] == "speed (8 = 1)"
    assert [row[3] for row in report.rows()] == ["1.00", "1.33", "2.00", "2.00"]
    assert BatchReport.from_json(json.loads(json.dumps(report.to_json()))) == report
    assert report.stopped_because == "No larger batch is possible: an epoch has 64 examples."


def test_a_size_without_time_has_no_speed(search):
    report = search({"16": "diverges"})
    assert [trial.relative_speed for trial in report.trials] == [1.0, None]


def test_what_bounds_the_search_is_named():
    given = BatchOptions(max_replica_batch_size=96)
    assert "max_replica_batch_size=96 (--max_replica_batch_size)" in batch_bound(PLAN, given, None)[1]
    assert "max_replica_batch_size=96" in batch_bound(PLAN, given, 4096)[1]
    assert batch_bound(PLAN, given, 50)[1] == "No larger batch is possible: an epoch has 50 examples."
    two = Plan(strategy="mirrored", devices=("GPU:0", "GPU:1"), global_batch_size=8, accumulation_steps=4)
    micro_batch_size, reason = batch_bound(two, BatchOptions(), 50)
    assert micro_batch_size == 6
    assert reason.endswith("an epoch has 50 examples, for 2 replicas.")
    with pytest.raises(PlanError, match=r"An epoch has fewer examples than the smallest batch: 4 per replica and step"):
        batch_bound(two, BatchOptions(), 7)
    with pytest.raises(PlanError, match=r"must be at least accumulation_steps=4\. Received: max_replica_batch_size=3"):
        batch_bound(two, BatchOptions(max_replica_batch_size=3), 50)
