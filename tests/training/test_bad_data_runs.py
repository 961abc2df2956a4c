"""A run that leaves out damaged examples equals one without them, under every strategy and after resuming."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from bad_data_program import write_damaged, write_images

from tfaccel.data import BadData, read_image_set
from tfaccel.processes.local_cluster import run_local_cluster

PROGRAM = Path(__file__).with_name("bad_data_program.py")
QUICK = """
import json, pathlib, sys
sys.path.insert(0, {here!r})
import bad_data_program as program
import numpy as np, tensorflow as tf, tfaccel
from tfaccel.data import ImageData
folder = pathlib.Path({folder!r})
def message(function):
    try:
        function()
    except tfaccel.TfaccelError as error:
        return f"{{type(error).__name__}}: {{error}}"
skip = {{"on_bad_data": "skip", "max_bad_fraction": 0.1}}
found = {{"bad": program.once(str(folder / "bad"), folder / "run", **skip)}}
found["clean"] = program.once(str(folder / "clean"), folder / "clean_run")
next((folder / "bad").glob("*00001-of-*")).write_bytes(next((folder / "whole").glob("*00001-of-*")).read_bytes())
found["repaired"] = message(lambda: program.once(str(folder / "bad"), folder / "run", **skip))
def records():
    rows = tf.data.TFRecordDataset([str(folder / "own.tfrecord")])
    return rows.map(lambda row: (tf.ones((4,)), tf.ones((1,)))).batch(2)
def build_model():
    import keras
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
found["own"] = message(lambda: tfaccel.train(
    build_model, records(), optimizer="sgd", loss="mse", epochs=1, run_dir=folder / "own_run", verbose=0))
print(json.dumps(found))
"""


def test_what_is_left_out_is_counted_and_nothing_else_changes(run_python, tmp_path):
    kept = write_damaged(tmp_path / "bad")
    write_images(tmp_path / "clean", numbers=kept, num_shards=1)
    write_images(tmp_path / "whole")
    (own,) = write_images(tmp_path / "own", numbers=range(8), num_shards=1)
    content = bytearray(own.read_bytes())
    content[-20] ^= 1
    (tmp_path / "own.tfrecord").write_bytes(content)
    ran = run_python(QUICK.format(here=str(PROGRAM.parent), folder=str(tmp_path)))
    found = json.loads(ran.stdout.splitlines()[-1])
    (bad, counts), (clean, none) = found["bad"], found["clean"]
    assert (bad, none) == (clean, None)
    assert counts == json.loads((tmp_path / "run" / "result.json").read_text())["bad_data"]
    assert (counts["num_read"], counts["num_skipped"]) == (116, 4)
    assert {Path(path).name: entry["places"] for path, entry in counts["files"].items()} == {
        "examples-00001-of-00003.tfrecord": [3, 20, 21],
        "examples-00002-of-00003.tfrecord": [39],
    }
    assert re.match(
        r"RunDirError: .* holds another run: bad_data is '4 left out, .*' there and '1 left", found["repaired"]
    )
    assert re.match(r"DataError: A file of the dataset of '.*' is damaged: corrupted record at \d+", found["own"])


def test_a_shard_of_workers_reads_the_rows_of_the_batches_that_are_left(logical_devices, tmp_path):
    import numpy as np

    from tfaccel.data import ImageData

    write_damaged(tmp_path)
    data = ImageData(read_image_set(tmp_path, bad_data=BadData("skip", 0.1)), augmentation="none", cache="none")
    asked = {"seed": 3, "epoch": 1}
    whole = [pixels for pixels, _ in data.train_data(16, **asked).as_numpy_iterator()]
    shards = [[p for p, _ in data.train_data(16, **asked, shard=(i, 2)).as_numpy_iterator()] for i in range(2)]
    resumed = [pixels for pixels, _ in data.train_data(16, **asked, start_step=3).as_numpy_iterator()]
    np.testing.assert_array_equal(np.concatenate(shards, axis=1), whole)
    np.testing.assert_array_equal(resumed, whole[3:])
    assert len(whole) == 92 // 16


@pytest.mark.slow
def test_an_image_that_changes_after_it_was_checked_is_named(run_python, tmp_path):
    from PIL import Image

    for number in range(40):
        path = tmp_path / "images" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), 6 * number).save(path)
    code = f"""
import sys, pathlib
import tfaccel
from tfaccel.recipes import image_classification
work = image_classification.workload(data_dir={str(tmp_path / "images")!r}, width=4, augmentation="none", cache="none")
pathlib.Path(work.data.source.load()[0].images[5]).write_bytes(b"gone")
try:
    tfaccel.train(work, tfaccel.Plan(strategy="none", devices=("CPU:0",), global_batch_size=16), epochs=1, verbose=0,
                  run_dir={str(tmp_path / "run")!r})
except tfaccel.TfaccelError as error:
    print(type(error).__name__, error)
"""
    said = run_python(code).stdout
    assert re.search(
        r"^DataError Cannot read the image .*\.png: it is not an image\. .* was changed or removed", said, re.M
    )


@pytest.mark.parametrize("called_by_tfaccel", [False, True])
def test_an_image_that_only_decoding_shows_to_be_damaged_is_named(tmp_path, logical_devices, called_by_tfaccel):
    import zlib
    from types import SimpleNamespace

    from PIL import Image

    from tfaccel.data import ImageData
    from tfaccel.errors import DataError
    from tfaccel.planning.workload import call_own
    from tfaccel.training.run.faulty_batch import input_errors_named

    for number in range(8):
        path = tmp_path / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("L", (8, 8), 6 * number).save(path)
    content = bytearray(path.read_bytes())
    start = content.index(b"IDAT")
    end = start + 4 + int.from_bytes(content[start - 4 : start], "big")
    content[end - 1] ^= 1  # the checksum of the pixels; that of the chunk is right
    content[end : end + 4] = zlib.crc32(content[start:end]).to_bytes(4, "big")
    path.write_bytes(content)
    images = ImageData(read_image_set(tmp_path))
    workload = SimpleNamespace(name="images", data=images)
    with (
        pytest.raises(DataError, match=rf"Cannot read the image {re.escape(str(path))}: Invalid PNG data, size \d+\."),
        input_errors_named(workload),
    ):
        for data in (images.validation_data(2), images.train_data(2, seed=0, epoch=0)):
            call_own("validation_data", list, data) if called_by_tfaccel else list(data)


def outcome(*arguments):
    ran = subprocess.run(
        [sys.executable, str(PROGRAM), *map(str, arguments)], capture_output=True, text=True, check=False
    )
    return json.loads(ran.stdout.splitlines()[-1]) if ran.returncode == 0 else ran.returncode


@pytest.mark.slow
def test_resumed_runs_leave_out_the_same(tmp_path):
    write_damaged(tmp_path / "bad")
    assert outcome(tmp_path / "bad", tmp_path / "killed", "none", 7) == 7
    whole = outcome(tmp_path / "bad", tmp_path / "whole", "none", 0)
    assert outcome(tmp_path / "bad", tmp_path / "killed", "none", 0) == whole


@pytest.mark.slow
def test_several_replicas_and_workers_leave_out_the_same(tmp_path):
    write_damaged(tmp_path / "bad")
    mirrored = outcome(tmp_path / "bad", tmp_path / "mirrored", "mirrored_2", 0)
    command = [sys.executable, str(PROGRAM), str(tmp_path / "bad"), str(tmp_path / "workers"), "workers_2", "0"]
    workers = run_local_cluster(command, num_workers=2, time_limit_seconds=300)
    of_workers = [json.loads(worker.stdout.splitlines()[-1]) for worker in workers]
    assert mirrored[1] == of_workers[0][1] == of_workers[1][1]
    assert of_workers[0][0] == of_workers[1][0] == pytest.approx(mirrored[0], rel=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of", "text"),
    [
        (
            "train",
            "ClusterSettingsError: The workers do not agree: bad_data is '3 left out, .*' on worker 0 and '3",
        ),
        ("fit", "DataError: The workers have different arrays, or read different first batches. .*leave out the same"),
    ],
)
def test_workers_that_leave_out_other_examples_are_refused(tmp_path, of, text):
    for worker in range(2):
        for number, file in enumerate(write_images(tmp_path / f"worker_{worker}")):
            content = bytearray(file.read_bytes())
            content[[40, -20][(worker + number) % 2]] ^= 1  # in the first or in the last record
            file.write_bytes(content)
    command = [sys.executable, str(PROGRAM), "refused", of, str(tmp_path), str(tmp_path / "run")]
    for worker in run_local_cluster(command, num_workers=2, time_limit_seconds=300):
        assert re.search(text, worker.stdout), worker.stderr
