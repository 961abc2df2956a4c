"""Trials on a Ray cluster of two nodes: the same as here, also after a killed process and a lost node."""

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tfaccel.errors import LaunchError, SearchError
from tfaccel.tuning.search import search

HERE = Path(__file__).parent
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'tfaccel[ray]'")
pytestmark = pytest.mark.timeout(2400)  # on a busy machine, each start of a Ray cluster takes minutes


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"engine": "rya"}, SearchError, "`engine` must be one of local, ray. Received: engine='rya'. Did you mean"),
        ({"engine_options": {"address": "auto"}}, SearchError, "engine_options are for engine='ray'. Received: {'addr"),
        (
            {"engine": "ray", "engine_options": {"adress": "auto"}},
            SearchError,
            "A search on Ray has no option 'adress'. Did you mean 'address'?",
        ),
        (
            {"engine": "ray", "engine_options": {"cores_per_worker": 0}},
            LaunchError,
            "`cores_per_worker` must be a whole number of at least 1. Received: cores_per_worker=0.",
        ),
        (
            {"engine": "ray", "engine_options": {"address": "ray://a:1"}},
            LaunchError,
            "Give the address of the head of the Ray cluster as host:port, such as 10.0.0.1:6379, or auto.",
        ),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(tmp_path, options, error, message):
    with pytest.raises(error) as caught:
        search("tabular_classification", run_dir=tmp_path / "run", **options)
    assert str(caught.value).startswith(message)
    assert list(tmp_path.iterdir()) == []


def test_without_ray_its_line_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(LaunchError, match=r"^The engine `ray` needs Ray, which is not installed\. Install it: pip"):
        search("tabular_classification", run_dir=tmp_path / "run", engine="ray")


def trials(where, folder):
    command = [sys.executable, str(HERE / "ray_search.py"), where, str(folder)]
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(HERE)}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, cwd=HERE, start_new_session=True, **streams) as process:
        try:
            stdout, stderr = process.communicate(timeout=900)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert process.returncode == 0, stderr[-5000:]
    return json.loads(stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return trials("local", tmp_path_factory.mktemp("local"))["rows"]


@needs_ray
@pytest.mark.slow
def test_trials_on_two_nodes_are_those_of_this_machine(expected, tmp_path):
    found = trials("ray", tmp_path)
    assert found["rows"] == expected
    wanted = ["chief.log", "worker-0.log", "worker-0-fork_server.log", "worker-1.log", "worker-1-fork_server.log"]
    assert [name for name in wanted if name not in found["logs"]] == []


@needs_ray
@pytest.mark.slow
def test_a_killed_process_and_a_lost_node_cost_a_trial_each_that_is_tried_again(expected, tmp_path):
    found = trials("losses", tmp_path)
    assert (found["killed"], found["nodes"]) == (1, 1)
    assert found["rows"] == expected
