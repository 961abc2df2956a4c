"""A run directory at an address such as s3://bucket/run: a local copy, which is sent there after each checkpoint.

Training reads and writes the local copy alone. Stores have no rename, so what makes a run whole is the order in which
its files are sent, which a kill may cut anywhere. A checkpoint's arrays come after all that it needs, and its header
last, for a checkpoint without a header is none; `result.json` after all; and old checkpoints lose their header first.

One process trains in a run. Across machines it holds a lease, an object that it rewrites every few seconds, and that
others take over if it is not rewritten.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from tfaccel.errors import RunDirError, TfaccelError
from tfaccel.hardware.cluster import find_cluster
from tfaccel.hardware.machine import Machine
from tfaccel.local_path import local_path
from tfaccel.remote import CopyNotes, RemoteFolder, copy_changed, file_names, folder_of_copies, is_hidden, is_remote
from tfaccel.training.run.run_lock import OWNER_FILE, RENEWAL_SECONDS, STALE_SECONDS, Owner, RunLock

logger = logging.getLogger("tfaccel")

CONFIG_FILE, RESULT_FILE = "config.json", "result.json"
HEADER_FILE = "state.json"  # of a checkpoint
RUN_ID = "run_id"  # the key of the id in the config, and in the header of a checkpoint
_CHECKPOINTS = "checkpoints/"
_runs: dict[Path, RemoteRun] = {}  # of this process, by their local copies


class StoreError(RunDirError, OSError):
    """The store of a run does not answer: as with a full disk, training goes on without a checkpoint or two."""


class RemoteRun:
    """The run at an address, and its local copy.

    Attributes:
        address: where the run is kept.
        path: the local copy.
    """

    def __init__(self, address: str | os.PathLike[str]) -> None:
        self._remote = RemoteFolder(address, RunDirError, StoreError)
        self.address = self._remote.address
        cluster = find_cluster(Machine.here())
        number = 0 if cluster is None else cluster.task_index  # workers of one machine read copies of their own
        self.path = folder_of_copies("runs" if not number else f"runs-of-worker-{number}", self.address, RunDirError)
        self._lease: _Lease | None = None
        self._is_writable = False
        self._sending = threading.Lock()

    def fetch(self) -> None:
        """Brings the local copy up to date, unless this process holds the run.

        A copy that was not sent, because its process was killed or the store could not be reached, stays if the run at
        the address is still as it was.
        """
        if self._lease is not None:
            return
        if not self._is_writable:
            self._remote.check_writable()
            self._is_writable = True
        lock = RunLock(self.path, self.address)
        try:
            found = {name: version for name, version in self._remote.list_files().items() if not is_hidden(name)}
            known = CopyNotes(self.path).versions
            if known and found.keys() == known.keys() and all(found[name].is_same(known[name]) for name in found):
                return
            if found and CONFIG_FILE not in found:
                raise RunDirError(
                    f"The run directory {self.address} is not empty and holds no run of tfaccel. Choose a new one."
                )
            in_checkpoints = (name for name in found if name.startswith(_CHECKPOINTS))
            headless = {name for name in in_checkpoints if f"{name.rpartition('/')[0]}/{HEADER_FILE}" not in found}
            copy_changed(self._remote, {name: found[name] for name in found.keys() - headless}, self.path)
            notes = CopyNotes(self.path)
            notes.note({name: found[name] for name in headless})  # not here, so that they are removed there
        finally:
            lock.release()

    def hold(self) -> None:
        """Takes the run for this process.

        Raises:
            RunDirError: if another one is using it.
        """
        self._lease = self._lease or _Lease(self._remote)

    def release(self) -> None:
        """Gives the run back."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()

    @property
    def taken_by(self) -> str | None:
        """Who has taken the run from this process, which had not rewritten its lease."""
        return None if self._lease is None else self._lease.taken_by

    def send(self) -> None:
        """Sends what has changed since it was last sent.

        Raises:
            RunDirError: if the address no longer holds this run; a StoreError if the store does not answer.
        """
        with self._sending:
            notes = CopyNotes(self.path)
            self._check_own(notes)
            here = set(file_names(self.path))
            gone = sorted(notes.versions.keys() - here, key=_order, reverse=True)  # headers before arrays
            if RESULT_FILE in gone:
                self._remove([RESULT_FILE], notes)
            changed = [name for name in sorted(here, key=_order) if notes.has_changed(name)]
            for name in changed:
                if name == RESULT_FILE:  # with it, the run is complete
                    self._remove(gone, notes)
                header = f"{name.rpartition('/')[0]}/{HEADER_FILE}"
                is_before_header = name.startswith(_CHECKPOINTS) and name != header
                if is_before_header and header in notes.versions and notes.has_changed(header):
                    self._remove([header], notes)  # of a checkpoint that is replaced
                notes.send(self._remote, name)
            self._remove(gone, notes)
            if changed:
                notes.tag(self._remote.list_files(), changed)

    def _remove(self, names: list[str], notes: CopyNotes) -> None:
        known = notes.versions
        for name in names:
            if name in known:
                self._remote.remove(name)
        notes.forget(names)

    def _check_own(self, notes: CopyNotes) -> None:
        if self.taken_by is not None:
            raise RunDirError(
                f"Another run ({self.taken_by}) has taken over {self.address}, because this process did not write its "
                f"lease there for more than {STALE_SECONDS:g} seconds. That run continues; this one ends."
            )
        if CONFIG_FILE not in notes.versions:
            return
        sent = self._remote.read(CONFIG_FILE)
        own = self.path / CONFIG_FILE
        if sent is None or (own.exists() and _run_id(sent) != _run_id(own.read_bytes())):
            raise RunDirError(
                f"{self.address} no longer holds this run: it was moved or emptied, and may hold another run now. "
                f"Training stops, and leaves everything there as it is. The copy of this run is in {self.path}."
            )


class _Lease:
    """An object that says who uses a run, rewritten by a thread until `release`."""

    def __init__(self, remote: RemoteFolder) -> None:
        self._remote = remote
        self._own = {**asdict(Owner.here()), "token": uuid.uuid4().hex}
        self.taken_by: str | None = None
        self._wait_until_free()
        self._write()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Removes the object, unless it is another's."""
        self._ended.set()
        self._thread.join()
        if self._read().get("token") == self._own["token"]:
            self._remote.remove(OWNER_FILE)

    def _wait_until_free(self) -> None:
        seen = self._read()
        is_from_here = seen.get("place") == self._own["place"]
        if not seen or (is_from_here and not psutil.pid_exists(_get_owner(seen).pid)):
            return
        logger.warning(
            "%s has an owner (%s). Waiting for up to %g seconds to see whether it is still there.",
            self._remote.address,
            _get_owner(seen),
            STALE_SECONDS,
        )
        waited_until = time.monotonic() + STALE_SECONDS
        while time.monotonic() < waited_until:
            time.sleep(min(RENEWAL_SECONDS, STALE_SECONDS / 4))
            now = self._read()
            if not now:
                return
            if now != seen:
                raise RunDirError(
                    f"Another run is using {self._remote.address} ({_get_owner(now)}). Wait for it to end, or choose "
                    "another address."
                )
        logger.warning("%s was left by a process that has ended; it is taken over.", self._remote.address)

    def _renew(self) -> None:
        while not self._ended.wait(RENEWAL_SECONDS):
            try:
                found = self._read()
                if found.get("token") not in (None, self._own["token"]):
                    self.taken_by = str(_get_owner(found))
                    return
                self._write()
            except TfaccelError as error:
                logger.debug("The lease was not renewed: %s", error)

    def _write(self) -> None:
        self._remote.write(OWNER_FILE, json.dumps({**self._own, "renewed": time.time()}).encode())

    def _read(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self._remote.read(OWNER_FILE) or b"{}"))
        except (ValueError, TypeError):
            return {}


def run_folder(given: str | os.PathLike[str]) -> Path:
    """The folder of a run: a local path as it is given, or the local copy of an address, brought up to date.

    Raises:
        RunDirError: if the address cannot be used, or another process of this machine trains in it.
    """
    if not is_remote(given):
        return local_path(given, RunDirError)
    run = RemoteRun(given)
    run = _runs.setdefault(run.path, run)
    run.fetch()
    return run.path


def remote_run(path: Path) -> RemoteRun | None:
    """The run whose local copy a folder is; None for a folder that is no such copy."""
    return _runs.get(path)


def shown_run(path: str | os.PathLike[str]) -> str:
    """The address of a run, or its path, for messages."""
    run = _runs.get(Path(path))
    return str(path) if run is None else run.address


def send_run(path: str | os.PathLike[str]) -> None:
    """Sends what was written into a run directory after its training, if it is at an address."""
    run = _runs.get(Path(path))
    if run is not None:
        run.send()


def _order(name: str) -> tuple[int, str]:
    """Where a file stands in the order in which files are sent."""
    if name in (CONFIG_FILE, RESULT_FILE):
        return (0 if name == CONFIG_FILE else 4), name
    if not name.startswith(_CHECKPOINTS):
        return 1, name
    return (3 if name.endswith(f"/{HEADER_FILE}") else 2), name


def _run_id(config: bytes) -> Any:
    try:
        return json.loads(config).get(RUN_ID)
    except (ValueError, AttributeError):
        return None


def _get_owner(lease: dict[str, Any]) -> Owner:
    """The process that a lease names; a lease that cannot be read names none that runs."""
    nobody = {"host": "", "place": "", "pid": -1, "since": "", "command": ""}
    return Owner(**{name: lease.get(name, value) for name, value in nobody.items()})
