"""Two workers on real Ray clusters of this machine: trained, lost, and started again; and what is refused."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from cluster_training import get_layer_weights, outcome

from tfaccel.errors import LaunchError
from tfaccel.extras.cluster.cluster_job import ClusterJob, RayOptions
from tfaccel.extras.cluster.ray_engine import run_on_ray

HERE = Path(__file__).parent
JOB = ClusterJob(command=("true",), num_workers=2)
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'tfaccel[ray]'")
pytestmark = pytest.mark.timeout(2400)  # on a busy machine, each start of a Ray cluster takes minutes


def refused(folder, **options):
    with pytest.raises(LaunchError) as caught:
        run_on_ray(JOB, RayOptions(log_dir=folder / "logs", **options))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_ray_that_is_not_installed_is_named_with_its_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert refused(tmp_path) == (
        "The engine `ray` needs Ray, which is not installed. Install it: pip install 'tfaccel[ray]'"
    )
    assert list(tmp_path.iterdir()) == []


@needs_ray
def test_an_address_at_which_nothing_listens_is_refused(tmp_path):
    with socket.socket() as taken:  # not listening
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        message = refused(tmp_path, address=address)
    assert message.startswith(f"The Ray cluster at {address} cannot be reached: Connection refused. Check the address,")


@needs_ray
def test_an_address_at_which_something_else_listens_is_refused_in_time(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        message = refused(tmp_path, address=address, connect_seconds=2)
    assert message.startswith(f"The Ray cluster at {address} does not answer within 2 seconds. Check the address,")


@needs_ray
def test_an_address_from_outside_of_the_cluster_is_refused(tmp_path):
    assert "as host:port, such as 10.0.0.1:6379, or auto. Received: 'ray://a:1'." in refused(
        tmp_path, address="ray://a:1"
    )


@needs_ray
def test_a_log_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "logs").write_text("")
    assert "logs cannot be created: there is a file of that name." in refused(tmp_path)


@needs_ray
def test_more_workers_than_cores_are_refused_before_ray_starts(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    many = ClusterJob(command=("true",), num_workers=5000)
    with pytest.raises(LaunchError, match="5000 workers are too many for"):
        run_on_ray(many, RayOptions(log_dir=tmp_path / "logs"))


@pytest.mark.parametrize("name", ["connect_seconds", "wait_seconds", "silence_seconds"])
def test_times_are_above_zero(name):
    with pytest.raises(LaunchError, match=f"`{name}` must be a number of seconds above 0. Received: 0."):
        RayOptions(log_dir="logs", **{name: 0})


def start(*arguments):
    command = [sys.executable, str(HERE / "ray_program.py"), *map(str, arguments)]
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "400"}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment, start_new_session=True, **streams)


def run(*arguments):
    """The status, what each worker said, and the events."""
    with start(*arguments) as process:
        try:
            stdout, stderr = process.communicate(timeout=900)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert stdout, stderr[-5000:]
    told = json.loads(stdout.splitlines()[-1])
    (Path(arguments[1]) / "reported.json").write_text(json.dumps(told["reported"]))
    return told["status"], told["lines"], stderr


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ray")
    status, lines, events = run("local", folder, "well")
    assert (status, "attempt 2" in events) == (0, False)
    assert [line for line in lines if line[0] == 0] != []
    return folder / "well"


@pytest.fixture(scope="module")
def expected(undisturbed, logical_devices):
    return outcome(undisturbed)


@needs_ray
@pytest.mark.slow
def test_metrics_and_checkpoints_are_reported_while_the_run_goes_on(undisturbed):
    reported = json.loads((undisturbed.parent / "reported.json").read_text())
    final = json.loads((undisturbed / "result.json").read_text())["final"]
    assert reported["metrics"] == {"exit_status": 0, **final}
    before, last = reported["kept"]  # the newest two, as in the run directory
    step = before["metrics"]["checkpoint_step"]
    assert 5 <= step <= 36
    wanted = {"config.json", "plan.json", f"checkpoints/step_{step:010d}/arrays.npz"}
    assert wanted <= before["files"].keys()
    assert Path(last["files"]["model.keras"]).read_bytes() == (undisturbed / "model.keras").read_bytes()


@needs_ray
@pytest.mark.slow
def test_after_a_killed_worker_the_run_ends_as_if_nothing_had_happened(expected, tmp_path):
    status, _, events = run("local", tmp_path, "killed")
    assert status == 0
    assert "Worker 1 was killed by SIGKILL" in events
    assert "Ray starts all workers again, from the last checkpoint." in events
    assert outcome(tmp_path / "killed") == expected


@needs_ray
@pytest.mark.slow
def test_a_run_directory_that_is_gone_is_restored_from_what_was_reported(expected, tmp_path):
    status, lines, _ = run("local", tmp_path, "emptied")
    assert status == 0
    assert [0, f"{tmp_path / 'emptied'} was restored from the newest checkpoint that Ray keeps."] in lines
    assert outcome(tmp_path / "emptied") == expected


@needs_ray
@pytest.mark.slow
def test_after_a_stopped_worker_the_run_ends_as_if_nothing_had_happened(expected, tmp_path):
    status, _, events = run("local", tmp_path, "stopped")
    assert status == 0
    assert "Worker 1 gave no sign of life, and was killed by SIGKILL" in events
    assert outcome(tmp_path / "stopped") == expected


@needs_ray
@pytest.mark.slow
def test_after_a_lost_node_the_run_ends_as_if_nothing_had_happened(expected, tmp_path):
    status, _, events = run("lost_node", tmp_path, "slow", 0.4)
    assert (status, "attempt 2" in events) == (0, True)
    assert outcome(tmp_path / "slow") == expected


@needs_ray
@pytest.mark.slow
def test_after_a_lost_node_the_workers_that_are_left_go_on_with_the_same_batches(tmp_path):
    alone = tmp_path / "alone"
    subprocess.run([sys.executable, str(HERE / "cluster_training.py"), f"--run_dir={alone}", "plain"], check=True)
    status, _, events = run("fewer", tmp_path, "plain", 0.4)
    assert (status, "attempt 2: 1 of 2 workers, with the batches of 2; logs in" in events) == (0, True)
    folders = alone, tmp_path / "plain"
    for one, other in zip(*map(get_layer_weights, folders), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    rows = [(folder / "metrics.jsonl").read_text().splitlines() for folder in folders]
    losses = [[json.loads(row)["loss"] for row in lines] for lines in rows]
    assert len(losses[0]) == 3
    np.testing.assert_allclose(*losses, rtol=1e-5)


@needs_ray
@pytest.mark.slow
def test_an_exception_is_not_repeated(tmp_path):
    status, _, events = run("local", tmp_path, "wrong")
    assert (status, "attempt 2" in events) == (1, False)
    assert "Worker 1 ended with status 1. Starting again would not help." in events
    assert "ValueError: what a user may write" in events


@needs_ray
@pytest.mark.slow
def test_a_signal_is_passed_on_to_the_workers(tmp_path):
    with start("local", tmp_path, "slow", 0.5) as process:
        metrics, deadline = tmp_path / "slow" / "metrics.jsonl", time.monotonic() + 120
        reader = threading.Thread(target=process.stderr.read)
        reader.start()
        while not metrics.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        told = json.loads(process.stdout.read().splitlines()[-1])
        reader.join()
    assert told["status"] == 138
    assert len(metrics.read_text().splitlines()) < 3
