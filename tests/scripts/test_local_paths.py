"""A path in ~, and an address such as gs://bucket/run where none is taken, is refused; nothing is written.

Where an address is taken, one at which there is nothing is named.
"""

from pathlib import Path

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFile

import tfaccel
from tfaccel import data, reporting
from tfaccel.compressing.distillation import teacher_file
from tfaccel.compressing.outcome_folder import OutcomeFolder
from tfaccel.data.coco_files import read_coco
from tfaccel.data.images.files import read_image_set
from tfaccel.data.series_set import read_series
from tfaccel.data.tables.files import read_table
from tfaccel.data.texts.files import read_labelled_texts, read_text
from tfaccel.data.tfrecord_files import find_tfrecords
from tfaccel.errors import TfaccelError
from tfaccel.extras.inspection.inspect_data import inspect_data
from tfaccel.local_path import local_path
from tfaccel.remote import is_remote, readable_path
from tfaccel.scripts.main import main
from tfaccel.training.recipe import data_place
from tfaccel.training.run.run_dir import RunDir, checked_place

PLACE = "gs://bucket/run"
LOCAL_LINES = [
    "train --recipe=tabular_regression --plan={} --run_dir=run",
    "search --recipe=tabular_regression --run_dir={}",
    "find-fastest --recipe=tabular_regression --write={}",
    "find-fastest --recipe=tabular_regression --report={}",
    "plan --recipe=tabular_regression --write={}",
    "plan --recipe=tabular_regression --hardware={}",
    "estimate-memory --recipe=tabular_regression --out={}",
    "find-batch-size --recipe=tabular_regression --out={}",
    "find-learning-rate --recipe=tabular_regression --picture={}.png",
    "roofline --recipe=tabular_regression --report={}",
    "launch --num_workers=2 --log_dir={} -- true",
    "compress --run_dir=run --out_dir={}",
    "predict --run_dir=run --input={} --output=a.csv",
    "predict --run_dir=run --input=a.csv --output={}.csv",
    "serve --model_config_file={}",
    "report run --output={}",
    "benchmark engine --out={}",
]
REMOTE_LINES = [  # take addresses as well
    "train --recipe=tabular_regression --run_dir={}",
    "train --recipe=tabular_regression --data_dir={} --run_dir=run",
    "compress --run_dir={}",
    "export --run_dir=run --out={}",
    "export --model={} --out=out",
    "serve --model={}",
    "inspect-data --data_dir={}",
    "report {}",
]


@pytest.mark.parametrize(
    ("line", "place", "reason"),
    [
        *((line, PLACE, "is not a local path, and this must be one. Mount the bucket") for line in LOCAL_LINES),
        *((line, "~/run", "is not a local path. Nothing has replaced the ~") for line in LOCAL_LINES + REMOTE_LINES),
    ],
)
def test_a_command_refuses_it(line, place, reason, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["tfaccel", *line.format(place).split()]) == 2
    found = capsys.readouterr()
    assert reason in found.err
    assert not found.out
    assert found.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("line", [line for line in REMOTE_LINES if "run_dir={}" not in line or "compress" in line])
def test_a_command_names_an_address_with_nothing(line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["tfaccel", *line.format("memory://bucket/none").split()]) == 2
    found = capsys.readouterr()
    is_missing = "There is nothing at memory://bucket/none." in found.err
    assert is_missing or "run is not a run directory" in found.err or "no file or folder run" in found.err, found.err
    assert not found.out
    assert list(tmp_path.iterdir()) == []


def test_addresses_are_no_paths(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    line = "launch --num_workers=2 --engine=ray --storage_path=s3://bucket --address=ray://x:1 -- no_such_command"
    assert main(["tfaccel", *line.split()]) == 2
    assert "local path" not in capsys.readouterr().err


READING = [
    lambda place: tfaccel.export(place, out="out"),
    lambda place: tfaccel.load_run(place),
    lambda place: tfaccel.report(place),
    data.Catalogue.load,
    data.Vocabulary.load,
    data.read_interactions,
    data.read_summaries,
    lambda place: data.read_text_parts(place, min_characters=1),
    data.read_translations,
    lambda place: data.TableData(place, embedded="wine", classification=True, target="x"),
    teacher_file,
    lambda place: tfaccel.Plan.load(place),
    inspect_data,
    read_image_set,
    lambda place: read_coco(place, image_size=64),
    read_table,
    lambda place: read_series(place, time_column="t"),
    read_text,
    read_labelled_texts,
    find_tfrecords,
]
WRITING = [
    lambda place: RunDir(place, {}),
    lambda place: checked_place(place, "auto"),
    lambda place: tfaccel.Resume(place),
    lambda place: tfaccel.train("tabular_regression", run_dir=place),
    lambda place: tfaccel.export("run", out=place),
    data_place,
]


@pytest.mark.parametrize(
    "call",
    [
        lambda place: tfaccel.search("tabular_regression", run_dir=place),
        lambda place: tfaccel.compress(place),
        lambda place: tfaccel.estimates.Interconnect.load(place),
        lambda place: data.write_tfrecords([], place),
        lambda place: reporting.write_json(place, {}),
        lambda place: reporting.write_text(place, "x"),
        lambda place: reporting.save_anomalies(place, [], [], np.zeros(0)),
        lambda place: reporting.save_confusions(place, np.arange(2), {"a": np.eye(2)}, class_names=("a", "b")),
        tfaccel.check,
        OutcomeFolder,
        lambda place: tfaccel.report("run", output=place),
        lambda place: tfaccel.Hardware.load(place),
    ],
)
@pytest.mark.parametrize("place", [PLACE, Path(PLACE), "s3://bucket/run", "hf://datasets/x", "file:///data", "~/x"])
def test_python_refuses_it(call, place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TfaccelError, match="is not a local path"):
        call(place)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", READING + WRITING)
@pytest.mark.parametrize("place", ["file:///data", Path("file:///data"), "~/x"])
def test_python_that_takes_addresses_refuses_these(call, place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TfaccelError, match="is not a local path"):
        call(place)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", READING)
@pytest.mark.parametrize("place", ["memory://bucket/none", Path("memory://bucket/none")])
def test_an_address_with_nothing_is_named(call, place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TfaccelError, match=r"There is nothing at memory://bucket/none\."):
        call(place)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "place", ["runs/a", "~a/b", "/a:/b", "C:/runs", "./gs:/a", "a:b", "tfds:mnist", "hf:owner/name"]
)
def test_other_paths_are_local(place):
    assert local_path(place, TfaccelError) == Path(place)


def test_the_cache_of_examples_is_local(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", PLACE)
    for options in (data.CacheOptions(folder=PLACE), data.CacheOptions()):
        with pytest.raises(TfaccelError, match="is not a local path"):
            assert options.path
    assert list(tmp_path.iterdir()) == []


def test_the_log_directory_of_a_trial_may_be_an_address(tmp_path, monkeypatch, logical_devices):
    import keras
    import keras_tuner

    from tfaccel.tuning.trial_callbacks import tensorboard_beside

    monkeypatch.chdir(tmp_path)
    board = keras.callbacks.TensorBoard(f"file://{tmp_path}/board")
    tensorboard_beside([board], "3", 0, keras_tuner.HyperParameters())
    assert board.log_dir == f"file://{tmp_path}/board/3/execution0"
    assert [entry.name for entry in tmp_path.iterdir()] in ([], ["board"])  # no folder called file:


def test_a_data_set_that_was_saved_from_the_hub_is_named_by_a_text():
    assert data_place("hf:/data/pets") == "hf:/data/pets"
    assert local_path("hf:/data/pets", TfaccelError) == Path("hf:/data/pets")


def test_an_address_is_recognised():
    for place in ("s3://bucket/run", Path("gs://bucket/run"), "memory://x", "hf://datasets/owner/name"):
        assert is_remote(place), place
    for place in ("runs/a", "C:/runs", "./gs:/a", "tfds:mnist", "hf:owner/name", "file:///data", "~/x", None, 3):
        assert not is_remote(place), place


def test_a_file_at_an_address_is_read_with_its_name(tmp_path):
    store = fsspec.filesystem("memory")
    store.pipe_file("/bucket/pets.csv", b"name;age\nMia;3\nRex;4\n")
    try:
        assert read_table("memory://bucket/pets.csv").column("age").values.tolist() == ["3", "4"]
        store.pipe_file("/bucket/pets.csv", b"name;age\nMia;30\n")
        assert read_table("memory://bucket/pets.csv").column("age").values.tolist() == ["30"]
    finally:
        store.store.clear()


def test_a_name_that_leads_out_of_the_folder_is_refused():
    store = fsspec.filesystem("memory")
    store.store["/bucket/texts/../../evil.txt"] = MemoryFile(store, "/bucket/texts/../../evil.txt", b"x")
    try:
        with pytest.raises(TfaccelError, match=r"a file whose name leads out of a folder: '\.\./\.\./evil\.txt'"):
            readable_path("memory://bucket/texts", TfaccelError)
    finally:
        store.store.clear()


def test_advice_fits_the_scheme():
    with pytest.raises(TfaccelError, match=r"Leave out file://"):
        local_path("file:///data", TfaccelError)
    with pytest.raises(TfaccelError, match=r"named hf:OWNER/NAME"):
        local_path("hf://datasets/a", TfaccelError)
