"""Writes files that would run code, write elsewhere or overrun the machine, and gives them to every command.

Run as a program: `hostile_files.py FOLDER`. Code from a file would write the file `ran` in the folder's parent.
"""

import io
import itertools
import json
import os
import re
import shutil
import sys
import zipfile
from pathlib import Path

import numpy as np
from wrong_command_lines import run_line

BOMB_BYTES = 96 * 2**20
MODELS = ("lambda.keras", "lambda.h5", "escape.keras", "layer.keras", "bomb.keras", "archive.keras", "link.keras")
ARRAYS = ("pickled.npy", "pickled.npz", "claims.npy", "claims.npz")
TRAIN = ("train", "--recipe=image_classification", "--quiet", "--epochs=1")
# The arguments of each command; FILE stands for a hostile file, RUN for a run directory that has it as its model.
ON_MODELS = (
    (*TRAIN, "--run_dir=new", "--teacher=FILE"),
    (*TRAIN, "--run_dir=new", "--teacher=RUN"),
    ("train", "--recipe=transfer_learning", "--quiet", "--run_dir=new", "--backbone=FILE"),
    ("predict", "--model=FILE", "--input=rows.npy", "--output=new.csv"),
    ("predict", "--run_dir=RUN", "--input=rows.npy", "--output=new.csv"),
    ("export", "--run_dir=RUN", "--out=new", "--quiet"),
    ("compress", "--run_dir=RUN", "--methods=float16"),
    ("serve", "--model=FILE", "--port=0"),
    ("serve", "--run_dir=RUN", "--port=0"),
)
ON_ARRAYS = (
    (*TRAIN, "--run_dir=new", "--data_dir=FILE"),
    ("predict", "--run_dir=run", "--input=FILE", "--output=new.csv"),
)
ON_RUNS = ((*TRAIN, "--run_dir=RUN", "--width=4", "--resume=must"),)


class Code:
    """Unpickling runs a command."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


def write_models(folder: Path, good: Path, marker: Path) -> None:
    import keras

    def run(x, marker=str(marker)):
        open(marker, "w").close()
        return x

    model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Lambda(run)])
    for name in ("lambda.keras", "lambda.h5"):
        model.save(folder / name)
    marker.unlink(missing_ok=True)  # saving has called the function
    for name, members in {
        "escape.keras": {"../../ran": b"x"},
        "bomb.keras": {"assets/zeros": bytes(BOMB_BYTES)},
    }.items():
        shutil.copy(good, folder / name)
        with zipfile.ZipFile(folder / name, "a", zipfile.ZIP_DEFLATED) as archive:
            for member, content in members.items():
                archive.writestr(member, content)
    with zipfile.ZipFile(good) as archive, zipfile.ZipFile(folder / "layer.keras", "w") as changed:
        for member in archive.namelist():
            content = archive.read(member)
            if member == "config.json":
                content = content.replace(b'"name": "logits"', b'"name": "../../../ran"')
            changed.writestr(member, content)
    import tarfile

    with tarfile.open(folder / "archive.keras", "w") as archive:
        entry = tarfile.TarInfo("../../ran")
        entry.size = 1
        archive.addfile(entry, io.BytesIO(b"x"))
    (folder / "link.keras").symlink_to("/etc/passwd")


def write_arrays(folder: Path, marker: Path) -> None:
    pickled = np.array([Code(str(marker))], dtype=object)
    names = ("x_train", "y_train", "x_test", "y_test")
    np.save(folder / "pickled.npy", pickled, allow_pickle=True)
    np.savez(folder / "pickled.npz", **dict.fromkeys(names, pickled))
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (10**13,)})
    (folder / "claims.npy").write_bytes(header.getvalue())
    with zipfile.ZipFile(folder / "claims.npz", "w") as archive:
        for name in names:
            archive.writestr(f"{name}.npy", header.getvalue())


def write_checkpoint(run: Path, marker: Path) -> None:
    """Puts pickled objects into the run's newest checkpoint, whose checksums all fit."""
    import hashlib

    (folder,) = sorted((run / "checkpoints").glob("step_*"))[-1:]
    (arrays,) = folder.glob("*.npz")
    with np.load(arrays) as stored:
        content = {name: stored[name] for name in stored.files}
    first = next(iter(content))
    np.savez(arrays, **{**content, first: np.array([Code(str(marker))], dtype=object)})
    (header_file,) = (path for path in folder.glob("*.json") if "sha256_of_header" in path.read_text())
    header = json.loads(header_file.read_text())
    header.pop("sha256_of_header")
    header["sha256"] = hashlib.sha256(arrays.read_bytes()).hexdigest()
    header["sha256_of_header"] = hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()
    header_file.write_text(json.dumps(header))
    for later in ("result.json", "model.keras"):
        (run / later).unlink()


def command_lines() -> list[tuple[str, ...]]:
    lines: list[list[str]] = []
    for line, file in itertools.chain(itertools.product(ON_MODELS, MODELS), itertools.product(ON_ARRAYS, ARRAYS)):
        lines.append([part.replace("FILE", file).replace("RUN", f"run_{Path(file).stem}_{file[-2:]}") for part in line])
    for line, run in itertools.product(
        ON_RUNS, [*(f"run_{Path(m).stem}_{m[-2:]}" for m in MODELS), "broken_checkpoint"]
    ):
        lines.append([part.replace("RUN", run) for part in line])
    return [tuple(line) for line in lines]


def main(folder: str, step: str = "1", pattern: str = "") -> None:
    """Prints a JSON line for every `step`-th command line with a pattern: itself, status, output, and what it wrote.

    That is: new files in the folder and, last, whether code from a file ran.
    """
    os.chdir(folder)
    here = Path()
    marker = Path(folder).absolute().parent / "ran"
    status, _, err = run_line("train", [*TRAIN[1:], "--run_dir=run", "--width=4"])  # the run that is then spoiled
    assert status == 0, err
    write_models(here, here / "run" / "model.keras", marker)
    write_arrays(here, marker)
    np.save("rows.npy", np.zeros((2, 8, 8, 1), np.float32))
    for name in MODELS:
        run = here / f"run_{Path(name).stem}_{name[-2:]}"
        shutil.copytree("run", run)
        (run / "model.keras").unlink()
        shutil.copy(name, run / "model.keras", follow_symlinks=False)
    shutil.copytree("run", "broken_checkpoint")
    write_checkpoint(Path("broken_checkpoint"), marker)
    before = sorted(map(str, here.rglob("*")))
    chosen = [line for line in command_lines() if re.search(pattern, " ".join(line))]
    for line in chosen[:: int(step)]:
        status, out, err = run_line(line[0], list(line[1:]))
        new = sorted(set(map(str, here.rglob("*"))) - set(before))
        sys.stdout.write(json.dumps([line, status, out, err, new, marker.exists()]) + "\n")
        sys.stdout.flush()
        marker.unlink(missing_ok=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
