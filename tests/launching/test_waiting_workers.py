"""Workers that have loaded TensorFlow, and wait for a restart: what they run, and when none may wait."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tfaccel.launching.local_worker import WorkerPlace
from tfaccel.launching.waiting_workers import WaitingWorkers, python_program
from tfaccel.processes.heartbeat import Heartbeat
from tfaccel.processes.process_start import environment_digest

TRAINING = Path(__file__).parents[1] / "training"
GIVEN = {"TFACCEL_LAUNCH_ATTEMPT": "1", "GIVEN": "yes"}
CHANGES = """
import keras, tensorflow
from tfaccel.processes.process_start import changes_since_start
import json
print(json.dumps(changes_since_start()))
"""
PROGRAM = """
import json, os, sys
loaded, variables = "tfaccel.training.train" in sys.modules, [os.environ.get(name) for name in ("OF_ATTEMPT", "GIVEN")]
print(json.dumps([__name__, sys.argv, sys.path[0], loaded, *variables, sys.stdin.read()]), flush=True)
sys.exit(7)
"""


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ([sys.executable, "train.py", "-x"], ["train.py", "-x"]),
        ([sys.executable, "-m", "package.train", "3"], ["-m", "package.train", "3"]),
        ([sys.executable, "-c", "import keras"], []),
        ([sys.executable, "-m"], []),
        ([sys.executable], []),
        ([sys.executable, "-W", "error", "train.py"], []),  # options that only Python's start can take
        (["sh", "train.sh"], []),
        (["no-such-program"], []),
        ([], []),
    ],
)
def test_only_programs_of_this_python_wait(command, found):
    assert python_program(command) == found


def test_scripts_that_are_installed_wait(tmp_path):
    script = tmp_path / "train"
    for first, waits in ((sys.executable, True), ("/bin/sh", False), (f"{sys.executable} -E", False)):
        script.write_text(f"#!{first}\n")
        script.chmod(0o755)
        assert python_program([str(script), "now"]) == ([str(script), "now"] if waits else [])


@pytest.fixture(scope="module")
def changes():
    """What importing Keras and TensorFlow changes in the environment."""
    child = subprocess.run([sys.executable, "-c", CHANGES], capture_output=True, text=True, check=True)
    return json.loads(child.stdout)


def waiting(folder, program, loaded_with, begun_with=None, **fields):
    """One worker that may wait, for a worker that trains and has reported this."""
    folder.mkdir(exist_ok=True)
    workers = WaitingWorkers([sys.executable, *program], [WorkerPlace(0)], folder=folder, shows=False)
    begun_with = environment_digest({**os.environ, **GIVEN}) if begun_with is None else begun_with
    given = {"step": 1, "phase": "training", "begun_with": begun_with, "loaded_with": loaded_with, "was_loaded": True}
    workers.prepare([Heartbeat(**given | fields)], GIVEN)
    return workers


def are_ready(folder):
    deadline = time.monotonic() + 300
    while not (folder / ".waiting-0").exists() and time.monotonic() < deadline:
        time.sleep(0.1)


def ran(workers, folder):
    """The exit status of the worker that has waited, and what its program has found; None if none has waited."""
    taken = workers.take()
    workers.close()
    if not taken:
        return None
    taken[0].begin({"TFACCEL_LAUNCH_ATTEMPT": "2", "OF_ATTEMPT": "second"})
    status = taken[0].process.wait(60)
    taken[0].end()
    return status, json.loads((folder / "worker-0.log").read_text().splitlines()[-1])


def test_a_program_finds_what_it_would_find_without_waiting(tmp_path, changes):
    script = tmp_path / "scripts" / "train.py"
    script.parent.mkdir()
    script.write_text(PROGRAM)
    of_script = waiting(tmp_path / "one", [str(script), "--epochs=3"], changes)
    said = {**changes, "TF_CPP_MIN_LOG_LEVEL": "3"}  # which a script may set before it imports
    of_module = waiting(tmp_path / "two", ["-m", "json.tool", "--help"], said)
    are_ready(tmp_path / "one")
    expected = ["__main__", [str(script), "--epochs=3"], str(script.parent), True, "second", "yes", ""]
    assert ran(of_script, tmp_path / "one") == (7, expected)
    are_ready(tmp_path / "two")
    taken = of_module.take()
    taken[0].begin({})
    assert taken[0].process.wait(60) == 0
    taken[0].end()
    assert (tmp_path / "two" / "worker-0.log").read_text().split()[-1]
    of_module.close()
    assert not list(tmp_path.glob("*/.waiting-*"))


def test_a_worker_that_has_loaded_tensorflow_otherwise_is_not_taken(tmp_path, changes):
    workers = waiting(tmp_path, ["-m", "this"], {**changes, "TF_ENABLE_ONEDNN_OPTS": "0"})
    are_ready(tmp_path)
    assert ran(workers, tmp_path) is None


@pytest.mark.parametrize(
    "reported",
    [
        {"begun_with": "of a program that started itself again"},
        {"loaded_with": None},
        {"step": None},  # it does not train yet
    ],
)
def test_no_worker_waits_where_nothing_is_known(tmp_path, reported):
    fields = {"loaded_with": {}, **reported}
    workers = waiting(tmp_path, ["-m", "this"], **fields)
    assert workers.take() == []
    workers.close()


def test_a_worker_that_has_ended_is_not_taken(tmp_path, changes):
    workers = waiting(tmp_path, ["-m", "this"], changes)
    are_ready(tmp_path)
    workers._waiting[0].process.kill()
    workers._waiting[0].process.wait()
    assert ran(workers, tmp_path) is None


TRAINS = f"""
import os, signal, sys, time
from pathlib import Path
WAITED = "tfaccel.training.train" in sys.modules
ONEDNN
sys.path.insert(0, {str(TRAINING)!r})
import json, keras
import train_workload
from tfaccel import train

first, logs = os.environ["TFACCEL_LAUNCH_ATTEMPT"] == "1", Path(sys.argv[2])

class Killed(keras.callbacks.Callback):
    tfaccel_windows = True

    def on_epoch_end(self, epoch, logs_=None):
        if first and epoch == 1 and len(sys.argv) > 3:
            deadline = time.monotonic() + float(sys.argv[3])
            while len(list(logs.glob(".waiting-?"))) < 2 and time.monotonic() < deadline:
                time.sleep(0.1)
            if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
                os.kill(os.getpid(), signal.SIGKILL)

result = train(train_workload.workload(), train_workload.plan("workers_2"), run_dir=sys.argv[1], epochs=4,
               checkpoint_interval=3, verbose=0, callbacks=[Killed()])
print("result", WAITED, json.dumps([result.history, result.final]), flush=True)
"""


def launched(folder, script, *seconds):
    """Whether each worker has waited, and its result."""
    logs = folder / "logs"
    command = [sys.executable, "-m", "tfaccel.scripts.main", "launch", "--num_workers=2", f"--log_dir={logs}", "--"]
    command += [sys.executable, str(script), str(folder / "run"), str(logs), *seconds]
    child = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert child.returncode == 0, child.stderr[-3000:]
    found = [line[4:].split(" ", 2)[1:] for line in child.stdout.splitlines() if line[4:].startswith("result")]
    assert len(found) == 2
    return [waited == "True" for waited, _ in found], {result for _, result in found}


@pytest.mark.slow
def test_a_restart_gives_the_same_numbers_with_workers_that_have_waited_and_without(tmp_path):
    script = tmp_path / "trains.py"
    script.write_text(TRAINS.replace("ONEDNN", ""))
    _, whole = launched(tmp_path / "whole", script)
    assert launched(tmp_path / "killed", script, "300") == ([True, True], whole)
    script.write_text(TRAINS.replace("ONEDNN", "os.environ['MY_VARIABLE'] = 'set before TensorFlow is loaded'"))
    assert launched(tmp_path / "changed", script, "20") == ([False, False], whole)
