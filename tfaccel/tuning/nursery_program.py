"""Loads Keras Tuner and TensorFlow once, and from then on makes each process of a search by a fork, at once.

    python -m tfaccel.tuning.nursery_program FOLDER

It is told on standard input which processes to make, says on standard output when they end, and with what status, and
ends them all when standard input ends. It runs no operation of TensorFlow and starts no thread, so that a fork is safe.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

PRELOADED = ("keras_tuner.oracles", "tfaccel.tuning.discovery", "tfaccel.tuning.hparams", "tfaccel.tuning.oracles",
             "tfaccel.tuning.retrain", "tfaccel.tuning.trial_run")  # fmt: skip
_POLL_SECONDS = 0.05
_OBJECTS_BETWEEN_COLLECTIONS = 100_000


def main(argv: list[str]) -> int:
    """Makes processes until standard input ends; returns the exit status."""
    folder = Path(argv[0])
    output = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever is printed while loading is no message
    for module in PRELOADED:
        import_module(module)
    gc.collect()
    gc.freeze()  # what is loaded stays: no child has to look through it
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)  # tracing makes many objects that stay; trials end with a collection
    children: dict[int, str] = {}
    unread = b""
    while True:
        if select.select([0], [], [], _POLL_SECONDS)[0]:
            chunk = os.read(0, 1 << 16)
            if not chunk:
                break
            *lines, unread = (unread + chunk).split(b"\n")
            for line in lines:
                order = json.loads(line)
                process = _forked(order, folder, output)
                children[process] = order["name"]
                _say(output, "started", order["name"], pid=process)
        for process in list(children):
            found, status = os.waitpid(process, os.WNOHANG)
            if found:
                _say(output, "ended", children.pop(process), status=os.waitstatus_to_exitcode(status))
    for process in children:
        os.killpg(process, signal.SIGKILL)
    return 0


def _say(output: int, event: str, name: str, **content: Any) -> None:
    os.write(output, (json.dumps({"event": event, "name": name, **content}) + "\n").encode())


def _forked(order: dict[str, Any], folder: Path, output: int) -> int:
    """The id of a new process, which runs a program's `main`."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        os.setsid()
        os.close(output)
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for descriptor, replaced in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(descriptor, replaced)
        with contextlib.suppress(OSError):
            Path("/proc/self/comm").write_text(order["name"])  # as `ps` and `top` show it
        os.environ.update(order["environment"])
        status = import_module(order["program"]).main(folder, order["name"], order["arguments"])
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
