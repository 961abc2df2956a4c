"""Training on two launched workers: whatever happens to one of them, the run ends as if nothing had happened."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

TRAINING = Path(__file__).parents[1] / "training"
CODE = f"""
import json, os, signal, sys
sys.path.insert(0, {str(TRAINING)!r})
import train_workload
import keras
from tfaccel import train

run_dir, fault, victim = sys.argv[1:]
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
first = os.environ["TFACCEL_LAUNCH_ATTEMPT"] == "1"

class Fault(keras.callbacks.Callback):
    tfaccel_windows = True
    epoch = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if first and self.epoch == 1 and index == int(victim) and fault != "none":
            if fault == "exception":
                raise ValueError("a mistake in the callback")
            print("now", fault, flush=True)
            os.kill(os.getpid(), getattr(signal, fault))

def listening():
    ports = [int(one.rpartition(":")[2]) for one in json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]]
    rows = [line.split() for name in ("tcp", "tcp6") for line in open(f"/proc/net/{{name}}").read().splitlines()[1:]]
    own = [row[1] for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == ports[index]]
    return [address.rpartition(":")[0] for address in own]

class Listening(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        print("listening", listening(), flush=True)

result = train(train_workload.workload(), train_workload.plan("workers_2"), run_dir=run_dir, epochs=3,
               checkpoint_interval=3, verbose=0, callbacks=[Fault(), Listening()])
print("result", json.dumps([result.history, result.final]), flush=True)
"""
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}


def launched(folder, fault="none", victim=1, *flags):
    """Exit status, the results that the workers printed, standard error, and seconds from the fault to the restart."""
    command = [sys.executable, "-m", "tfaccel.scripts.main", "launch", "--num_workers=2", f"--log_dir={folder}/logs"]
    command += [*flags, "--", sys.executable, "-c", CODE, str(folder / "run"), fault, str(victim)]
    child = subprocess.run(command, capture_output=True, text=True, timeout=300)
    results = [line[4:] for line in child.stdout.splitlines() if line[4:].startswith("result")]
    return child.returncode, results, child


@pytest.mark.slow
def test_workers_listen_on_this_machine_only(tmp_path):
    status, results, child = launched(tmp_path)
    assert (status, len(set(results))) == (0, 1), child.stderr[-3000:]
    lines = [line[4:] for line in child.stdout.splitlines() if line[4:].startswith("listening")]
    found = [json.loads(line.removeprefix("listening ").replace("'", '"')) for line in lines]
    assert len(found) == 2 and all(addresses and set(addresses) <= LOOPBACK for addresses in found)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_killed_worker_is_noticed_and_the_run_ends_as_if_nothing_had_happened(tmp_path, victim):
    _, whole, _ = launched(tmp_path / "whole")
    status, results, child = launched(tmp_path, "SIGKILL", victim)
    assert (status, set(results)) == (0, set(whole)), child.stderr[-3000:]
    assert f"launch: Worker {victim} of 2 was killed by SIGKILL (often: out of memory). All workers" in child.stderr
    assert "(restart 1 of 3)" in child.stderr


@pytest.mark.slow
def test_stopped_worker_is_named_within_30_seconds(tmp_path):
    _, whole, _ = launched(tmp_path / "whole")
    started = time.monotonic()
    status, results, child = launched(tmp_path, "SIGSTOP", 1)
    assert (status, set(results)) == (0, set(whole)), child.stderr[-3000:]
    assert "launch: Worker 1 of 2 has given no sign of life for " in child.stderr
    assert time.monotonic() - started < 120


@pytest.mark.slow
def test_exception_in_a_callback_is_shown_once_and_is_final(tmp_path):
    status, _, child = launched(tmp_path, "exception", 1)
    assert status == 1
    # On a busy machine, TensorFlow takes longer to leave its cluster than the launcher waits.
    ended = r"launch: Worker 1 of 2 (ended with status 1|raised an exception, and did not end within 5 s)\. Starting "
    last = child.stderr[re.search(ended + r"again would not help\.", child.stderr).start() :]
    assert last.count("ValueError: a mistake in the callback") == 1
    assert last.rstrip().endswith("ValueError: a mistake in the callback")
