"""SIGTERM and Ctrl-C stop a run with a checkpoint; resumed, it ends as if it had never been stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tfaccel.errors import RunDirError, TfaccelError
from tfaccel.training.run.run_dir import checked_place
from tfaccel.training.run.stop_signals import grace_seconds

HERE = Path(__file__).parent
QUICK = ("batch 1.2 TERM", "validation 0.0 INT")
OTHERS = ("begin TERM", "batch 0.0 INT", "batch 2.8 TERM", "validation 1.0 TERM", "end 1 TERM", "trained INT")


def outcomes(run_python, *cases):
    child = run_python(f"from stopping_program import main\nmain(*{cases!r})", env={"PYTHONPATH": str(HERE)})
    return json.loads(child.stdout.splitlines()[-1])


def check(outcomes):
    whole = outcomes.pop("whole")
    for case, (kind, text, left, resumed) in outcomes.items():
        name = "SIGTERM" if case.endswith("TERM") else "Ctrl-C"
        assert kind == ("RunStopped" if name == "SIGTERM" else "KeyboardInterrupt"), case
        assert text.startswith(f"Training was stopped by {name} after step "), case
        assert f"the checkpoint is RUN/checkpoints/{left[-1]}. To continue: the same command with --resume=auto" in text
        assert resumed == whole, case


def test_stopped_run_ends_as_if_it_had_never_been_stopped(run_python):
    check(outcomes(run_python, *QUICK))


@pytest.mark.slow
def test_at_any_moment(run_python):
    check(outcomes(run_python, *OTHERS))


COMMAND = [sys.executable, "-m", "tfaccel.scripts.main"]
TRAIN = ["train", "--recipe=image_classification", "--run_dir=run"]


def stopped_by(number, folder, *words, count=1):
    """Exit status, standard error and checkpoints of a training command that gets a signal once it has checkpoints."""
    child = subprocess.Popen([*COMMAND, *words], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not list((folder / "run/checkpoints").glob("step_*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    for _ in range(count):
        child.send_signal(number)
        time.sleep(0.6)
    _, errors = child.communicate(timeout=120)
    return child.returncode, errors, sorted(path.name for path in (folder / "run/checkpoints").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status", "cause"), [(signal.SIGTERM, 138, "SIGTERM"), (signal.SIGINT, 130, "Ctrl-C")]
)
def test_command_says_how_to_continue(tmp_path, number, status, cause):
    ended, errors, left = stopped_by(number, tmp_path, *TRAIN, "--epochs=400", "--quiet")
    assert ended == status, errors
    assert (
        f"Training was stopped by {cause} after step {int(left[-1][5:])}; the checkpoint is run/checkpoints/{left[-1]}."
        in errors
    )
    assert all(not name.startswith(".") for name in left)


@pytest.mark.slow
def test_both_workers_stop_at_one_step(tmp_path):
    words = ["launch", "--num_workers=2", "--log_dir=logs", "--", *COMMAND, *TRAIN, "--epochs=400", "--quiet"]
    ended, errors, left = stopped_by(signal.SIGTERM, tmp_path, *words)
    assert ended == 138, errors
    said = [(tmp_path / f"logs/worker-{index}.log").read_text() for index in range(2)]
    assert all(f"Training was stopped by SIGTERM after step {int(left[-1][5:])};" in text for text in said), said


@pytest.mark.slow
def test_signal_to_one_of_two_workers_stops_both(tmp_path):
    words = ["launch", "--num_workers=2", "--max_restarts=0", "--log_dir=logs", "--"]
    code = "import os, sys; open(os.environ['TF_CONFIG'][-3:-2] + '.pid', 'w').write(str(os.getpid())); "
    code += "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    words += [sys.executable, "-c", code, *COMMAND[1:], *TRAIN, "--epochs=400", "--quiet"]
    child = subprocess.Popen(
        [*COMMAND, *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while not list((tmp_path / "run/checkpoints").glob("step_*")):
        time.sleep(0.05)
    os.kill(int((tmp_path / "1.pid").read_text()), signal.SIGTERM)
    _, errors = child.communicate(timeout=120)
    assert child.returncode == 138, errors
    said = [(tmp_path / f"logs/worker-{index}.log").read_text() for index in range(2)]
    assert "stopped by SIGTERM after step" in said[1] and "stopped by SIGTERM on another worker after step" in said[0]


def test_resume_must_needs_a_run(tmp_path):
    with pytest.raises(RunDirError, match=r'resume="must" .* continues a run, and the run directory .* holds none\.'):
        checked_place(tmp_path / "run", "must")
    with pytest.raises(RunDirError, match=r"Received: resume='autto'\. Did you mean 'auto'\?"):
        checked_place(tmp_path / "run", "autto")


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf"])
def test_grace_time_that_is_none_is_refused(text):
    with pytest.raises(
        TfaccelError, match=f"TFACCEL_GRACE_SECONDS must be a number of seconds above 0. Received: .*={text}"
    ):
        grace_seconds({"TFACCEL_GRACE_SECONDS": text})
