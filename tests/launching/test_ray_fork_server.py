"""Processes on a real Ray cluster of this machine: messages, a killed one, a lost actor, a place that is given back."""

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec

import pytest

PROGRAM = """
import contextlib, json, os, time
from pathlib import Path
import ray
from tfaccel.extras.cluster.cluster_job import ClusterJob
from tfaccel.extras.cluster.ray_engine import connected
from tfaccel.extras.cluster.ray_workers import RayForkServer

stack = contextlib.ExitStack()
stack.enter_context(connected(ClusterJob(command=("true",), num_workers=1), None))
server = RayForkServer([], environment={}, cores=1, gpus=0)

def next_of(child):
    until = time.monotonic() + 400
    while time.monotonic() < until:
        sender, message = server.next_message(0.5)
        if sender is child:
            return message
    raise TimeoutError

def started(kind):
    return server.start(kind, "echo_process", [], {"GREETING": "hello"})

told = {}
first = started("worker-0")
first.send([1, 2])
told["answer"] = next_of(first)
told["placed"] = server.waiting_seconds(first) == 0
server.kill(first)
told["killed"] = [next_of(first), first.how_it_ended()]
second = started("worker-0")
second.send("again")
told["second"] = next_of(second)
waiting = started("worker-1")  # there is one core
server.next_message(1.0)
told["waits"] = server.waiting_seconds(waiting) > 0
ray.kill(second.host.actor)
told["lost"] = [next_of(second), second.how_it_ended()]
waiting.send("mine")
told["waited"] = next_of(waiting)
server.release(waiting)
third = started("worker-0")
third.send("released")
told["third"] = next_of(third)
server.save_logs(Path("logs"))
server.close()
stack.close()
print(json.dumps({**told, "logs": sorted(os.listdir("logs"))}))
"""
ECHO = """
import os

def main(connection, arguments):
    print("began", flush=True)
    while True:
        connection.send([os.environ["GREETING"], connection.recv()])
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'tfaccel[ray]'")
def test_processes_of_actors(tmp_path):
    (tmp_path / "echo_process.py").write_text(ECHO)
    (tmp_path / "logs").mkdir()
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(tmp_path)}
    environment.pop("RAY_ADDRESS", None)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, env=environment, cwd=tmp_path, start_new_session=True, **streams) as process:
        try:
            stdout, stderr = process.communicate(timeout=1000)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert process.returncode == 0, stderr[-5000:]
    assert json.loads(stdout.splitlines()[-1]) == {
        "answer": ["hello", [1, 2]],
        "placed": True,
        "killed": [None, "was killed by SIGKILL (often: out of memory)"],
        "second": ["hello", "again"],
        "waits": True,
        "lost": [None, "was lost with its node, or the Ray actor there"],
        "waited": ["hello", "mine"],
        "third": ["hello", "released"],
        "logs": ["worker-0-fork_server.log", "worker-0.log", "worker-1-fork_server.log", "worker-1.log"],
    }
