"""Files that would run code, write elsewhere or overrun the machine, and commands that they are given to."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel.benchmarks.fault_launch import run_command
from tfaccel.benchmarks.fault_row import FaultRow, Lab, Trial
from tfaccel.processes.quiet_start import without_notes

MODELS = ("lambda.keras", "lambda.h5", "escape.keras", "layer.keras", "bomb.keras", "archive.keras", "link.keras")
ARRAYS = ("pickled.npy", "pickled.npz", "claims.npy", "claims.npz")
MARKER = "ran"  # the file that code from a hostile file would write
_ARRAYS_OF_A_DATA_SET = ("x_train", "y_train", "x_test", "y_test")
_BOMB_BYTES = 96 * 2**20
_CLAIMED_ROWS = 10**13
_TRAIN = ("train", "--recipe=image_classification", "--epochs=1", "--width=4", "--quiet")


class _Code:
    """Unpickling runs a command."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.marker}",)


def write_models(folder: Path, good: Path, marker: Path) -> None:
    """Writes the files `MODELS`.

    Args:
        folder: where to.
        good: a model of the recipe `image_classification`, which some of them are made from.
        marker: the file that their code would write.
    """
    import keras

    def run(x: Any, marker: str = str(marker)) -> Any:
        open(marker, "w").close()
        return x

    model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Lambda(run)])
    for name in ("lambda.keras", "lambda.h5"):
        model.save(folder / name)
    marker.unlink(missing_ok=True)  # saving has called the function
    for name, member, content in (
        ("escape.keras", f"../../{marker.name}", b"x"),
        ("bomb.keras", "assets/zeros", bytes(_BOMB_BYTES)),
    ):
        shutil.copy(good, folder / name)
        with zipfile.ZipFile(folder / name, "a", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(member, content)
    with zipfile.ZipFile(good) as archive, zipfile.ZipFile(folder / "layer.keras", "w") as changed:
        for member in archive.namelist():
            content = archive.read(member)
            if member == "config.json":
                content = content.replace(b'"name": "logits"', f'"name": "../../../{marker.name}"'.encode())
            changed.writestr(member, content)
    with tarfile.open(folder / "archive.keras", "w") as tar:
        entry = tarfile.TarInfo(f"../../{marker.name}")
        entry.size = 1
        tar.addfile(entry, io.BytesIO(b"x"))
    (folder / "link.keras").symlink_to("/etc/passwd")


def write_arrays(folder: Path, marker: Path) -> None:
    """Writes the files `ARRAYS`: pickled objects, and headers that claim more rows than any machine holds."""
    pickled = np.array([_Code(marker)], dtype=object)
    np.save(folder / "pickled.npy", pickled, allow_pickle=True)
    np.savez(folder / "pickled.npz", **dict.fromkeys(_ARRAYS_OF_A_DATA_SET, pickled))  # type: ignore[arg-type]
    header = io.BytesIO()
    shape = {"descr": "<f4", "fortran_order": False, "shape": (_CLAIMED_ROWS,)}
    np.lib.format.write_array_header_1_0(header, shape)
    (folder / "claims.npy").write_bytes(header.getvalue())
    with zipfile.ZipFile(folder / "claims.npz", "w") as archive:
        for name in _ARRAYS_OF_A_DATA_SET:
            archive.writestr(f"{name}.npy", header.getvalue())


def spoil_checkpoint(run: Path, marker: Path) -> None:
    """Puts pickled objects into a run's newest checkpoint, whose checksums all fit, and removes what came after it."""
    folder = max((run / "checkpoints").glob("step_*"))
    (arrays,) = folder.glob("*.npz")
    with np.load(arrays) as stored:
        content = {name: stored[name] for name in stored.files}
    first = next(iter(content))
    np.savez(arrays, **{**content, first: np.array([_Code(marker)], dtype=object)})
    (header_file,) = (path for path in folder.glob("*.json") if "sha256_of_header" in path.read_text())
    header = json.loads(header_file.read_text())
    header.pop("sha256_of_header")
    header["sha256"] = hashlib.sha256(arrays.read_bytes()).hexdigest()
    header["sha256_of_header"] = hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()
    header_file.write_text(json.dumps(header))
    for later in ("result.json", "model.keras"):
        (run / later).unlink()


def _refused(lab: Lab, folder: Path) -> Trial:
    del lab
    here = folder / "here"
    here.mkdir()
    marker = folder / MARKER
    status, said = run_command(*_TRAIN, f"--run_dir={here}/run")
    if status:
        return Trial(False, f"training what is then spoiled: status {status}: {said}")
    with without_notes(wants_gpus=False):
        write_models(here, here / "run" / "model.keras", marker)
    write_arrays(here, marker)
    np.save(here / "rows.npy", np.zeros((2, 8, 8, 1), np.float32))
    spoil_checkpoint(here / "run", marker)
    predict = ("predict", f"--input={here}/rows.npy", f"--output={here}/new.csv")
    lines: list[tuple[str, ...]] = [(*predict, f"--model={here}/{name}") for name in MODELS]
    lines += [(*_TRAIN, f"--run_dir={here}/new", f"--data_dir={here}/{name}") for name in ARRAYS]
    lines += [(*_TRAIN, f"--run_dir={here}/run", "--resume=must")]
    before = sorted(folder.rglob("*"))
    wrong = []
    for line in lines:
        status, said = run_command(*line)
        new = [path for path in sorted(folder.rglob("*")) if path not in before]
        if status != 2 or said.count("\n") != 1 or not said.startswith(f"tfaccel {line[0]}: ") or new:
            wrong.append(f"{' '.join(line)}: status {status}, new files {new[:3]}, {said[-300:]}")
    return Trial(not wrong, wrong[0] if wrong else f"{len(lines)} command lines were refused")


ROWS = {
    "hostile_files": FaultRow(
        "models, arrays and a checkpoint that would run code, write elsewhere or fill the memory",
        "refused with one line before code runs or a file is written",
        _refused,
        num_trials=1,
    )
}
