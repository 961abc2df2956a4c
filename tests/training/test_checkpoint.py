"""Checkpoints on disk are exact and complete; damaged ones are skipped, and the log names them."""

import json
import logging

import ml_dtypes
import numpy as np
import pytest

from tfaccel.training.run.checkpoint import checkpoints, load_newest, save_checkpoint

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
