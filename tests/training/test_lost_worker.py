"""When a worker is killed, the other names it and says how to resume; both resume, also without a shared disk."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tfaccel.processes.local_cluster import cluster_environments

HERE = Path(__file__).parent
CODE = f"""
import json, os, signal, sys
sys.path.insert(0, {str(HERE)!r})
import train_workload
from tfaccel import train
from tfaccel.errors import TfaccelError

run_dir, place, victim = sys.argv[1:]
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]

def callbacks():
    import keras

    class Death(keras.callbacks.Callback):
        tfaccel_windows = True
        epoch = 0

        def at(self, here):
            if self.epoch == 2 and here == place and index == int(victim):
                os.kill(os.getpid(), signal.SIGKILL)

        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch
        def on_train_batch_begin(self, batch, logs=None):
            self.at("training")
        def on_test_begin(self, logs=None):
            self.at("evaluation")
        def on_epoch_end(self, epoch, logs=None):
            self.at("checkpoint")
        def on_train_end(self, logs=None):
            self.at("end")

    return [Death()]

try:
    work = train_workload.workload()
    result = train(work, train_workload.plan("workers_2"), run_dir=run_dir, epochs=3, checkpoint_interval=3, verbose=0,
                   resume="auto", callbacks=callbacks())
except TfaccelError as error:
    print(type(error).__name__, error, flush=True)
    sys.exit(error.exit_status)
print(json.dumps([result.history, result.final]), flush=True)
"""


def run(folder, place="never", victim=1, *, shared=True):
    """Exit status and last line of each of two workers, which share a run directory or have separate ones."""
    folders = [folder / ("run" if shared else f"run_{index}") for index in range(2)]
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", CODE, str(path), place, str(victim)],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for path, environment in zip(folders, cluster_environments(2), strict=True)
    ]
    try:
        ended = [worker.communicate(timeout=300) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    for worker, (out, err) in zip(workers, ended, strict=True):
        assert worker.returncode in (0, 138, -signal.SIGKILL), out + err[-3000:]
    return [(worker.returncode, out.strip().splitlines()[-1:]) for worker, (out, _) in zip(workers, ended, strict=True)]


PLACES = ("training", "evaluation", "checkpoint", "end")


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("place", PLACES)
def test_killed_worker_is_named_with_what_to_do(tmp_path, place, victim):
    ended = run(tmp_path, place, victim)
    status, (line,) = ended[1 - victim]
    assert (ended[victim][0], status) == (-signal.SIGKILL, 138)
    assert line.startswith(f"ClusterError Worker {victim} (127.0.0.1:")
    assert f"is lost: worker {1 - victim} cannot continue." in line
    assert f"(--resume=auto): training continues from the newest checkpoint in {tmp_path / 'run'}." in line


@pytest.mark.slow
def test_workers_without_a_common_disk_go_on_where_the_chief_was(tmp_path):
    stopped = run(tmp_path, "training", 1, shared=False)
    assert stopped[0][0] == 138
    assert list((tmp_path / "run_0/checkpoints").iterdir())
    assert not (tmp_path / "run_1").exists()
    resumed = run(tmp_path, shared=False)
    whole = run(tmp_path, shared=True)
    assert [status for status, _ in resumed + whole] == [0] * 4
    results = [json.loads(line) for _, (line,) in resumed + whole]
    assert results[0] == results[1] == results[2] == results[3]
    assert not (tmp_path / "run_1").exists()
