"""A Python module in a child process, with a two-way connection for objects."""

from __future__ import annotations

import multiprocessing
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from tfaccel.processes.child import Child, Environment


class ConnectedChild(Child):
    """A running module, whose `main` calls `connect_to_parent`.

    Args:
        module: its import path; the number of its end of the connection is its first argument.
        arguments: further ones.
        python: the interpreter.
        options: of the interpreter.
        environment, base: as for `Child`.

    Attributes:
        connection: the parent's end of the connection.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        python: str = sys.executable,
        options: Sequence[str] = ("-P",),
        environment: Environment | None = None,
        base: Mapping[str, str] | None = None,
    ) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        number = theirs.fileno()
        command = [python, *options, "-m", module, str(number), *arguments]
        try:
            super().__init__(command, environment=environment, base=base, pass_fds=[number], stdin=subprocess.DEVNULL)
        except BaseException:
            self.connection.close()
            raise
        finally:
            theirs.close()

    def send(self, message: Any) -> bool:
        """Sends an object; False if the child has ended, which `receive` reports too."""
        try:
            self.connection.send(message)
        except ConnectionError:
            return False
        return True

    def receive(self, time_limit_seconds: float | None = None) -> Any:
        """The next object from the child.

        Raises:
            TimeoutError: if nothing arrives within the time limit.
            EOFError: if it has ended.
        """
        if not self.connection.poll(time_limit_seconds):
            raise TimeoutError
        try:
            return self.connection.recv()
        except OSError as error:  # it died, perhaps in the middle of a message
            raise EOFError from error

    def end(self, *, grace_seconds: float = 0.0) -> None:
        """Ends it and all that it started."""
        super().end(grace_seconds=grace_seconds)
        self.connection.close()


def connect_to_parent(argv: Sequence[str], *, on_orphaned: Callable[[], None] = lambda: None) -> Connection:
    """The child's end of the connection, for a `ConnectedChild`'s module. From then on it ends with its parent.

    Args:
        argv: its command line.
        on_orphaned: called before the process ends because its parent is gone.
    """
    connection: Connection = Connection(int(argv[1]))
    os.set_inheritable(connection.fileno(), False)
    end_with_parent(connection.fileno(), on_orphaned)
    return connection


def end_with_parent(descriptor: int = 0, on_orphaned: Callable[[], None] = lambda: None) -> None:
    """Ends this process as soon as nobody holds the other end of a pipe or socket, whatever it is doing.

    Args:
        descriptor: of the pipe or socket; by default standard input, which `Child` holds the other end of.
        on_orphaned: called before.
    """
    hang_up = select.poll()
    hang_up.register(descriptor, 0)

    def watch() -> None:
        hang_up.poll()
        on_orphaned()
        os._exit(1)

    threading.Thread(target=watch, name="end with parent", daemon=True).start()
