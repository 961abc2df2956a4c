"""Loads modules once, then forks processes on request.

    python -m tfaccel.processes.fork_server_program DESCRIPTOR MODULE ... [-MODULE ...]

The descriptor is that of a socket: orders for processes come from it, each with the descriptor of the process's own
connection, and how they ended goes back. They are all ended when nobody holds its other end. The modules are loaded
without starting a thread, so that a fork is safe.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tfaccel.processes.child import end_group, end_with_parent
from tfaccel.processes.quiet_start import collect_less_often, keep_loaded_objects

_MAX_ORDER_BYTES = 2**17
_POLL_SECONDS = 0.05


def main(argv: list[str]) -> int:
    """Forks processes until the owner is gone; returns the exit status."""
    owner = socket.socket(fileno=int(argv[1]))
    collect_less_often()
    left_out = {name[1:] for name in argv[2:] if name.startswith("-")} - {*sys.modules}
    sys.modules.update(dict.fromkeys(left_out))  # type: ignore[arg-type]  # None: an import fails
    for module in argv[2:]:
        if not module.startswith("-"):
            import_module(module)
    for name in left_out:
        del sys.modules[name]
    keep_loaded_objects()
    running: dict[int, str] = {}
    try:
        _serve(owner, running)
    finally:
        for pid in running:
            _kill(pid)
            os.waitpid(pid, 0)
    return 0


def _serve(owner: socket.socket, running: dict[int, str]) -> None:
    """Starts and kills processes as ordered, and reports how they ended, until the owner is gone.

    Args:
        owner: the socket.
        running: process id -> name, kept up to date.
    """
    while True:
        if select.select([owner], [], [], _POLL_SECONDS)[0]:
            try:
                data, descriptors, _, _ = socket.recv_fds(owner, _MAX_ORDER_BYTES, 1)
            except ConnectionError:  # the owner ended without reading everything
                return
            if not data:
                return
            order = json.loads(data)
            if descriptors:
                running[_forked(order, descriptors[0], owner)] = order["name"]
            else:
                for pid, name in running.items():
                    if name == order["kill"]:
                        _kill(pid)
        for pid in list(running):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                end_group(pid)  # processes that it started itself
                ended = {"name": running.pop(pid), "status": os.waitstatus_to_exitcode(status)}
                with contextlib.suppress(ConnectionError):  # there is nobody any more, as the next turn finds
                    owner.send(json.dumps(ended).encode())


def _kill(pid: int) -> None:
    end_group(pid)
    with contextlib.suppress(ProcessLookupError):  # one that was made a moment ago may lead no group yet
        os.kill(pid, signal.SIGKILL)


def _forked(order: dict[str, Any], descriptor: int, owner: socket.socket) -> int:
    """The id of a new process, which runs a module's `main(connection, arguments)`."""
    process = os.fork()
    if process:
        os.close(descriptor)
        return process
    status = 1
    try:
        os.setsid()
        owner.close()
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for opened, replaced in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(opened, replaced)
        with contextlib.suppress(OSError):
            Path("/proc/self/comm").write_text(order["name"])  # as `ps` and `top` show it
        os.environ.update(order["environment"])
        os.set_inheritable(descriptor, False)
        end_with_parent(descriptor)
        connection = Connection(descriptor)  # stays open, also if `main` lets it go
        status = import_module(order["module"]).main(connection, order["arguments"])
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:  # a full disk must not bring a child back into the server's code
            os._exit(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
