"""`tfaccel.train(..., engine=..., num_workers=2)`: the same result as in this process, and errors with their cause."""

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import tfaccel
from tfaccel.errors import LaunchError, PlanError, RunDirError

SCRIPT = Path(__file__).with_name("workers_script.py")
ENGINES = [
    "local",
    pytest.param("ray", marks=pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: 'tfaccel[ray]'")),
]
pytestmark = pytest.mark.timeout(2400)  # on a busy machine, each start of a Ray cluster takes minutes


def train(run_dir, **options):
    return tfaccel.train("tabular_classification", run_dir=run_dir, epochs=1, **options)


def test_what_contradicts_itself_is_refused_before_anything_is_written(tmp_path):
    plan = tfaccel.Plan(strategy="none", devices=("CPU:0",), global_batch_size=8)
    with pytest.raises(PlanError, match=r"^The plan is for 1 workers\. Received: num_workers=2\. Leave out the plan,"):
        train(tmp_path / "run", plan=plan, num_workers=2)
    with pytest.raises(
        LaunchError, match=r"^`engine` must be one of local, ray\. Received: engine='rya'\. Did you mean"
    ):
        train(tmp_path / "run", engine="rya", num_workers=2)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunDirError, match="is not empty and holds no run of tfaccel"):
        train(tmp_path, engine="ray", num_workers=2)


def run(*arguments, status=0):
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "400"}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, start_new_session=True, **streams) as process:
        try:
            stdout, stderr = process.communicate(timeout=900)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert process.returncode == status, stderr[-5000:]
    return (json.loads(stdout.splitlines()[-1]) if status == 0 else None), stderr


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_workers_train_a_users_model_as_this_process_does(tmp_path, engine):
    here, _ = run(tmp_path / "here", "here", "own")
    there, _ = run(tmp_path / "there", engine, "own")
    assert there["result"]["plan"]["num_workers"] == 2
    assert there["result"]["run_dir"] == str(tmp_path / "there")
    losses = [found["result"]["history"]["loss"] for found in (here, there)]
    np.testing.assert_allclose(*losses, rtol=1e-3)
    for one, other in zip(here["weights"], there["weights"], strict=True):  # given back to the user's model
        np.testing.assert_allclose(one, other, rtol=1e-2, atol=1e-3)


@pytest.mark.slow
def test_logits_in_chunks_on_workers_train_as_all_logits_in_this_process(tmp_path):
    here, _ = run(tmp_path / "here", "here", "tokens")
    there, _ = run(tmp_path / "there", "local", "chunks")
    found = {name: there["result"]["plan"][name] for name in ("num_workers", "logit_chunks")}
    assert found == {"num_workers": 2, "logit_chunks": 5}
    for name, values in here["result"]["history"].items():
        if "loss" in name or "accuracy" in name:
            np.testing.assert_allclose(there["result"]["history"][name], values, rtol=1e-5)
    for one, other in zip(here["weights"], there["weights"], strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_an_exception_in_a_callback_is_shown(tmp_path, engine):
    _, stderr = run(tmp_path / "run", engine, "fails", status=1)
    assert f"LaunchError: Training on 2 workers failed; logs are in {tmp_path / 'run'}-logs." in stderr
    assert "ValueError: what a callback may raise" in stderr
