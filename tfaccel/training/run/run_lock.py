"""The lock of a run directory: one process trains in it at a time, and others are told which one.

Where the file system has locks, the kernel releases this one when the process ends, for whatever reason. Where it has
none, the owner's file is the lock: it is created only if it does not exist, renewed every few seconds, and broken if
its process has ended.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
import sys
import threading
import time
import uuid
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from tfaccel.errors import RunDirError
from tfaccel.files import write_json

logger = logging.getLogger("tfaccel")

OWNER_FILE = ".owner.json"
LOCK_FILE = ".lock"
RENEWAL_SECONDS = 5.0
STALE_SECONDS = 30.0  # without a renewal
_POLL_SECONDS = 0.5
_SHOWN_CHARACTERS = 200
_NO_LOCKS = (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOTSUP)


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The process that uses a run directory.

    Attributes:
        host, boot, namespace: its machine: the host's name, the kernel's id of this boot, and its namespace of process
            ids, which differs between containers.
        pid, started: its process id, and when it started, in the kernel's clock ticks since the boot.
        since: when it took the directory.
        command: its command line.
        token: of this use of the directory.
        renewals: how often the file was renewed.
    """

    host: str
    boot: str
    namespace: str
    pid: int
    started: int
    since: str
    command: str
    token: str
    renewals: int = 0

    @classmethod
    def here(cls) -> Self:
        """This process."""
        return cls(
            host=socket.gethostname(),
            boot=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            namespace=os.readlink("/proc/self/ns/pid"),
            pid=os.getpid(),
            started=_started(os.getpid()) or 0,
            since=datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
            command=" ".join(" ".join(sys.orig_argv).split())[:_SHOWN_CHARACTERS],
            token=uuid.uuid4().hex,
        )

    @classmethod
    def of(cls, content: bytes) -> Self | None:
        """The owner that a file names; None if it cannot be read, for example because it is being written."""
        try:
            owner = cls(**json.loads(content))
        except (ValueError, TypeError):
            return None
        return owner if isinstance(owner.pid, int) and isinstance(owner.token, str) else None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}: {self.command}"

    def is_on_the_machine_of(self, other: Owner) -> bool:
        """Whether the process ids of both mean the same processes."""
        places = [(one.host, one.boot, one.namespace) for one in (self, other)]
        return places[0] == places[1]

    def is_alive(self) -> bool:
        """Whether the process runs, on this machine: its id may belong to a later one."""
        return _started(self.pid) == self.started


def _started(pid: int) -> int | None:
    """When a process started, in clock ticks since the boot; None if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


class RunLock:
    """Takes the directory of a run for this process, until `release`.

    Args:
        folder: the directory, which exists.

    Raises:
        RunDirError: if another process, or another run of this one, uses it; the message names it.
        OSError: if nothing can be written there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._file = folder, folder / OWNER_FILE
        self._owner = Owner.here()
        self._thread: threading.Thread | None = None
        self._released = threading.Event()
        self.taken_by: str | None = None  # who has taken the directory from this process, which did not renew its file
        try:
            self._descriptor = _locked(folder)
        except BlockingIOError:
            raise self._in_use(Owner.of(_content(self._file) or b"")) from None
        if self._descriptor is not None:
            write_json(self._file, asdict(self._owner))
            return
        self._take()
        self._thread = threading.Thread(target=self._renew, name="tfaccel run directory", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Releases the directory."""
        if os.getpid() != self._owner.pid:  # a forked child
            return
        self._released.set()
        if self._thread is not None:
            self._thread.join()
        with contextlib.suppress(OSError):
            if self._is_own(_content(self._file)):
                self._file.unlink()
        if self._descriptor is not None:
            os.close(self._descriptor)

    def _is_own(self, content: bytes | None) -> bool:
        found = Owner.of(content or b"")
        return found is not None and found.token == self._owner.token

    def _in_use(self, owner: Owner | None) -> RunDirError:
        who = "" if owner is None else f" ({owner})"
        return RunDirError(
            f"Another run is using the run directory {self._folder}{who}. Wait for it to end, or choose a new one."
        )

    # --- Without locks ------------------------------------------------------------------------------------------------

    def _take(self) -> None:
        while True:
            try:
                descriptor = os.open(self._file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            except FileExistsError:
                found = self._stale_content()
                if found is not None:
                    self._break(found)
                continue
            with os.fdopen(descriptor, "w") as file:
                json.dump(asdict(self._owner), file)
            return

    def _stale_content(self) -> bytes | None:
        """The content of the owner's file if its process has ended; None if the file is gone.

        A process on this machine has ended if the kernel says so, one on another machine if it does not renew its file:
        clocks of different machines are not compared.

        Raises:
            RunDirError: if the directory is in use.
        """
        found = _content(self._file)
        if found is None:
            return None
        owner = Owner.of(found)
        if owner is not None and owner.is_on_the_machine_of(self._owner):
            if owner.is_alive():
                raise self._in_use(owner)
            return found
        logger.warning(
            "The run directory %s has an owner (%s). Waiting for up to %g seconds to see whether it is still there.",
            self._folder,
            owner or "unknown",
            STALE_SECONDS,
        )
        ends_at = time.monotonic() + STALE_SECONDS
        while time.monotonic() < ends_at:
            time.sleep(_POLL_SECONDS)
            now = _content(self._file)
            if now is None:
                return None
            if now != found:
                raise self._in_use(Owner.of(now) or owner)
        return found

    def _break(self, stale: bytes) -> None:
        """Removes the file of a process that has ended, unless another process has replaced it in the meantime."""
        aside = self._folder / f"{OWNER_FILE}-{self._owner.token}"
        try:
            os.rename(self._file, aside)
        except FileNotFoundError:
            return
        if _content(aside) == stale:
            logger.warning("The run directory %s was left by a process that has ended; it is taken over.", self._folder)
            aside.unlink()
        else:
            os.rename(aside, self._file)

    def _renew(self) -> None:
        renewals = 0
        while not self._released.wait(RENEWAL_SECONDS):
            renewals += 1
            with contextlib.suppress(OSError):  # such as a full disk: the next renewal may succeed
                content = _content(self._file)
                if content and not self._is_own(content):
                    self.taken_by = str(Owner.of(content) or "an unknown process")
                    return
                write_json(self._file, {**asdict(self._owner), "renewals": renewals})


def _content(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None


def _locked(folder: Path) -> int | None:
    """The descriptor of an exclusive lock, which the kernel releases when the process ends; None without locks.

    Raises:
        BlockingIOError: if another process holds it.
    """
    places = [(folder, os.O_RDONLY), (folder / LOCK_FILE, os.O_RDWR | os.O_CREAT)]  # NFS locks files, not folders
    for place, flags in places:
        descriptor = os.open(place, flags, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise
        except OSError as error:
            os.close(descriptor)
            if error.errno not in _NO_LOCKS:
                raise
    return None


def own_files(names: list[str]) -> bool:
    """Whether a folder holds nothing but the lock's files, and counts as empty.

    Example:
        >>> own_files([]), own_files([".owner.json"]), own_files([".owner.json", "config.json"])
        (True, True, False)
    """
    of_owner = (OWNER_FILE, f".{Path(OWNER_FILE).stem}-")  # and the file that replaces it
    return all(name == LOCK_FILE or name.startswith(of_owner) for name in names)
