"""The batch script on a real Slurm cluster of one node: two workers train, are lost, and are requeued."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from cluster_training import outcome
from slurm_cluster import MISSING, SlurmCluster

from tfaccel.extras.cluster.cluster_job import ClusterJob
from tfaccel.extras.cluster.slurm_script import SlurmOptions, slurm_script

PROGRAM = Path(__file__).with_name("cluster_training.py")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"needs Slurm (apt-get install slurmctld slurmd): no {' '.join(MISSING)}"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with SlurmCluster(tmp_path_factory.mktemp("slurm")) as running:
        yield running


def submit(cluster, folder, how, *seconds, max_restarts=1):
    """Submits a training with two workers on the node; its run directory is `folder / how`."""
    command = (sys.executable, str(PROGRAM), f"--run_dir={folder / how}", how, *map(str, seconds))
    job = ClusterJob(command=command, num_workers=2, name="small", cores_per_worker=1, max_restarts=max_restarts)
    script = folder / f"{how}.sh"
    script.write_text(slurm_script(job, SlurmOptions(workers_per_node=2)))
    return cluster.submit(script)


def said(folder, job):
    return (folder / f"small-{job}.log").read_text()


@pytest.fixture(scope="module")
def undisturbed(cluster, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    ended = cluster.wait_for(submit(cluster, folder, "well"), "COMPLETED", "FAILED")
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "0")
    return outcome(folder / "well")


def test_after_a_killed_worker_the_requeued_job_ends_as_if_nothing_had_happened(
    cluster, undisturbed, tmp_path, logical_devices
):
    job = submit(cluster, tmp_path, "killed")
    cluster.wait_until_requeued(job)
    assert "137" in said(tmp_path, job)
    assert "the job is requeued" in said(tmp_path, job)
    cluster.start_now(job)
    assert cluster.wait_for(job, "COMPLETED", "FAILED")["JobState"] == "COMPLETED"
    assert outcome(tmp_path / "killed") == undisturbed


def test_so_it_does_after_a_signal_as_before_the_time_limit(cluster, undisturbed, tmp_path, logical_devices):
    job = submit(cluster, tmp_path, "slow", 0.1)
    metrics = tmp_path / "slow" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while not metrics.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    cluster.signal(job, "TERM")
    cluster.wait_until_requeued(job)
    cluster.start_now(job)
    assert cluster.wait_for(job, "COMPLETED", "FAILED")["JobState"] == "COMPLETED"
    assert outcome(tmp_path / "slow") == undisturbed


def test_an_exception_is_not_repeated(cluster, tmp_path):
    job = submit(cluster, tmp_path, "wrong")
    ended = cluster.wait_for(job, "COMPLETED", "FAILED")
    assert (ended["JobState"], ended["Restarts"], ended["ExitCode"]) == ("FAILED", "0", "1:0")
    assert "A worker failed with status 1; starting again would not help." in said(tmp_path, job)
    logs = [(tmp_path / f"small-{job}-worker-{index}.log").read_text() for index in range(2)]
    assert "ValueError: what a user may write" in logs[1]


def test_a_job_that_has_been_restarted_often_enough_ends(cluster, tmp_path):
    job = submit(cluster, tmp_path, "killed", max_restarts=0)
    ended = cluster.wait_for(job, "COMPLETED", "FAILED")
    assert (ended["JobState"], ended["Restarts"], ended["ExitCode"]) == ("FAILED", "0", "138:0")
    assert "after 0 restarts" in said(tmp_path, job)


def test_a_cancelled_job_is_not_requeued(cluster, tmp_path):
    job = submit(cluster, tmp_path, "slow", 1)
    cluster.wait_for(job, "RUNNING")
    cluster.cancel(job)
    assert cluster.wait_for(job, "CANCELLED", "PENDING", "COMPLETED", "FAILED")["JobState"] == "CANCELLED"


def test_the_command_submits(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", str(cluster.configuration))
    command = [sys.executable, "-m", "tfaccel.scripts.main", "launch", "--engine=slurm", "--num_workers=2"]
    command += [
        "--workers_per_node=2",
        "--name=said",
        "--",
        "bash",
        "-c",
        'echo "$1 $SLURM_PROCID"',
        "it",
        "it's $HOME",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    job = int(done.stdout.removeprefix("Submitted batch job "))
    assert cluster.wait_for(job, "COMPLETED", "FAILED")["JobState"] == "COMPLETED"
    logs = [(tmp_path / f"said-{job}-worker-{index}.log").read_text() for index in range(2)]
    assert logs == ["it's $HOME 0\n", "it's $HOME 1\n"]
