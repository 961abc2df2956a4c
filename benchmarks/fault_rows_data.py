"""Faults of the data: values that are not finite, and damaged files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tfaccel.benchmarks.fault_launch import launch, lines_of
from tfaccel.benchmarks.fault_row import FaultRow, Lab, Trial
from tfaccel.benchmarks.faults_program import EPOCHS, NUM_ROWS, NUM_VALIDATION_ROWS
from tfaccel.data import write_tfrecords
from tfaccel.processes.child import Child
from tfaccel.processes.exit_status import DONE, PERMANENT

_NUM_IMAGES, _SIZE = 60, 8
_LIMIT_SECONDS = 300.0
_TRAIN = ("train", "--recipe=image_classification", "--epochs=1", "--augmentation=none", "--global_batch_size=16")


def _with_nan(lab: Lab, folder: Path, policy: str) -> tuple[int, str, dict[str, Any]]:
    """A run with a NaN in a random row: its exit status, the line of its error, and its result."""
    row = lab.chance.randrange(NUM_ROWS - NUM_VALIDATION_ROWS)
    found = launch(folder, 1, {"nan_row": row, "on_nonfinite": policy}, restarts=0)
    errors = [line for line in lines_of(folder / "logs") if line.startswith("tfaccel.errors.NonFiniteLossError: ")]
    path = folder / "run" / "result.json"
    result = json.loads(path.read_text()) if path.exists() else {}
    said = errors[-1] if len(errors) == 1 and f"row {row}" in errors[0] and found.whole else ""
    return found.status, said or ("" if found.status == DONE else found.output), result


def _nan_stops(lab: Lab, folder: Path) -> Trial:
    status, said, result = _with_nan(lab, folder, "stop")
    right = status == PERMANENT and said.startswith("tfaccel.errors.NonFiniteLossError: ") and not result
    return Trial(right, said or f"status {status}")


def _nan_is_left_out(policy: str) -> Any:
    def trial(lab: Lab, folder: Path) -> Trial:
        status, said, result = _with_nan(lab, folder, policy)
        left_out = result.get("left_out_batches")
        return Trial(status == DONE and left_out == EPOCHS, said or f"{left_out} batches were left out")

    return trial


def _damaged(folder: Path) -> Path:
    """A folder of two TFRecord files, of which the second has a damaged record; returns that file."""
    import io

    import numpy as np
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
    command = [sys.executable, "-m", "tfaccel.scripts.main", *_TRAIN, f"--data_dir={folder}/data", *options]
    with Child([*command, f"--run_dir={folder}/run"]) as child:
        status = child.process.wait(_LIMIT_SECONDS)
        lines = [line for line in child.output().splitlines() if line.startswith("tfaccel train: ")]
    return status, lines[-1] if lines else ""


def _bad_record_fails(lab: Lab, folder: Path) -> Trial:
    path = _damaged(folder / "data")
    status, said = _train(folder)
    return Trial(status == 2 and path.name in said and not (folder / "run").exists(), said or f"status {status}")


def _bad_record_is_skipped(lab: Lab, folder: Path) -> Trial:
    path = _damaged(folder / "data")
    status, said = _train(folder, "--on_bad_data=skip", "--max_bad_fraction=0.1")
    result = folder / "run" / "result.json"
    counts = json.loads(result.read_text())["bad_data"] if result.exists() else {}
    named = [Path(one).name for one in counts.get("files", ())]
    right = status == DONE and counts.get("num_skipped") == 1 and named == [path.name]
    return Trial(right, str(counts or said))


ROWS = {
    "nan_stops": FaultRow("NaN in a row of the data", "stops; step and row are named", _nan_stops, num_trials=3),
    "nan_is_skipped": FaultRow(
        "the same, on_nonfinite='skip'", "the batch is left out of each epoch, and counted", _nan_is_left_out("skip"), 1
    ),
    "nan_is_rolled_back": FaultRow(
        "the same, on_nonfinite='rollback'", "goes back, and on without the batch", _nan_is_left_out("rollback"), 1
    ),
    "bad_record": FaultRow("a damaged record", "refused before training; the file is named", _bad_record_fails, 1),
    "bad_record_is_skipped": FaultRow(
        "the same, on_bad_data='skip'", "left out, and counted for its file", _bad_record_is_skipped, 1
    ),
}
