"""Runs the command lines of `wrong_command_lines.txt`: `python wrong_command_lines.py FOLDER COMMAND=STEP...`.

The program makes a folder of broken files and runs each STEPth line of the commands there, in one process. It prints a
JSON line with what came of each.
"""

import itertools
import json
import os
import re
import shlex
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

TABLE = Path(__file__).with_suffix(".txt")
FOLDERS = (
    *("table.csv", "empty_folder", "unfinished", "broken_run", "strange_run", "listed_run", "deep_run"),
    *("broken_saved_model", "images/a", "images/b", "one_class/a", "broken_image/a", "broken_image/b"),
)


def lines(command: str) -> Iterator[list[str]]:
    """The arguments of each wrong command line of a command."""
    sets = {"LONG": ["a" * 300], "UNDECODABLE": ["bad\udcff"]}
    for line in TABLE.read_text().splitlines():
        name, equals, values = line.partition(" = ")
        if equals and name.isupper():
            sets[name] = [one for value in shlex.split(values) for one in expanded([value], sets) for one in one]
        elif line.partition(" ")[0] == command:
            yield from expanded(shlex.split(line)[1:], sets)


def commands() -> list[str]:
    """The commands of the table, in its order."""
    return list(dict.fromkeys(re.findall(r"^([a-z-]+)(?= |$)", TABLE.read_text(), re.MULTILINE)))


def expanded(arguments: list[str], sets: dict[str, list[str]]) -> Iterator[list[str]]:
    """The arguments with each value of the sets that they name in braces."""
    names = re.findall(r"{([A-Z_]+)}", " ".join(arguments))
    for values in itertools.product(*(sets[name] for name in names)):
        replaced = iter(values)
        yield [re.sub(r"{[A-Z_]+}", lambda _, found=replaced: next(found), argument) for argument in arguments]


MINE = """
from tfaccel import Workload
number = 3
def returns_none(): pass
def raises(): raise ValueError("the file of labels is missing")
def needs(labels): pass
def workload():
    return Workload("mine", lambda: None, lambda: {}, lambda size, *, seed, epoch: None, global_batch_size=8)
"""


def write_files(folder: Path) -> None:
    """Makes the files that the command lines name."""
    import numpy as np
    from PIL import Image

    rows = [f"{i},{i / 10},{'ab'[i % 2]},{i * 1.5}" for i in range(200)]
    (folder / "good.csv").write_text("\n".join(["time,x,kind,price", *rows]))
    (folder / "header.csv").write_text("time,x,kind,price\n")
    (folder / "one_row.csv").write_text("time,x,kind,price\n1,2,a,3\n")
    (folder / "uneven.csv").write_text("time,x,kind,price\n1,2,a,3\n1,2\n1,2,3,4,5,6\n")
    (folder / "latin.csv").write_bytes("\n".join(["time,größe,price", *["1,2,3"] * 50]).encode("latin-1"))
    for suffix in ("csv", "npz", "keras", "tflite", "json", "png"):
        (folder / f"empty.{suffix}").touch()
        (folder / f"binary.{suffix}").write_bytes(bytes(range(256)) * 40)
    np.savez(folder / "good.npz", x_train=np.zeros((80, 8, 8)), y_train=np.arange(80) % 2)
    np.savez(folder / "other.npz", a=np.zeros(3))
    np.savez(folder / "pickled.npz", x_train=np.array([{}, print], object), y_train=np.zeros(2))
    (folder / "truncated.npz").write_bytes((folder / "good.npz").read_bytes()[:3000])
    with zipfile.ZipFile(folder / "other.keras", "w") as archive:
        archive.writestr("metadata.json", "{}")
        archive.writestr("config.json", "[]")
    (folder / "truncated.keras").write_bytes((folder / "other.keras").read_bytes()[:60])
    for name in FOLDERS:
        (folder / name).mkdir(parents=True)
    for name in ("images/a/1", "images/b/1", "one_class/a/1", "broken_image/a/1"):
        Image.new("L", (8, 8)).save(folder / f"{name}.png")
    (folder / "broken_image/b/1.png").write_text("no image")
    (folder / "broken_saved_model/saved_model.pb").write_bytes(b"no graph")
    config = {"recipe": "image_classification", "options": {}, "epochs": 3, "seed": 0}
    strange, deep = json.dumps({**config, "recipe": "nothing"}), "[" * 100_000
    runs = {"unfinished": json.dumps(config), "broken_run": "{", "listed_run": "[]"}
    runs |= {"strange_run": strange, "deep_run": deep}
    for name, text in runs.items():
        (folder / name / "config.json").write_text(text)
        if name != "unfinished":
            (folder / name / "result.json").write_text("{}")
            (folder / name / "model.keras").write_bytes(b"PK")
    (folder / "list.json").write_text("[1, 2]")
    (folder / "unknown.json").write_text('{"strategy": "none", "strategi": 3}')
    (folder / "nan.json").write_text('{"strategy": "none", "devices": ["CPU:0"], "global_batch_size": NaN}')
    (folder / "deep.json").write_text("[" * 100_000)
    (folder / "mine.py").write_text(MINE)
    (folder / "broken_module.py").write_text("1 / 0\n")


def files_of(folder: Path) -> dict[str, tuple[int, int]]:
    """What is in a folder, and when it was changed."""
    found = [path for path in folder.rglob("*") if "__pycache__" not in path.parts]
    return {str(path.relative_to(folder)): (path.lstat().st_size, path.lstat().st_mtime_ns) for path in found}


def run_line(command: str, arguments: list[str]) -> tuple[int | str, str, str]:
    """Status (or the exception), standard output and standard error, that of TensorFlow's C++ code as well."""
    from tfaccel.scripts.main import main

    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        kept = [os.dup(number) for number in (1, 2)]
        sys.stdout.flush(), sys.stderr.flush()
        os.dup2(out.fileno(), 1), os.dup2(err.fileno(), 2)
        try:
            status: int | str = main(["tfaccel", command, *arguments])
        except BaseException as error:
            status = f"{type(error).__name__}: {error}"[:300]
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            for number, descriptor in zip((1, 2), kept, strict=True):
                os.dup2(descriptor, number)
                os.close(descriptor)
        out.seek(0), err.seek(0)
        return status, out.read().decode(errors="replace"), err.read().decode(errors="replace")


def main(folder: str, *steps: str) -> None:
    """Runs every `step`-th line of each command; prints a JSON line for each."""
    write_files(Path(folder))
    os.chdir(folder)
    before = files_of(Path())
    for command, _, step in (one.partition("=") for one in steps):
        for arguments in itertools.islice(lines(command), 0, None, int(step)):
            started = time.monotonic()
            status, out, err = run_line(command, arguments)
            changed = sorted(set(files_of(Path()).items()) ^ set(before.items()))
            seconds = time.monotonic() - started
            outcome = [command, arguments, status, out, err, [name for name, _ in changed], seconds]
            sys.stdout.write(json.dumps(outcome) + "\n")
            sys.stdout.flush()
            before = files_of(Path())


if __name__ == "__main__":
    main(*sys.argv[1:])
