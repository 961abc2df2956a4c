"""Runs Python in a fork of a process that has loaded TensorFlow and Keras already, without having started them.

What a fork runs finds what a new interpreter would give it: its own environment, folder, arguments, `__main__`, warning
filters and streams. Only the modules are there already, which saves each child some seconds.
"""

import atexit
import json
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
import warnings
from pathlib import Path

from tfaccel.processes.fork_server import ForkServer

PRELOADED = ("numpy", "tensorflow", "keras")
_TURN_SECONDS = 0.02


class ForkedPython:
    """Makes the forks; see `ForkedPython.run`."""

    def __init__(self, warning_options):
        self._warning_options = [option.removeprefix("-W") for option in warning_options]
        self._folder = tempfile.TemporaryDirectory(prefix="tfaccel-forks-")
        environment = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])}
        self._lock = threading.Lock()
        self._server = ForkServer(PRELOADED, folder=Path(self._folder.name), environment=environment)

    def run(self, code_or_module, arguments, *, is_module, env, timeout_seconds, cwd):
        """Runs code or a module; returns the completed process. Raises `subprocess.TimeoutExpired`."""
        os.umask(umask := os.umask(0o077))  # only setting it tells what it is
        with tempfile.TemporaryDirectory(dir=self._folder.name) as folder:
            order = {
                "program": code_or_module,
                "is_module": is_module,
                "arguments": list(arguments),
                "environment": dict(env),
                "umask": umask,
                "warnings": self._warning_options,
                "folder": str(cwd or Path.cwd()),
            }
            order_file, streams = Path(folder, "order.json"), [Path(folder, "stdout"), Path(folder, "stderr")]
            order_file.write_text(json.dumps(order))
            with self._lock:
                child = self._server.start("test", "forked_python", [str(order_file), *map(str, streams)], {})
            ended = self._wait(child, timeout_seconds)
            stdout, stderr = (path.read_text(errors="replace") if path.exists() else "" for path in streams)
            if not ended:
                raise subprocess.TimeoutExpired(code_or_module, timeout_seconds, stdout, stderr)
            return subprocess.CompletedProcess(code_or_module, child.status, stdout, stderr)

    def _wait(self, child, timeout_seconds):
        """Whether the child ended by itself; one that did not is killed."""
        deadline = time.monotonic() + timeout_seconds
        while child.status is None and time.monotonic() < deadline:
            self._read()
        ended = child.status is not None
        while child.status is None:
            with self._lock:
                self._server.kill(child)
            self._read()
        return ended

    def _read(self):
        """Reads what there is for any child. Threads take turns: each waits for a child of its own."""
        with self._lock:
            self._server.next_message(_TURN_SECONDS)
        time.sleep(0)

    def close(self):
        """Ends the process that makes the forks."""
        self._server.close()
        self._folder.cleanup()


def main(connection, arguments):
    """What a fork runs; returns its exit status."""
    del connection
    order_file, stdout, stderr = arguments
    order = json.loads(Path(order_file).read_text())
    for path, number in ((stdout, 1), (stderr, 2)):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    for name in os.environ.keys() - order["environment"].keys():
        del os.environ[name]
    os.environ.update(order["environment"])
    os.umask(order["umask"])
    os.chdir(order["folder"])
    sys.warnoptions[:] = order["warnings"]
    warnings.resetwarnings()
    warnings._processoptions(sys.warnoptions)
    extra = os.environ.get("PYTHONPATH", "")
    sys.path[:] = ["", *filter(None, extra.split(os.pathsep)), *(p for p in sys.path if p not in IMPORTED_FROM)]
    status = _status_of(lambda: _run(order))
    threading._shutdown()
    atexit._run_exitfuncs()
    return status


# What stood first on the path of the process that is forked: where it found this file.
IMPORTED_FROM = {"", str(Path(__file__).parent), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))}


def _run(order):
    sys.argv = ["-m" if order["is_module"] else "-c", *order["arguments"]]
    if order["is_module"]:
        runpy.run_module(order["program"], run_name="__main__", alter_sys=True)
        return
    program = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(order["program"], "<string>", "exec"), program.__dict__)


def _status_of(function):
    """The exit status that the interpreter would end with, with what it would print."""
    try:
        function()
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0
