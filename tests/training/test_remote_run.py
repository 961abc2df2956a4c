"""A run at an address: sent in an order that may be cut anywhere, continued elsewhere, and held by one process."""

import json
import shutil
import threading

import fsspec
import numpy as np
import pytest

from tfaccel.errors import RunDirError
from tfaccel.training.run import remote_run as remote_module
from tfaccel.training.run.checkpoint_files import load_newest, save_checkpoint
from tfaccel.training.run.checkpoints import CheckpointWriter
from tfaccel.training.run.remote_run import RemoteRun, remote_run, run_folder, send_run, shown_run
from tfaccel.training.run.run_dir import RunDir, checked_place

ADDRESS = "memory://bucket/runs/one"
CONFIG = {"training": "test"}


class Cut(BaseException):
    """In place of a signal that ends the process."""


class Store:
    """fsspec's store in memory, which can be cut after some writes and removals."""

    def __init__(self, monkeypatch):
        self.files = fsspec.filesystem("memory")
        self.files.store.clear()
        self.num_changes, self.cut_after = 0, None
        for name in ("put_file", "pipe_file", "rm_file"):
            self._count(monkeypatch, name)

    def _count(self, monkeypatch, name):
        original = getattr(type(self.files), name)

        def counted(files, *arguments, **options):
            place = str(arguments[-1] if name == "put_file" else arguments[0])
            if not place.rpartition("/")[2].startswith("."):  # the lease and the probe are no part of the run
                self.num_changes += 1
                if self.cut_after is not None and self.num_changes > self.cut_after:
                    raise Cut
            return original(files, *arguments, **options)

        monkeypatch.setattr(type(self.files), name, counted)

    @property
    def names(self):
        return {name.partition("/runs/one/")[2] for name in self.files.find("/bucket")}


@pytest.fixture
def store(monkeypatch, tmp_path):
    monkeypatch.setattr(remote_module, "_runs", {})
    monkeypatch.setenv("TFACCEL_CACHE", str(tmp_path / "machine 1"))
    return Store(monkeypatch)


def elsewhere(monkeypatch, tmp_path, number):
    """Goes on at a machine that has no copy yet."""
    monkeypatch.setattr(remote_module, "_runs", {})
    monkeypatch.setenv("TFACCEL_CACHE", str(tmp_path / f"machine {number}"))


def train(directory, first, last):
    """Trains from epoch `first` to `last`, as `train` and `Resume` write it, with a checkpoint after each epoch."""
    with directory.in_use():
        directory.start({"devices": 1})
        for epoch in range(first, last):
            directory.add_row({"epoch": epoch, "loss": 1.0 / (epoch + 1)})
            position = {"epoch": epoch + 1, "step": 10 * (epoch + 1), "monitored": None}
            save_checkpoint(directory.checkpoints, {"w": np.full(3, epoch)}, position, run=directory.identity)
            directory.send()
        directory.model_file.write_bytes(b"model")
        directory.write_result({"epochs": last})


def test_a_run_is_continued_elsewhere_wherever_it_was_cut(store, monkeypatch, tmp_path):
    train(RunDir(ADDRESS, CONFIG), 0, 4)
    whole, num_changes = store.names, store.num_changes
    assert whole == {
        *("config.json", "plan.json", "metrics.jsonl", "model.keras", "result.json"),
        *(f"checkpoints/step_{step:010d}/{name}" for step in (30, 40) for name in ("arrays.npz", "state.json")),
    }
    begun = set()
    for number in range(num_changes):
        store.files.store.clear()
        elsewhere(monkeypatch, tmp_path, f"{number} a")
        store.num_changes, store.cut_after = 0, number
        with pytest.raises(Cut):
            train(RunDir(ADDRESS, CONFIG), 0, 4)
        store.cut_after = None
        store.files.store.pop("/bucket/runs/one/.owner.json", None)  # the process has ended
        elsewhere(monkeypatch, tmp_path, f"{number} b")
        directory = RunDir(ADDRESS, CONFIG, resume="auto")
        newest = load_newest(directory.checkpoints, directory.identity) if directory.resumes else None
        epoch = 0 if newest is None else newest[1]["epoch"]
        directory.take_rows(directory.rows_before(epoch), num_epochs=epoch)  # all rows are there
        if newest is not None:
            assert newest[0]["w"].tolist() == [epoch - 1] * 3
        begun.add(epoch)
        if directory.result() is None:
            train(directory, epoch, 4)
        assert whole <= store.names
        assert all(name.startswith("checkpoints/") for name in store.names - whole)  # as after a kill in a local folder
        shutil.rmtree(tmp_path)
    assert begun == {0, 1, 2, 3, 4}


def test_what_was_not_sent_is_kept_if_nobody_has_gone_on(store, monkeypatch, tmp_path):
    directory = RunDir(ADDRESS, CONFIG)
    store.cut_after = 12
    with pytest.raises(Cut):
        train(directory, 0, 4)
    store.cut_after = None
    here = directory.path / "checkpoints" / "step_0000000040"
    kept = here if here.exists() else sorted(directory.path.glob("checkpoints/step_*"))[-1]
    monkeypatch.setattr(remote_module, "_runs", {})
    again = RunDir(ADDRESS, CONFIG, resume="auto")
    assert (again.path, kept.exists()) == (directory.path, True)
    elsewhere(monkeypatch, tmp_path, 2)
    other = RunDir(ADDRESS, CONFIG, resume="auto")
    store.files.store.pop("/bucket/runs/one/.owner.json", None)
    train(other, 1, 4)
    elsewhere(monkeypatch, tmp_path, 1)
    assert RunDir(ADDRESS, CONFIG, resume="auto").result()["epochs"] == 4  # the other machine's


def test_files_are_copied_only_when_they_have_changed(store, monkeypatch):
    train(RunDir(ADDRESS, CONFIG), 0, 2)
    got = []
    original = type(store.files).get
    monkeypatch.setattr(type(store.files), "get", lambda files, *how: got.extend(how[0]) or original(files, *how))
    run_folder(ADDRESS)
    assert got == []
    store.files.pipe_file("/bucket/runs/one/classes.json", b"[]")
    path = run_folder(ADDRESS)
    assert [name.rpartition("/")[2] for name in got] == ["classes.json"]
    assert (path / "classes.json").read_bytes() == b"[]"
    store.files.rm_file("/bucket/runs/one/classes.json")
    assert not (run_folder(ADDRESS) / "classes.json").exists()


def test_messages_name_the_address(store):
    train(RunDir(ADDRESS, CONFIG), 0, 1)
    with pytest.raises(RunDirError, match=f"The run directory {ADDRESS} already holds a run"):
        checked_place(ADDRESS, "never")
    with pytest.raises(RunDirError, match=f"The run directory {ADDRESS} holds another run"):
        RunDir(ADDRESS, {"training": "other"}, resume="auto")
    assert shown_run(run_folder(ADDRESS)) == ADDRESS
    assert shown_run("runs/one") == "runs/one"


def test_a_folder_of_something_else_is_refused_before_it_is_copied(store, monkeypatch):
    store.files.pipe_file("/bucket/runs/one/photo.png", b"1")
    monkeypatch.setattr(type(store.files), "get", lambda *how: pytest.fail("copied"))
    with pytest.raises(RunDirError, match=f"{ADDRESS} is not empty and holds no run of tfaccel"):
        checked_place(ADDRESS, "auto")


def test_an_address_that_cannot_be_written_is_refused_before_training(store, monkeypatch):
    def refuse(*arguments, **options):
        raise PermissionError("Access denied")

    monkeypatch.setattr(type(store.files), "pipe_file", refuse)
    with pytest.raises(RunDirError, match=f"{ADDRESS} cannot be written: PermissionError: Access denied"):
        checked_place(ADDRESS, "never")
    with pytest.raises(RunDirError, match=r"nowhere://a/b cannot be used: ValueError: Protocol not known: nowhere"):
        checked_place("nowhere://a/b", "never")


def test_a_store_that_does_not_answer_is_asked_again(store, monkeypatch):
    monkeypatch.setattr("tfaccel.remote._PAUSES", (0.0, 0.0))
    original, failures = type(store.files).put_file, []

    def fail_twice(files, *arguments, **options):
        failures.append(arguments)
        if len(failures) % 3:
            raise ConnectionError("timed out")
        return original(files, *arguments, **options)

    monkeypatch.setattr(type(store.files), "put_file", fail_twice)
    train(RunDir(ADDRESS, CONFIG), 0, 1)
    assert "result.json" in store.names
    monkeypatch.setattr("tfaccel.remote._PAUSES", (0.0,))
    path = run_folder(ADDRESS)
    (path / "note.txt").write_text("1")
    failures.clear()
    with pytest.raises(RunDirError, match=f"{ADDRESS} cannot be written: ConnectionError: timed out"):
        send_run(path)


def test_training_goes_on_where_a_store_does_not_answer_for_a_while(store, monkeypatch, caplog):
    monkeypatch.setattr("tfaccel.remote._PAUSES", ())
    original, answers = type(store.files).put_file, [True]

    def put_file(files, *arguments, **options):
        if not answers[0]:
            raise ConnectionError("timed out")
        return original(files, *arguments, **options)

    monkeypatch.setattr(type(store.files), "put_file", put_file)
    directory = RunDir(ADDRESS, CONFIG)
    with directory.in_use():
        directory.start(None)
        writer = CheckpointWriter(directory.checkpoints, send=directory.send)
        for step, answers[0] in enumerate((False, False, True), start=1):
            writer.write({"weights": np.arange(3.0)}, {"step": step})
            assert writer.wait() == answers[0]
        assert "checkpoints/step_0000000003/state.json" in {*store.names}
        assert f"{ADDRESS} cannot be written: ConnectionError: timed out. Training goes on" in caplog.text
        answers[0] = False
        for step in (4, 5):
            writer.write({"weights": np.arange(3.0)}, {"step": step})
            writer.wait()
        writer.write({"weights": np.arange(3.0)}, {"step": 6})
        with pytest.raises(RunDirError, match=r"3 checkpoints in a row .* timed out\. Training stops"):
            writer.wait()
        answers[0] = True
        writer.close()


def test_another_run_at_the_address_is_not_overwritten(store, monkeypatch, tmp_path):
    directory = RunDir(ADDRESS, CONFIG)
    with pytest.raises(RunDirError, match=f"{ADDRESS} no longer holds this run"), directory.in_use():
        directory.start(None)
        store.files.pipe_file("/bucket/runs/one/config.json", json.dumps({"run_id": "another"}).encode())
        directory.add_row({"epoch": 0, "loss": 1.0})
        directory.send()
    assert "metrics.jsonl" not in store.names


def test_one_process_at_a_time(store, monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(remote_module, "RENEWAL_SECONDS", 0.05)
    monkeypatch.setattr(remote_module, "STALE_SECONDS", 0.6)
    first = RunDir(ADDRESS, CONFIG)
    with first.in_use():
        first.start(None)
        elsewhere(monkeypatch, tmp_path, 2)
        run_folder(ADDRESS)
        second = RunDir(ADDRESS, CONFIG, resume="auto")
        with pytest.raises(RunDirError, match=f"Another run is using {ADDRESS} \\(process .* on "):
            second.start(None)
    assert not [name for name in store.names if "owner" in name]
    assert not [one for one in threading.enumerate() if one.name == "lease"]
    seen = {"token": "x", "place": "elsewhere", "pid": 1, "host": "far", "since": "then", "command": "train"}
    store.files.pipe_file("/bucket/runs/one/.owner.json", json.dumps(seen).encode())
    third = RunDir(ADDRESS, CONFIG, resume="auto")
    with third.in_use():
        third.start(None)  # after a while
        assert "it is taken over" in caplog.text
        store.files.pipe_file("/bucket/runs/one/.owner.json", json.dumps(seen).encode())
        lost = threading.Event()
        while remote_run(third.path).taken_by is None:
            lost.wait(0.02)
        with pytest.raises(RunDirError, match=r"process 1 on far, since then: train\) has taken over"):
            third.send()
        monkeypatch.setattr(RemoteRun, "send", lambda self: None)
    assert ".owner.json" in store.names


def test_a_worker_has_a_copy_of_its_own(store, monkeypatch):
    path = run_folder(ADDRESS)
    workers = {"worker": ["a:1", "b:1"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": workers, "task": {"type": "worker", "index": 1}}))
    assert run_folder(ADDRESS) != path
