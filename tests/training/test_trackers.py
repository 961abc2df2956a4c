"""`--callbacks` and `--log_to`: own callbacks and experiment trackers from the command line, resumed runs included.

Trackers are not among tfaccel's dependencies: each is tested where it is installed.
"""

import json
import subprocess
import sys
import warnings

import pytest

from tfaccel.errors import VersionError
from tfaccel.scripts.main import main
from tfaccel.scripts.train_flags import TRACKERS, check_trackers

OWN = """
import keras

def several():
    return [keras.callbacks.CSVLogger("log.csv", append=True)]

def one():
    return keras.callbacks.LambdaCallback(on_train_begin=lambda logs: print("begins"))

def wrong():
    return 3

def workload():
    import numpy as np
    import tfaccel

    def build_model():
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])

    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    data = {"validation_data": (x, x[:, :1]), "name": "sums"}
    return tfaccel.Workload.of(build_model, x, x[:, :1], batch_size=32, optimizer="sgd", loss="mse", **data)
"""
TRAIN = ("train", "--workload=own_callbacks:workload", "--quiet", "--run_dir=run")


@pytest.fixture
def train(tmp_path):
    (tmp_path / "own_callbacks.py").write_text(OWN)

    def run(*arguments):
        command = [sys.executable, "-m", "tfaccel", *TRAIN, *arguments]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return ended.returncode, ended.stdout, ended.stderr

    return run


def test_own_callbacks_are_called(train, tmp_path):
    status, out, _ = train("--epochs=2", "--callbacks=own_callbacks:several", "--callbacks=own_callbacks:one")
    assert (status, "begins" in out) == (0, True)
    assert [line.split(",")[0] for line in (tmp_path / "log.csv").read_text().splitlines()] == ["epoch", "0", "1"]


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--callbacks=own_callbacks", "--callbacks is written --callbacks=package.module:function."),
        ("--callbacks=own_callbacks:severl", "Module 'own_callbacks' has no 'severl'. Did you mean 'several'?"),
        ("--callbacks=own_callbacks:wrong", "`callbacks` must be a list of Keras callbacks. Received: 3."),
        ("--log_to=wandbb", "There is no tracker 'wandbb'. Did you mean 'wandb'?"),
        ("--log_to=comet", "There is no tracker 'comet'. Trackers: tensorboard, wandb, mlflow, dvclive."),
    ],
)
def test_wrong_ones_are_one_line(tmp_path, monkeypatch, capsys, flag, message):
    (tmp_path / "own_callbacks.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["tfaccel", *TRAIN, "--epochs=1", flag]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_tracker_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr("tfaccel.scripts.train_flags.find_spec", lambda name: None)
    with pytest.raises(VersionError, match=r"--log_to=mlflow needs the package mlflow\. .*pip install mlflow"):
        check_trackers(["mlflow"])


def logged(tracker, folder):
    """What a tracker has kept: the epochs of val_loss, a field of the plan, and the final loss."""
    if tracker == "dvclive":
        lines = (folder / "run/dvclive/plots/metrics/val_loss.tsv").read_text().splitlines()[1:]
        parameters = (folder / "run/dvclive/params.yaml").read_text()
        final = json.loads((folder / "run/dvclive/metrics.json").read_text())["final_loss"]
        return [int(line.split()[0]) for line in lines], "plan.dtype_policy: float32" in parameters, final
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow's own, of its libraries
        return of_mlflow(folder)


def of_mlflow(folder):
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    (run,) = mlflow.search_runs(output_format="list")
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "val_loss")
    is_planned = run.data.params["plan.dtype_policy"] == "float32"
    return [metric.step for metric in history], is_planned, run.data.metrics["final_loss"]


@pytest.mark.slow
@pytest.mark.parametrize("tracker", TRACKERS[1:])
def test_a_run_that_goes_on_is_one_record(train, tmp_path, monkeypatch, tracker):
    pytest.importorskip(tracker)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    flags = (f"--log_to={tracker},tensorboard", "--dtype_policy=float32", "--resume=extend")
    for epochs in (2, 3):
        status, _, said = train(*flags, f"--epochs={epochs}")
        assert status == 0, said[-2000:]
    final = json.loads((tmp_path / "run/result.json").read_text())["final"]["loss"]
    if tracker == "wandb":
        folders = list((tmp_path / "wandb").glob("offline-run-*"))
        assert len(folders) == 2
        assert len({folder.name.rsplit("-", 1)[1] for folder in folders}) == 1  # one id, under which both are one run
        return
    assert logged(tracker, tmp_path) == ([0, 1, 2], True, pytest.approx(final))
