"""Local workers: their place in the cluster, their output, and that none outlives the others."""

import json
import signal
import socket
import subprocess
import threading

import pytest
from process_cases import is_running, python, wait_until_ended

from tfaccel.errors import TfaccelError
from tfaccel.processes.local_cluster import (
    WorkerError,
    cluster_environments,
    free_ports,
    run_local_cluster,
    run_workers,
)


def run(code, environments=({},), time_limit_seconds=60, **options):
    return run_workers(python(code), environments=environments, time_limit_seconds=time_limit_seconds, **options)


def test_ports_are_free_and_different():
    ports = free_ports(20)
    assert len(set(ports)) == 20
    for port in ports:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))


def test_a_port_in_use_is_not_taken(monkeypatch):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        taken = listener.getsockname()[1]
        monkeypatch.setattr("tfaccel.processes.local_cluster._PORTS", range(taken, taken + 1))
        with pytest.raises(WorkerError, match=r"Only 0 of 1 ports are free on 127\.0\.0\.1\."):
            free_ports(1)


def test_environments_describe_one_cluster():
    configs = [json.loads(environment["TF_CONFIG"]) for environment in cluster_environments(3)]
    assert [config["task"] for config in configs] == [{"type": "worker", "index": index} for index in range(3)]
    assert configs[0]["cluster"] == configs[1]["cluster"] == configs[2]["cluster"]
    addresses = configs[0]["cluster"]["worker"]
    assert len(set(addresses)) == 3
    assert all(address.startswith("127.0.0.1:") for address in addresses)


def test_workers_know_their_place_and_output_is_kept():
    code = "import json, os, sys; c = json.loads(os.environ['TF_CONFIG']); print(c['task']['index']);"
    code += "print('careful', file=sys.stderr)"
    workers = run_local_cluster(python(code), num_workers=2, time_limit_seconds=60)
    assert [(worker.stdout, worker.stderr) for worker in workers] == [("0\n", "careful\n"), ("1\n", "careful\n")]


def test_environment_is_added_and_removed(monkeypatch):
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setenv("REMOVED", "1")
    code = "import os; print([os.environ.get(name) for name in ('KEPT', 'REMOVED', 'ADDED')])"
    (worker,) = run(code, [{"REMOVED": None, "ADDED": "2"}])
    assert worker.stdout == "['1', None, '2']\n"


def test_lines_are_handed_on_while_a_worker_runs(tmp_path):
    """The worker waits for a file that is made when its first line arrives."""
    code = (
        "import os, sys, time\nprint('ready', flush=True)\nwhile not os.path.exists(os.environ['GO']): time.sleep(0.01)"
    )
    lines = []

    def on_line(index, line):
        lines.append((index, line))
        (tmp_path / "go").touch()

    run(code, [{"GO": str(tmp_path / "go")}] * 2, on_line=on_line)
    assert sorted(lines) == [(0, "ready\n"), (1, "ready\n")]


FAIL_OR_SLEEP = """
import os, subprocess, sys, time
print(os.getpid(), flush=True)
if os.environ["NUMBER"] == "1":
    print("it broke", file=sys.stderr)
    sys.exit(3)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


def test_the_first_failure_ends_all_and_shows_its_output():
    pids = []
    with pytest.raises(WorkerError, match=r"(?s)Worker 1 of 2 ended with status 3\. .*it broke") as caught:
        run(FAIL_OR_SLEEP, [{"NUMBER": "0"}, {"NUMBER": "1"}], on_line=lambda index, line: pids.append(int(line)))
    assert (caught.value.index, caught.value.output) == (1, "it broke\n")
    assert isinstance(caught.value, TfaccelError)
    assert pids
    assert all(wait_until_ended(pid) for pid in pids)


def test_a_killed_worker_is_named_with_its_signal():
    with pytest.raises(WorkerError, match=r"Worker 0 of 1 was killed by SIGSEGV \(invalid memory access\)\."):
        run(f"import os; os.kill(os.getpid(), {int(signal.SIGSEGV)})")


def test_time_limit():
    code = "import sys, time; print('slow', file=sys.stderr, flush=True); time.sleep(600)"
    pattern = r"(?s)The workers were ended after 1 seconds; worker 0 still ran\..*slow"
    with pytest.raises(WorkerError, match=pattern) as caught:
        run(code, time_limit_seconds=1)
    assert caught.value.index is None


def test_a_worker_that_ignores_the_request_to_end_is_killed(monkeypatch):
    monkeypatch.setattr("tfaccel.processes.local_cluster._GRACE_SECONDS", 0.2)
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    cancelled = threading.Event()
    with pytest.raises(WorkerError, match="the run was cancelled"):
        run(code, cancelled=cancelled, on_line=lambda index, line: cancelled.set())


def test_standard_input_ends_with_the_starting_process(tmp_path):
    """A worker that reads its standard input can end although the process that started it was killed."""
    worker = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read()"
    starter = f"""
import sys
from tfaccel.processes.local_cluster import run_workers
show = lambda index, line: print(line, end="", flush=True)
run_workers([sys.executable, "-c", {worker!r}], environments=[{{}}], time_limit_seconds=600, on_line=show)
"""
    with subprocess.Popen(python(starter), stdout=subprocess.PIPE, text=True) as process:
        pid = int(process.stdout.readline())
        assert is_running(pid)
        process.kill()
    assert wait_until_ended(pid)
