"""Faults of the data: values that are not finite, and damaged files."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel.benchmarks.fault_launch import Launch, get_result, launch, read_lines, run_command
from tfaccel.benchmarks.fault_row import FaultRow, Lab, Trial
from tfaccel.benchmarks.faults_program import EPOCHS, NUM_ROWS, NUM_VALIDATION_ROWS
from tfaccel.data import write_tfrecords
from tfaccel.processes.launched import BAD_INPUT, DONE

_NUM_IMAGES, _SIZE = 60, 8
_TRAIN = ("train", "--recipe=image_classification", "--epochs=1", "--augmentation=none", "--global_batch_size=16")


def _with_nan(lab: Lab, folder: Path, policy: str) -> tuple[int, Launch, dict[str, Any]]:
    """A run with a NaN in a random row: the row, what came of the run, and its result."""
    row = lab.chance.randrange(NUM_ROWS - NUM_VALIDATION_ROWS)
    found = launch(folder, 1, {"nan_row": row, "on_nonfinite": policy}, restarts=0)
    return row, found, get_result(folder)


def _nan_stops(lab: Lab, folder: Path) -> Trial:
    row, found, result = _with_nan(lab, folder, "stop")
    errors = [line for line in read_lines(folder / "logs") if line.startswith("tfaccel.errors.NonFiniteLossError: ")]
    named = len(errors) == 1 and f"row {row}" in errors[0]
    right = found.status == BAD_INPUT and named and found.whole and not result
    return Trial(right, errors[0] if right else f"status {found.status}: {found.output}")


def _nan_is_left_out(policy: str) -> Callable[[Lab, Path], Trial]:
    def trial(lab: Lab, folder: Path) -> Trial:
        _, found, result = _with_nan(lab, folder, policy)
        right = found.status == DONE and found.whole and result.get("left_out_batches") == EPOCHS
        said = f"{EPOCHS} batches were left out" if right else f"status {found.status}: {found.output}"
        return Trial(right, said)

    return trial


def _damaged(folder: Path) -> Path:
    """A folder of two TFRecord files, of which the second has a damaged record; returns that file."""
    from PIL import Image

    def image(number: int) -> bytes:
        pixels = np.random.default_rng(number).integers(0, 100, (_SIZE, _SIZE), np.uint8) + 100 * (number % 2)
        file = io.BytesIO()
        Image.fromarray(pixels.astype(np.uint8)).save(file, "PNG")
        return file.getvalue()

    examples = ({"image/encoded": image(n), "image/class/text": "ab"[n % 2]} for n in range(_NUM_IMAGES))
    path = write_tfrecords(examples, folder, num_shards=2)[1]
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)
    return path


def _train(folder: Path, *options: str) -> tuple[int, str]:
    """The exit status and the last line of a training run on the folder."""
    status, output = run_command(*_TRAIN, f"--data_dir={folder}/data", f"--run_dir={folder}/run", *options)
    lines = [line for line in output.splitlines() if line.startswith("tfaccel train: ")]
    return status, lines[-1] if lines else ""


def _bad_record_fails(lab: Lab, folder: Path) -> Trial:
    path = _damaged(folder / "data")
    status, said = _train(folder)
    return Trial(status == 2 and path.name in said and not (folder / "run").exists(), said or f"status {status}")


def _bad_record_is_skipped(lab: Lab, folder: Path) -> Trial:
    path = _damaged(folder / "data")
    status, said = _train(folder, "--on_bad_data=skip", "--max_bad_fraction=0.1")
    counts = get_result(folder).get("bad_data") or {}
    named = [Path(one).name for one in counts.get("files", ())]
    right = status == DONE and counts.get("num_skipped") == 1 and named == [path.name]
    return Trial(right, str(counts or said))


ROWS = {
    "nan_stops": FaultRow("NaN in a row of the data", "stops; step and row are named", _nan_stops, num_trials=3),
    "nan_is_skipped": FaultRow(
        "the same, on_nonfinite='skip'",
        "the batch is left out of each epoch, and counted",
        _nan_is_left_out("skip"),
        num_trials=1,
    ),
    "nan_is_rolled_back": FaultRow(
        "the same, on_nonfinite='rollback'",
        "goes back, and on without the batch",
        _nan_is_left_out("rollback"),
        num_trials=1,
    ),
    "bad_record": FaultRow(
        "a damaged record", "refused before training; the file is named", _bad_record_fails, num_trials=1
    ),
    "bad_record_is_skipped": FaultRow(
        "the same, on_bad_data='skip'", "left out, and counted for its file", _bad_record_is_skipped, num_trials=1
    ),
}
