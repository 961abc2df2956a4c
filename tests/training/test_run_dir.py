"""The run directory: what it may contain, and atomic writes of files."""

import errno
import fcntl
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tfaccel.errors import RunDirError
from tfaccel.files import finite, whole_file, write_json
from tfaccel.training.run import run_lock
from tfaccel.training.run.checkpoint_files import checkpoint_weights, load_newest, save_checkpoint
from tfaccel.training.run.run_dir import RunDir

CONFIG = {"recipe": "small", "epochs": 3, "seed": 0}


def started(path):
    RunDir(path, CONFIG).start({"strategy": "none"})
    return path


def test_a_name_that_is_not_utf_8_is_refused(tmp_path):
    with pytest.raises(RunDirError, match=r"must be UTF-8\. Received: .*/M\\xfcller"):
        RunDir(tmp_path / os.fsdecode(b"M\xfcller"), CONFIG)


def test_new_and_empty_directories_are_taken(tmp_path):
    for path in (tmp_path, tmp_path / "a" / "b"):
        run_dir = RunDir(path, CONFIG, resume="auto")
        assert not run_dir.resumes
    assert not (tmp_path / "a").exists()  # nothing is created before `start`


def test_a_directory_that_cannot_be_written_is_refused():
    with pytest.raises(RunDirError, match=r"/proc/1/none cannot be created: /proc/1 is not a writable folder\."):
        RunDir("/proc/1/none", CONFIG)


@pytest.mark.parametrize("path", ["file", "file/run", "file/a/b"])
def test_place_in_a_file_is_refused(tmp_path, path):
    (tmp_path / "file").write_text("kept")
    with pytest.raises(RunDirError, match=r"is a file: |cannot be created: .*/file is not a writable folder"):
        RunDir(tmp_path / path, CONFIG)


@pytest.fixture
def without_locks(monkeypatch):
    """A file system without locks."""

    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)


@pytest.fixture
def locks_of_files(monkeypatch):
    """A file system that locks files only, such as NFS."""
    lock = fcntl.flock

    def only_files(descriptor, operation):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EBADF, "Bad file descriptor")
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", only_files)


@pytest.mark.parametrize("locks", ["locks_of_folders", "locks_of_files", "without_locks"])
def test_two_runs_at_once_are_refused_and_the_lock_of_a_dead_one_is_none(tmp_path, run_python, request, locks):
    has_locks = locks != "without_locks"
    if locks != "locks_of_folders":
        request.getfixturevalue(locks)
    path = tmp_path / "run"
    first, second = RunDir(path, CONFIG), RunDir(path, CONFIG)
    first.start({})
    with pytest.raises(RunDirError, match=r"Another run is using the run directory .*Wait for it to end"):
        second.start({})
    with pytest.raises(RunDirError, match="Another run is using"):
        RunDir(path, CONFIG, resume="auto").start({})
    first.close()
    with pytest.raises(RunDirError, match=r"has just written to the run directory .*\. Choose a new one"):
        second.start({})
    assert RunDir(path, CONFIG, resume="auto").start({}) is None
    run_python(
        f"""
import errno, fcntl, os
def refuse(descriptor, operation):
    raise OSError(errno.ENOLCK, "No locks available")
if not {has_locks}:
    fcntl.flock = refuse
from tfaccel.training.run.run_dir import RunDir
run_dir = RunDir({str(path)!r}, {CONFIG!r}, resume="auto")
run_dir.start({{}})
os.kill(os.getpid(), 9)
""",
        check=False,
    )
    RunDir(path, CONFIG, resume="auto").start({})


def test_without_locks_the_directory_of_a_suspended_process_is_taken_over(tmp_path, without_locks, monkeypatch, caplog):
    """The process seems to be on another machine, of which nothing is known but that it renews its lease."""
    code = f"""
import errno, fcntl, time
from pathlib import Path
def refuse(descriptor, operation):
    raise OSError(errno.ENOLCK, "No locks available")
fcntl.flock = refuse
from tfaccel.training.run import run_lock
run_lock.STALE_SECONDS, run_lock.RENEWAL_SECONDS = 3.0, 0.5
lock = run_lock.RunLock(Path({str(tmp_path)!r}))
print("ready", flush=True)
while lock.taken_by is None:
    time.sleep(0.1)
print(lock.taken_by, flush=True)
lock.release()
"""
    monkeypatch.setattr(run_lock, "STALE_SECONDS", 3.0)
    monkeypatch.setattr(run_lock, "RENEWAL_SECONDS", 0.5)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "ready\n"
        file = tmp_path / ".owner.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "host": "other", "place": "other"}))
        with pytest.raises(RunDirError, match=rf"Another run is using .* \(process {child.pid} on other, since"):
            run_lock.RunLock(tmp_path)
        child.send_signal(signal.SIGSTOP)
        with caplog.at_level("WARNING", logger="tfaccel"):
            lock = run_lock.RunLock(tmp_path)
        assert caplog.messages[-1].endswith("was left by a process that has ended; it is taken over.")
        assert "Waiting for up to 3 seconds" in caplog.messages[-2]
        child.send_signal(signal.SIGCONT)
        assert child.stdout.readline().startswith(f"process {os.getpid()} on ")
        assert child.wait() == 0
    assert json.loads(file.read_text())["pid"] == os.getpid()
    lock.release()
    assert run_lock.own_files(os.listdir(tmp_path))


def test_two_processes_that_begin_at_once_leave_one_run(tmp_path):
    code = f"""
import sys, time
from tfaccel.training.run.run_dir import RunDir
run_dir = RunDir({str(tmp_path / "run")!r}, {CONFIG!r})
print("ready", flush=True)
sys.stdin.readline()
run_dir.start({{}})
time.sleep(1)
"""
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for child in children:
        child.stdout.readline()
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    errors = [child.communicate(timeout=60)[1] for child in children]
    assert sorted(child.returncode for child in children) == [0, 1, 1, 1]
    assert sum("RunDirError: Another run" in error for error in errors) == 3


@pytest.mark.parametrize("resume", ["never", "auto"])
def test_file_is_refused(tmp_path, resume):
    (tmp_path / "file").write_text("kept")
    with pytest.raises(RunDirError, match=r"is a file: .*Give the path of a directory"):
        RunDir(tmp_path / "file", CONFIG, resume=resume)
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize("resume", ["never", "auto"])
def test_other_files_are_refused(tmp_path, resume):
    (tmp_path / "notes.txt").write_text("kept")
    with pytest.raises(RunDirError, match=r"is not empty and holds no run of tfaccel. Choose a new directory"):
        RunDir(tmp_path, CONFIG, resume=resume)


def test_run_is_not_overwritten(tmp_path):
    started(tmp_path / "run")
    with pytest.raises(RunDirError, match=r'already holds a run. Choose a new one, or .*resume="auto"'):
        RunDir(tmp_path / "run", CONFIG)


def test_same_run_is_resumed(tmp_path):
    assert RunDir(started(tmp_path / "run"), dict(CONFIG), resume="auto").resumes


@pytest.mark.parametrize(("name", "value"), [("epochs", 4), ("recipe", "other"), ("new", 1)])
def test_another_run_is_refused_by_name(tmp_path, name, value):
    path = started(tmp_path / "run")
    text = f"holds another run: {name} is {CONFIG.get(name)!r} there and {value!r} here"
    with pytest.raises(RunDirError, match=re.escape(text)):
        RunDir(path, {**CONFIG, name: value}, resume="auto")


def test_other_options_are_refused_by_name(tmp_path):
    path = tmp_path / "run"
    RunDir(path, {**CONFIG, "options": {"learning_rate": 0.1, "ema": False}}).start({})
    assert RunDir(path, {**CONFIG, "options": {"ema": False, "learning_rate": 0.1}}, resume="auto").resumes
    with pytest.raises(RunDirError, match=r"another run: options.learning_rate is 0.1 there and 0.2 here"):
        RunDir(path, {**CONFIG, "options": {"learning_rate": 0.2, "ema": False}}, resume="auto")


def test_unreadable_config_is_named(tmp_path):
    path = started(tmp_path / "run")
    (path / "config.json").write_text("{")
    with pytest.raises(RunDirError, match=r"config.json cannot be read .*Choose a new run directory"):
        RunDir(path, CONFIG, resume="auto")


def test_resume_has_three_values(tmp_path):
    with pytest.raises(RunDirError, match=r'must be "never", "auto", "must" or "extend". Received: resume=True'):
        RunDir(tmp_path, CONFIG, resume=True)


def test_rows_after_the_checkpoint_are_dropped(tmp_path):
    run_dir = RunDir(started(tmp_path / "run"), CONFIG, resume="auto")
    for epoch in range(3):
        run_dir.add_row({"epoch": epoch, "loss": float(epoch)})
    run_dir.take_rows(run_dir.rows_before(2))
    run_dir.add_row({"epoch": 2, "loss": math.nan})
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"epoch": 0, "loss": 0.0},
        {"epoch": 1, "loss": 1.0},
        {"epoch": 2, "loss": None},
    ]
    run_dir.take_rows(run_dir.rows_before(3), num_epochs=3)
    for content in ("", lines[0]):
        (tmp_path / "run" / "metrics.jsonl").write_text(content)
        with pytest.raises(RunDirError, match=r"metrics\.jsonl lacks the metrics of epoch [12], which was"):
            run_dir.take_rows(run_dir.rows_before(3), num_epochs=3)


def test_workers_that_are_not_the_chief_write_nothing(tmp_path):
    run_dir = RunDir(tmp_path / "run", CONFIG, writes=False)
    run_dir.start({})
    run_dir.add_row({"epoch": 0})
    run_dir.write_result({})
    assert run_dir.rows == [{"epoch": 0}]
    assert not run_dir.path.exists()


def test_file_is_whole_or_not_there(tmp_path):
    path = tmp_path / "value.json"
    write_json(path, {"a": 1})
    with pytest.raises(RuntimeError), whole_file(path) as temporary:
        assert temporary.suffix == ".json"
        temporary.write_text("half")
        raise RuntimeError
    assert json.loads(path.read_text()) == {"a": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["value.json"]


def test_numbers_that_json_lacks_become_null():
    assert finite({"a": [1.0, math.nan], "b": (math.inf, -math.inf, "x", 2)}) == {
        "a": [1.0, None],
        "b": [None, None, "x", 2],
    }


@pytest.mark.parametrize("resume", ["never", "auto"])
def test_a_run_that_was_killed_before_its_config_was_complete_can_be_started_again(tmp_path, run_python, resume):
    run_python(
        f"""
import os
from tfaccel.training.run.checkpoint_files import checkpoint_weights, load_newest, save_checkpoint
from tfaccel.training.run.run_dir import RunDir
original = os.replace
def replace(source, target):
    if str(target).endswith("config.json"):
        os.kill(os.getpid(), 9)
    original(source, target)
run_dir = RunDir({str(tmp_path / "run")!r}, {CONFIG!r})
os.replace = replace
run_dir.start({{}})
""",
        check=False,
    )
    assert not (tmp_path / "run" / "config.json").exists()
    assert any((tmp_path / "run").glob(".config-*"))
    (tmp_path / "run" / "checkpoints").mkdir(exist_ok=True)  # as other versions leave it
    run_dir = RunDir(tmp_path / "run", CONFIG, resume=resume)
    run_dir.start({"strategy": "none"})
    run_dir.close()
    assert RunDir(tmp_path / "run", CONFIG, resume="auto").resumes


def test_a_run_killed_at_any_moment_of_its_start_can_be_started_again(tmp_path, run_python):
    """Killed up to three times, at moments that differ by fractions of a millisecond."""
    child = run_python(
        f"""
import os, pathlib, random, time
from tfaccel.training.run.run_dir import RunDir

def start(path, seconds=None):
    pid = os.fork()
    if pid == 0:
        try:
            RunDir(path, {CONFIG!r}, resume="auto").start({{"strategy": "none"}})
            os._exit(0)
        except BaseException as error:
            print(error, flush=True)
            os._exit(1)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(pid, 9)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

moments = random.Random(0)
for number in range(60):
    path = pathlib.Path({str(tmp_path)!r}) / f"run_{{number}}"
    ends = [start(path, moments.uniform(0, 0.004)) for _ in range(number % 3 + 1)]
    assert 1 not in ends, (number, ends)
    assert start(path) == 0, (number, sorted(path.iterdir()))
    assert (path / "config.json").exists() and (path / "checkpoints").is_dir()
"""
    )
    assert child.stdout == ""


def test_a_folder_of_checkpoints_without_a_config_is_refused(tmp_path):
    (tmp_path / "checkpoints" / "step_0000000001").mkdir(parents=True)
    with pytest.raises(RunDirError, match="is not empty and holds no run of tfaccel"):
        RunDir(tmp_path, CONFIG, resume="auto")


def files_of(path):
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_run_leaves_a_directory_alone_that_another_run_has_taken(tmp_path):
    path = tmp_path / "run"
    first = RunDir(path, CONFIG)
    first.start({})
    save_checkpoint(first.checkpoints, {"x": np.zeros(3)}, {"step": 1}, run=first.identity)
    path.rename(tmp_path / "moved")
    with pytest.raises(RunDirError, match=r"The run directory .*/run is gone\. Training stops"):
        first.add_row({"epoch": 0})
    second = RunDir(path, CONFIG)
    second.start({})
    for step in (2, 3):
        save_checkpoint(second.checkpoints, {"x": np.ones(3)}, {"step": step}, keep=2, run=second.identity)
    (second.checkpoints / ".step_0000000004-1").mkdir()  # being written
    before = files_of(path)
    assert not first.is_own()
    for write in (
        lambda: save_checkpoint(first.checkpoints, {"x": np.zeros(3)}, {"step": 9}, keep=1, run=first.identity),
        lambda: first.add_row({"epoch": 0}),
        lambda: first.leave_out(0, 1, 1),
        lambda: first.write_raw_input(object()),
        lambda: first.write_result({}),
        lambda: first.start({}),
    ):
        with pytest.raises(RunDirError, match=r"no longer holds this run: it was moved .*Training stops, and leaves"):
            write()
    assert files_of(path) == before
    assert (second.checkpoints / ".step_0000000004-1").is_dir()
    second.add_row({"epoch": 0})


def test_a_checkpoint_of_another_run_is_not_continued(tmp_path):
    runs = [RunDir(tmp_path / name, CONFIG) for name in "ab"]
    for run in runs:
        run.start({})
        save_checkpoint(run.checkpoints, {"weight/0": np.zeros(3)}, {"step": 1}, run=run.identity)
        run.close()
    assert load_newest(runs[0].checkpoints, RunDir(tmp_path / "a", CONFIG, resume="auto").identity)[1] == {"step": 1}
    save_checkpoint(runs[1].checkpoints, {"weight/0": np.ones(3)}, {"step": 2}, run=runs[1].identity)
    shutil.move(runs[1].checkpoints / "step_0000000002", runs[0].checkpoints)
    found = (
        r"The checkpoint .*/a/checkpoints/step_0000000002 belongs to another run than .*/a, .*Move step_0000000002 away"
    )
    with pytest.raises(RunDirError, match=found):
        load_newest(runs[0].checkpoints, RunDir(tmp_path / "a", CONFIG, resume="auto").identity)
    with pytest.raises(RunDirError, match=found):
        checkpoint_weights(runs[0].checkpoints, "step_0000000002")


def test_a_copied_run_is_the_same_run(tmp_path):
    run = RunDir(tmp_path / "a", CONFIG)
    run.start({})
    save_checkpoint(run.checkpoints, {"x": np.zeros(3)}, {"step": 1}, run=run.identity)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    copy = RunDir(tmp_path / "b", CONFIG, resume="auto")
    assert load_newest(copy.checkpoints, copy.identity)[1] == {"step": 1}


def test_a_run_of_an_earlier_version_goes_on_without_an_id(tmp_path):
    path = started(tmp_path / "run")
    config = json.loads((path / "config.json").read_text())
    write_json(path / "config.json", {name: value for name, value in config.items() if name != "run_id"})
    save_checkpoint(path / "checkpoints", {"x": np.zeros(3)}, {"step": 1})
    resumed = RunDir(path, CONFIG, resume="auto")
    resumed.start({})
    assert load_newest(resumed.checkpoints, resumed.identity)[1] == {"step": 1}
    save_checkpoint(resumed.checkpoints, {"x": np.zeros(3)}, {"step": 2}, run=resumed.identity)
    assert load_newest(resumed.checkpoints, resumed.identity)[1] == {"step": 2}


def test_training_stops_when_its_directory_is_another_runs(run_python, tmp_path):
    child = run_python(
        f"""
import keras, os, pathlib
from tfaccel import train
from tfaccel.errors import RunDirError
from tfaccel.training.run.run_dir import RunDir
from train_workload import plan, workload

path = pathlib.Path({str(tmp_path / "run")!r})
def files():
    return {{str(file): file.stat().st_mtime_ns for file in path.rglob("*") if file.is_file()}}
before = {{}}

class Moves(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if self.model.optimizer.iterations == 8:
            path.rename(path.with_name("moved"))
            other = RunDir(path, {{"recipe": "other"}})
            other.start({{}})
            other.close()
            before.update(files())

try:
    train(workload(), plan("none"), run_dir=path, epochs=4, checkpoint_interval=3, callbacks=[Moves()], verbose=0)
except RunDirError as error:
    print(error)
assert before and files() == before, (before, files())
""",
        env={"PYTHONPATH": str(Path(__file__).parent)},
    )
    assert "no longer holds this run: it was moved" in child.stdout


def test_files_have_the_modes_that_the_umask_says(tmp_path, run_python):
    run_python(
        f"""
import os, pathlib
os.umask(0o077)
from tfaccel.exporting.export import export_folder
from tfaccel.files import whole_file, write_text
from tfaccel.training.run.run_dir import RunDir
folder = pathlib.Path({str(tmp_path)!r})
run = RunDir(folder / "run", {CONFIG!r})
run.start({{}})
run.add_row({{"epoch": 0}})
with whole_file(run.model_file) as temporary:
    temporary.write_bytes(b"")
run.close()
with export_folder(folder / "out") as unfinished:
    write_text(unfinished / "a.txt", "a")
os.umask(0o022)
write_text(folder / "b.txt", "b")
"""
    )
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert modes.pop("b.txt") == 0o644
    assert {"config.json", "plan.json", "metrics.jsonl", "model.keras", "out", "a.txt", "checkpoints"} <= set(modes)
    assert {name: mode for name, mode in modes.items() if mode & 0o077} == {}
