"""A program in a child process with its own process group, which is terminated as a whole; or a module, connected."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, Self

from tfaccel.errors import TfaccelError

_MEANINGS = {
    signal.SIGABRT: "the program aborted itself",
    signal.SIGBUS: "inaccessible memory",
    signal.SIGILL: "the processor lacks an instruction that a library was built for",
    signal.SIGKILL: "often: out of memory",
    signal.SIGSEGV: "invalid memory access",
    signal.SIGTERM: "terminated from outside",
}
NO_INPUT, PIPE = subprocess.DEVNULL, subprocess.PIPE
_CLOSED_SECONDS = 10.0
_READER_SECONDS = 2.0
_SHOWN_CHARACTERS = 6000

Environment = Mapping[str, str | None]


class ProcessError(TfaccelError, RuntimeError):
    """A program failed, or exceeded its time limit.

    Attributes:
        how: how it ended; see `how_it_ended`.
        output: the end of what it had written to its standard error.
    """

    def __init__(self, program: str, how: str, output: str) -> None:
        super().__init__(f"{program} {how}. Its last words: {last_words(output)}")
        self.how = how
        self.output = output


def how_it_ended(status: int) -> str:
    """How a process ended, in words that follow its name.

    Args:
        status: its exit status; for one that was killed, the negative signal number.

    Example:
        >>> how_it_ended(3), how_it_ended(-9)
        ('ended with status 3', 'was killed by SIGKILL (often: out of memory)')
    """
    if status >= 0:
        return f"ended with status {status}"
    try:
        number = signal.Signals(-status)
    except ValueError:  # a real-time signal: most of them have no name
        return f"was killed by signal {-status}"
    return f"was killed by {number.name}" + (f" ({_MEANINGS[number]})" if number in _MEANINGS else "")


def last_words(output: str, num_lines: int = 1) -> str:
    """The last non-empty lines, joined into one.

    Example:
        >>> last_words("Traceback ...\\nValueError: no\\n\\n"), last_words("")
        ('ValueError: no', 'none')
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return " | ".join(lines[-num_lines:]) or "none"


def end_group(pid: int, number: int = signal.SIGKILL) -> None:
    """Sends a signal to all processes of a group; no-op if they have ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


class Child:
    """A running program; as a context manager, ends it on exit.

    Its standard input is a pipe that nothing is written to, unless `stdin` says otherwise. It ends when this process
    does, so that a program that watches it can end as well; see `end_with_parent`.

    Args:
        command: program and arguments.
        environment: what to add to the environment of this process; None removes a name.
        base: the environment to add to, instead of this process's.
        pipes: "stdout" if `process.stdout` is to be a pipe; otherwise standard output goes with standard error.
            "stderr" if `process.stderr` is to be one; otherwise standard error is kept, see `output`.
        pass_fds: file descriptors that the program inherits.
        log: the file that its output is appended to; by default a temporary one.
        stdin: as for `subprocess.Popen`; `NO_INPUT` for none.

    Raises:
        OSError: if the program cannot be started.
        TfaccelError: if the log is a symbolic link: it may lead to another user's file.

    Example:
        >>> with Child([sys.executable, "-c", "import os; print('end'); os._exit(3)"]) as child:
        ...     child.how_it_ended(), child.output()
        ('ended with status 3', 'end\\n')
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Environment | None = None,
        base: Mapping[str, str] | None = None,
        pipes: Collection[str] = (),
        pass_fds: Sequence[int] = (),
        log: Path | None = None,
        stdin: int = PIPE,
    ) -> None:
        variables = {**(os.environ if base is None else base), **(environment or {})}
        self._output: IO[bytes] = tempfile.TemporaryFile() if log is None else _log(log)  # noqa: SIM115
        try:
            self.process = subprocess.Popen(
                list(command),
                env={name: value for name, value in variables.items() if value is not None},
                stdin=stdin,
                stdout=subprocess.PIPE if "stdout" in pipes else self._output,
                stderr=subprocess.PIPE if "stderr" in pipes else self._output,
                text=True,
                errors="replace",
                start_new_session=True,
                pass_fds=pass_fds,
            )
        except BaseException:
            self._output.close()
            raise
        self._readers: list[threading.Thread] = []

    def read_lines(self, on_line: Callable[[str, str], None], *pipes: str) -> None:
        """Reads pipes from threads, while the program runs.

        Args:
            on_line: called with the name of a pipe and each line from it.
            *pipes: "stdout", "stderr" or both.
        """
        self._readers = [threading.Thread(target=self._read, args=(name, on_line), daemon=True) for name in pipes]
        for reader in self._readers:
            reader.start()

    def _read(self, name: str, on_line: Callable[[str, str], None]) -> None:
        for line in getattr(self.process, name):
            on_line(name, line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def how_it_ended(self) -> str:
        """See the function of that name; waits a while for a process that is about to end."""
        try:
            return how_it_ended(self.process.wait(_CLOSED_SECONDS))
        except subprocess.TimeoutExpired:
            return "closed its connection without ending"

    def output(self, num_characters: int | None = _SHOWN_CHARACTERS) -> str:
        """The end of what it has written so far to its standard error (and output, where that is kept with it)."""
        size = self._output.seek(0, os.SEEK_END)
        self._output.seek(0 if num_characters is None else max(0, size - num_characters))
        return self._output.read().decode(errors="replace")

    def end(self, *, grace_seconds: float = 0.0) -> None:
        """Ends it and all that it started: with SIGTERM first if there is a grace period, then with SIGKILL."""
        self.kill(grace_seconds=grace_seconds)
        self.wait_for_lines(_READER_SECONDS)  # a process that it left behind may hold a pipe
        self.close()

    def wait_for_lines(self, seconds: float | None = None) -> None:
        """Waits until all lines are read; for each pipe at most so long."""
        for reader in self._readers:
            reader.join(seconds)

    def kill(self, *, grace_seconds: float = 0.0) -> None:
        """As `end`, but its output can still be read."""
        if grace_seconds > 0:
            end_group(self.process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(grace_seconds)
        end_group(self.process.pid)
        self.process.wait()

    def close(self) -> None:
        """Closes its pipes and its output."""
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr, self._output):
            if stream is not None:
                stream.close()


def run_program(
    command: Sequence[str],
    *,
    environment: Environment | None = None,
    base: Mapping[str, str] | None = None,
    given: str | None = "",
    time_limit_seconds: float | None = None,
) -> str:
    """Runs a program to its end, and returns what it wrote to its standard output.

    Args:
        command: program and arguments.
        environment, base: as for `Child`.
        given: its standard input; None: nothing is written to it, and it stays open, as `end_with_parent` needs.
        time_limit_seconds: time limit, after which it is ended with all that it started.

    Raises:
        ProcessError: if its exit status is not 0, or it exceeded the time limit.
        OSError: if it cannot be started.

    Example:
        >>> run_program([sys.executable, "-c", "print(input() + '!')"], given="Hello")
        'Hello!\\n'
    """
    with Child(command, environment=environment, base=base, pipes=("stdout",)) as child:
        held = child.process.stdin
        if given is None:
            child.process.stdin = None  # `communicate` would close it
        try:
            written, _ = child.process.communicate(given, time_limit_seconds)
        except subprocess.TimeoutExpired as error:
            how = f"was ended after {time_limit_seconds:g} seconds"
            raise ProcessError(Path(command[0]).name, how, child.output()) from error
        finally:
            child.process.stdin = held
        if child.process.returncode:
            raise ProcessError(Path(command[0]).name, how_it_ended(child.process.returncode), child.output())
        return str(written)


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
        """The next object from the child."""
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


def _log(path: Path) -> IO[bytes]:
    """Opens a file that output is appended to."""
    try:
        return open(path, "a+b", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o666))
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise TfaccelError(
            f"The log {path} is a symbolic link, and nothing is written through it. Remove it, or choose another "
            "folder."
        ) from error
