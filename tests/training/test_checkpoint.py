"""Checkpoints on disk are exact and complete; damaged ones are skipped, and the log names them."""

import json
import logging
import random
import subprocess
import sys
import time
import tracemalloc

import ml_dtypes
import numpy as np
import pytest

from tfaccel.errors import RunDirError
from tfaccel.training.run.checkpoint_files import checkpoint_weights, checkpoints, load_newest, save_checkpoint
from tfaccel.training.run.checkpoints import CheckpointWriter

ARRAYS = {
    "weight/0": np.array([1.5, np.nan, -0.0], "float32"),
    "weight/1": np.array([[1, 2]], ml_dtypes.bfloat16),
    "seed/0": np.array([2**32 - 1, 7], "uint32"),
    "optimizer/0": np.array(3, "int64"),
}


def saved(folder, *steps):
    for step in steps:
        position = {"epoch": step, "step_in_epoch": 0, "step": step, "callbacks": []}
        save_checkpoint(folder, {**ARRAYS, "step": np.array(step)}, position)
    return folder


def newest_step(folder):
    found = load_newest(folder)
    return None if found is None else (int(found[0]["step"]), found[1]["step"])


def test_arrays_come_back_to_the_bit(tmp_path):
    arrays, position = load_newest(saved(tmp_path, 5))
    assert position == {"epoch": 5, "step_in_epoch": 0, "step": 5, "callbacks": []}
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        assert arrays[name].tobytes() == array.tobytes()


def test_newest_two_are_kept_and_nothing_else(tmp_path):
    saved(tmp_path, 8, 9, 10, 10)
    assert [path.name for path in checkpoints(tmp_path)] == ["step_0000000009", "step_0000000010"]
    assert len(list(tmp_path.iterdir())) == 2
    assert newest_step(tmp_path) == (10, 10)


def test_the_best_is_kept_besides_the_newest(tmp_path):
    for step, value in enumerate((0.9, 0.3, 0.5, None, 0.7)):
        monitored = None if value is None else {"name": "val_loss", "direction": "min", "value": value}
        position = {"epoch": step, "step_in_epoch": 0, "step": step, "callbacks": [], "monitored": monitored}
        save_checkpoint(tmp_path, {**ARRAYS, "weight/0": np.array(step)}, position, keep=1)
    assert [path.name for path in checkpoints(tmp_path)] == ["step_0000000001", "step_0000000004"]
    assert [int(checkpoint_weights(tmp_path, name)[0]) for name in ("best", "step_0000000004")] == [1, 4]
    message = r"Received: checkpoint='first'. Expected: 'step_0000000001', 'step_0000000004', 'best'"
    with pytest.raises(RunDirError, match=message):
        checkpoint_weights(tmp_path, "first")
    (tmp_path / "step_0000000001" / "arrays.npz").write_bytes(b"")
    with pytest.raises(RunDirError, match=r"step_0000000001 is broken: the SHA-256 of its arrays.npz does not match"):
        checkpoint_weights(tmp_path, "best")


def test_no_checkpoint(tmp_path):
    assert load_newest(tmp_path) is None
    assert load_newest(tmp_path / "missing") is None


def truncate_arrays(path):
    file = path / "arrays.npz"
    file.write_bytes(file.read_bytes()[:-20])


def flip_a_bit(path):
    file = path / "arrays.npz"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)


def truncate_header(path):
    file = path / "state.json"
    file.write_text(file.read_text()[:-9])


def change_position(path):
    file = path / "state.json"
    file.write_text(file.read_text().replace('"epoch": 2', '"epoch": 6'))


def list_in_place_of_header(path):
    (path / "state.json").write_text("[]")


def remove_arrays(path):
    (path / "arrays.npz").unlink()


def empty_arrays(path):
    (path / "arrays.npz").write_bytes(b"")


def remove_header(path):
    (path / "state.json").unlink()


def other_format(path):
    header = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps({**header, "format": 99}))


@pytest.mark.parametrize(
    "damage",
    [
        truncate_arrays,
        flip_a_bit,
        truncate_header,
        change_position,
        list_in_place_of_header,
        remove_arrays,
        empty_arrays,
        remove_header,
        other_format,
    ],
)
def test_broken_checkpoint_is_passed_over_by_name(tmp_path, caplog, damage):
    saved(tmp_path, 1, 2)
    damage(tmp_path / "step_0000000002")
    with caplog.at_level(logging.WARNING, "tfaccel"):
        assert newest_step(tmp_path) == (1, 1)
    assert "step_0000000002 is broken" in caplog.text
    assert "an older one is used" in caplog.text


@pytest.mark.parametrize("seed", range(100))
def test_damage_anywhere_is_found(tmp_path, seed):
    chance = random.Random(seed)
    saved(tmp_path, 1, 2)
    file = tmp_path / "step_0000000002" / chance.choice(["arrays.npz", "state.json"])
    content = bytearray(file.read_bytes())
    place = chance.randrange(len(content))
    if chance.random() < 0.5:
        content[place] ^= 1 << chance.randrange(8)
    else:
        del content[place:]
    file.write_bytes(content)
    assert newest_step(tmp_path) == (1, 1)


def test_checkpoints_that_are_all_broken_are_no_new_start(tmp_path):
    saved(tmp_path, 1, 2)
    for path in checkpoints(tmp_path):
        truncate_arrays(path)
    with pytest.raises(RunDirError, match=r"No checkpoint in .* can be read \(step_0000000002: .*; step_0000000001: "):
        load_newest(tmp_path)


SAVES = """
import sys
from pathlib import Path
import numpy as np
from tfaccel.training.run.checkpoint_files import save_checkpoint
folder = Path(sys.argv[1])
step = int(sys.argv[2])
while True:
    step += 1
    save_checkpoint(folder, {"x": np.full(300_000, step)}, {"step": step})
    print(step, flush=True)
"""


def killed_while_saving(folder, rounds):
    """Kills a process that saves, at random moments; returns the newest checkpoints, and those that it had named."""
    chance, found, step = random.Random(0), [], 0
    for _ in range(rounds):
        command = [sys.executable, "-c", SAVES, str(folder), str(step)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            child.stdout.readline()  # it has begun
            time.sleep(chance.uniform(0, 0.05))
            child.kill()
            said = child.stdout.read().split()
        arrays, position = load_newest(folder)
        step = position["step"]
        assert set(arrays["x"]) == {step}
        found.append((step, int(said[-1]) if said else 0))
    return found


@pytest.mark.parametrize("rounds", [3, pytest.param(200, marks=pytest.mark.slow)])
def test_kill_during_a_save_leaves_the_newest_complete_checkpoint(tmp_path, rounds):
    for newest, said in killed_while_saving(tmp_path, rounds):
        assert newest >= said
    saved(tmp_path, 10**6)
    assert all(path.name.startswith("step_") for path in tmp_path.iterdir())


FULL = """
import json, logging, resource, signal, sys
from pathlib import Path
import numpy as np
from tfaccel.errors import RunDirError
from tfaccel.training.run.checkpoint_files import load_newest
from tfaccel.training.run.checkpoints import CheckpointWriter

logging.basicConfig(stream=sys.stderr, format="%(message)s")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
folder = Path(sys.argv[1])
folder.mkdir()
writer = CheckpointWriter(folder / "checkpoints")
writer.write({"x": np.zeros(10)}, {"step": 1})
writer.wait()
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
writer.write({"x": np.zeros(100_000)}, {"step": 2})
done = [writer.wait()]
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
writer.write({"x": np.zeros(100_000)}, {"step": 3})
done.append(writer.wait())
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
try:
    for step in range(4, 9):
        writer.write({"x": np.zeros(100_000)}, {"step": step})
except RunDirError as error:
    refused = str(error)
left = sorted(path.name for path in (folder / "checkpoints").iterdir())
print(json.dumps([done, left, load_newest(folder / "checkpoints")[1], refused]))
"""


def test_full_disk_leaves_earlier_checkpoints_and_stops_after_three_failures(tmp_path):
    child = subprocess.run([sys.executable, "-c", FULL, str(tmp_path / "run")], capture_output=True, text=True)
    done, left, newest, refused = json.loads(child.stdout)
    assert (done, left, newest) == ([False, True], ["step_0000000001", "step_0000000003"], {"step": 3})
    assert child.stderr.count("could not be written to") == 3  # and the third in a row ends training
    assert "File too large. Training goes on, the earlier checkpoints are left as they are" in child.stderr
    assert refused.startswith("3 checkpoints in a row could not be written to") and "Free space" in refused


def test_folder_that_is_gone_stops_training_at_once(tmp_path):
    writer = CheckpointWriter(tmp_path / "run" / "checkpoints")
    writer.write({"x": np.zeros(10)}, {"step": 1})
    with pytest.raises(
        RunDirError, match=r"The run directory .*/run is gone, so no checkpoint can be written\. Training stops"
    ):
        writer.wait()
    writer.close()


def test_writing_needs_no_second_copy(tmp_path):
    arrays = {f"x{number}": np.zeros(4_000_000, "uint8") for number in range(8)}
    tracemalloc.start()
    save_checkpoint(tmp_path, arrays, {"step": 1})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000
