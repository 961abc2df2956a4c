"""The lock of a run directory: one process trains in it at a time, and others are told which one.

Where the file system has locks, the kernel releases this one when the process ends, for whatever reason. Where it has
none, the lock is a lease that its process renews every few seconds, and that others take over if it is not renewed.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Self

from filelock import SoftFileLease, Timeout, lock_descriptor

from tfaccel.errors import RunDirError
from tfaccel.files import write_json

logger = logging.getLogger("tfaccel")

OWNER_FILE = ".owner.json"
LOCK_FILE, LEASE_FILE = ".lock", ".lease"
RENEWAL_SECONDS = 5.0
STALE_SECONDS = 30.0  # without a renewal
_SHOWN_CHARACTERS = 200
_NO_LOCKS = (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The process that uses a run directory, for messages.

    Attributes:
        host: the name of its machine.
        place: where process ids mean the same processes: this boot of the machine, and its namespace of process ids,
            which differs between containers.
        pid: its process id.
        since: when it took the directory.
        command: its command line.
    """

    host: str
    place: str
    pid: int
    since: str
    command: str

    @classmethod
    def here(cls) -> Self:
        """This process."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return cls(
            host=socket.gethostname(),
            place=f"{boot} {os.readlink('/proc/self/ns/pid')}",
            pid=os.getpid(),
            since=datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
            command=" ".join(" ".join(sys.orig_argv).split())[:_SHOWN_CHARACTERS],
        )

    @classmethod
    def of(cls, file: Path) -> Self | None:
        """The owner that a file names; None if it cannot be read, for example because it is being written."""
        try:
            return cls(**json.loads(file.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}: {self.command}"


class RunLock:
    """Takes the directory of a run for this process, until `release`; `shown` stands for it in messages."""

    def __init__(self, folder: Path, shown: str | None = None) -> None:
        self._folder, self._file, self._shown = folder, folder / OWNER_FILE, shown or str(folder)
        self._owner = Owner.here()
        self.taken_by: str | None = None  # who has taken the directory from this process, which did not renew its lease
        self._release = self._acquired()
        write_json(self._file, asdict(self._owner))

    def release(self) -> None:
        """Releases the directory."""
        if os.getpid() != self._owner.pid:  # a forked child
            return
        if self.taken_by is None and Owner.of(self._file) == self._owner:
            self._file.unlink(missing_ok=True)
        self._release()

    def _acquired(self) -> Callable[[], None]:
        """Takes the lock, and returns what releases it."""
        # NFS locks files, not folders; a locked folder needs no file.
        for place, flags in ((self._folder, os.O_RDONLY), (self._folder / LOCK_FILE, os.O_RDWR | os.O_CREAT)):
            descriptor = os.open(place, flags, 0o644)
            try:
                is_free = lock_descriptor(descriptor, blocking=False)
            except OSError as error:
                os.close(descriptor)
                if error.errno not in _NO_LOCKS:
                    raise
                continue
            if is_free:
                return partial(os.close, descriptor)
            os.close(descriptor)
            raise self._in_use()
        return self._leased().release

    def _leased(self) -> SoftFileLease:
        lease = SoftFileLease(
            self._folder / LEASE_FILE,
            lease_duration=STALE_SECONDS,
            heartbeat_interval=RENEWAL_SECONDS,
            thread_local=False,
            on_compromise=lambda lost: self._note_loss(),
        )
        try:
            lease.acquire(blocking=False)  # also if its process, on this machine, has ended
            return lease
        except Timeout:
            owner = Owner.of(self._file)
            if owner is not None and owner.place == self._owner.place:
                raise self._in_use() from None
        logger.warning(
            "The run directory %s has an owner (%s). Waiting for up to %g seconds to see whether it is still there.",
            self._shown,
            owner or "unknown",
            STALE_SECONDS,
        )
        try:
            lease.acquire(timeout=STALE_SECONDS + RENEWAL_SECONDS)
        except Timeout:
            raise self._in_use() from None
        logger.warning("The run directory %s was left by a process that has ended; it is taken over.", self._shown)
        return lease

    def _note_loss(self) -> None:
        self.taken_by = str(Owner.of(self._file) or "an unknown process")

    def _in_use(self) -> RunDirError:
        owner = Owner.of(self._file)
        who = "" if owner is None else f" ({owner})"
        return RunDirError(
            f"Another run is using the run directory {self._shown}{who}. Wait for it to end, or choose a new one."
        )


def own_files(names: list[str]) -> bool:
    """Whether a folder holds nothing but the lock's files, and counts as empty.

    Example:
        >>> own_files([]), own_files([".owner.json"]), own_files([".owner.json", "config.json"])
        (True, True, False)
    """
    own = (LOCK_FILE, LEASE_FILE, f".{Path(OWNER_FILE).stem}", OWNER_FILE)  # and the files that replace them
    return all(name.startswith(own) for name in names)
