"""Runs the Python of pages, each page in a process of its own; a test starts this program.

    python python_program.py blocks.json FOLDER

The file holds page -> list of [line, file or null, whether a new process begins, code]. TensorFlow is imported once,
and each page is forked from there. Prints page -> what went wrong, as JSON.
"""

import ast
import json
import os
import runpy
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import keras  # imported, not started: a page may choose its devices
import tensorflow  # noqa: F401


def in_processes(blocks: list[Any]) -> list[list[Any]]:
    """The blocks of a page, process by process; a further one begins with the definitions of the blocks before it."""
    found: list[list[Any]] = [[]]
    for index, (line, file, begins, code) in enumerate(blocks):
        if begins:
            found.append([[before, None, definitions(text)] for before, _, _, text in blocks[:index]])
        found[-1].append([line, file, code])
    return found


def definitions(code: str) -> str:
    """The imports, functions and classes of a program."""
    kinds = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
    return "\n".join(ast.unparse(one) for one in ast.parse(code).body if isinstance(one, kinds))


def run(page: str, blocks: list[Any], folder: Path) -> None:
    """Runs the blocks of a page in one namespace, in a folder of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    keras.utils.clear_session()
    names: dict[str, Any] = {"__name__": "__main__"}
    for line, file, code in blocks:
        if file is None:
            exec(compile("\n" * (line - 1) + code, page, "exec"), names)
        else:
            Path(file).write_text(code, encoding="utf-8")
            if file.endswith(".py"):
                runpy.run_path(file, run_name="__main__")


def outcome(page: str, blocks: list[Any], folder: Path) -> str:
    """What went wrong on a page; "" for nothing."""
    output = folder.parent / f"{folder.name}.txt"
    child = os.fork()
    if child == 0:
        status = 1
        with output.open("a") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            try:
                run(page, blocks, folder)
                status = 0
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
    status = os.waitpid(child, 0)[1]
    return "" if status == 0 else f"status {status}\n{output.read_text()[-4000:]}"


def main() -> None:
    warnings.filterwarnings("ignore", message=".*use of fork.*", category=DeprecationWarning)
    found = json.loads(Path(sys.argv[1]).read_text())
    folder = Path(sys.argv[2])
    outcomes = {
        page: "".join(outcome(page, process, folder / page.replace("/", "_")) for process in in_processes(rows))
        for page, rows in found.items()
    }
    print(json.dumps(outcomes))


main()
