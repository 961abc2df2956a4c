"""Writes files that would run code, write elsewhere or overrun the machine, and gives them to every command.

Run as a program: `hostile_files.py FOLDER`. Code from a file would write the file `ran` in the folder's parent.
"""

import itertools
import json
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
from wrong_command_lines import run_line

from tfaccel.benchmarks.fault_rows_hostile import ARRAYS, MARKER, MODELS, spoil_checkpoint, write_arrays, write_models

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
    marker = Path(folder).absolute().parent / MARKER
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
    spoil_checkpoint(Path("broken_checkpoint"), marker)
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
