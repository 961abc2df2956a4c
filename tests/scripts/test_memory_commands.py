"""`tfaccel estimate-memory` and `tfaccel find-batch-size`: tables, JSON and files of a workload beside the user."""

import json
from pathlib import Path

import pytest

from tfaccel.hardware.hardware import Device, Hardware
from tfaccel.measuring.batch_report import BatchReport
from tfaccel.measuring.memory_estimate import MemoryEstimate

CASES = Path(__file__).parent.parent / "measuring"
ARGUMENT = "--workload=memory_cases:few_examples"


@pytest.fixture
def tfaccel(run_python, tmp_path):
    """A function that runs a command."""
    return lambda *arguments: run_python(
        "tfaccel.scripts.main", *arguments, env={"PYTHONPATH": str(CASES)}, cwd=tmp_path
    )


@pytest.mark.slow
def test_estimates_for_this_machine_and_another(tfaccel, tmp_path):
    shown = tfaccel("estimate-memory", ARGUMENT, "--batch_sizes=32,64", "--out=estimate.json")
    saved = MemoryEstimate.from_json(json.loads((tmp_path / "estimate.json").read_text()))
    assert [one.replica_batch_size for one in saved.batches][:3] == [16, 32, 64]
    assert "examples per replica fit: " in shown.stdout
    assert "tracing the training step of memory_cases" in shown.stderr
    gpus = tuple(Device(kind="GPU", index=index, memory_bytes=2**30, compute_capability=(9, 0)) for index in range(2))
    (tmp_path / "server.json").write_text(json.dumps(Hardware(devices=gpus).to_json()))
    flags = ("--hardware=server.json", "--devices=GPU:0,GPU:1", "--global_batch_size=32", "--json", "--quiet")
    other = tfaccel("estimate-memory", ARGUMENT, *flags)
    found = MemoryEstimate.from_json(json.loads(other.stdout))
    assert (found.device, found.device_bytes, found.process_bytes) == ("GPU:0", 2**30, 0)
    assert found.reduced_bytes == found.gradients_bytes
    assert found.total_bytes(found.largest_replica_batch_size) <= 0.9 * 2**30
    assert "tracing" not in other.stderr


@pytest.mark.slow
def test_the_optimizer_of_the_flags_is_estimated(tfaccel):
    flags = ("--recipe=image_classification", "--width=8", "--json", "--quiet")
    found = [json.loads(tfaccel("estimate-memory", *flags, f"--optimizer={name}").stdout) for name in ("sgd", "adam")]
    sgd, adam = map(MemoryEstimate.from_json, found)
    assert (sgd.optimizer, adam.optimizer) == ("SGD", "Adam")
    assert adam.optimizer_bytes > 1.5 * sgd.optimizer_bytes


@pytest.mark.slow
def test_batch_sizes_are_shown_and_saved(tfaccel, tmp_path):
    shown = tfaccel("find-batch-size", ARGUMENT, "--max_replica_batch_size=32", "--out=batches.json")
    saved = BatchReport.from_json(json.loads((tmp_path / "batches.json").read_text()))
    assert [trial.replica_batch_size for trial in saved.trials] == [16, 32]
    assert "Batch sizes of " in shown.stdout
    assert saved.recommendation in shown.stdout
    assert "16 examples per replica: fits, " in shown.stderr
